"""Envoy's rate limit service over gRPC: a request is answered at its slot, or refused at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import grpc
import grpc.aio

from intervalq._queue.queue import IntervalQueue
from intervalq.errors import IntervalqError, SlotTimeout
from intervalq.service._access import Access, need
from intervalq.service._envoy import ratelimit_pb2 as pb
from intervalq.service._envoy.limits import Limit
from intervalq.service._grpc import abort, caller_of
from intervalq.service._measures import measured, waits
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote.rights import queue_of

NAME: Final = "envoy.service.ratelimit.v3.RateLimitService"

_OK: Final = pb.RateLimitResponse.OK
_OVER: Final = pb.RateLimitResponse.OVER_LIMIT


def handler(limits: Sequence[Limit], access: Access | None) -> grpc.GenericRpcHandler:
    """The handler of the service, for a gRPC server."""

    async def answer(
        request: pb.RateLimitRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RateLimitResponse:
        try:
            caller = caller_of(access, context)
            wanted = _wanted(limits, request)
            await need(
                caller, [("pace", queue_of(queue.name)) for _, queue, _ in wanted if queue is not None]
            )
            return await _answer(wanted)
        except (Refusal, IntervalqError) as error:
            await abort(context, error)
            raise

    method = grpc.unary_unary_rpc_method_handler(
        measured(answer, f"{NAME}/ShouldRateLimit"),
        request_deserializer=pb.RateLimitRequest.FromString,
        response_serializer=pb.RateLimitResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(NAME, {"ShouldRateLimit": method})


_Wanted = tuple[float, IntervalQueue | None, int]
"""How long a descriptor may wait, its queue (None: it has no limit), and its cost."""


def _wanted(limits: Sequence[Limit], request: pb.RateLimitRequest) -> list[_Wanted]:
    if len(request.descriptors) > _MAX_DESCRIPTORS:
        raise Refusal(Code.INVALID_ARGUMENT, f"a request has at most {_MAX_DESCRIPTORS} descriptors")
    wanted: list[_Wanted] = []
    for descriptor in request.descriptors:
        entries = {entry.key: entry.value for entry in descriptor.entries}
        limit = next((limit for limit in limits if limit.fits(request.domain, entries)), None)
        cost = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else request.hits_addend
        if limit is None:
            wanted.append((0.0, None, 0))
        elif cost > _MAX_COST:
            raise Refusal(Code.INVALID_ARGUMENT, f"hits_addend={cost} is above {_MAX_COST}")
        else:
            wanted.append((limit.wait, limit.queue_of(entries), int(cost) or 1))
    return wanted


_MAX_COST: Final = 1_000
"""The highest cost of a job in slots."""
_MAX_DESCRIPTORS: Final = 16


async def _answer(wanted: Sequence[_Wanted]) -> pb.RateLimitResponse:
    """Wait for the slots of all descriptors together.

    If there are several and, by the quotes, one would come too late, none is taken.
    """
    several = sum(queue is not None for _, queue, _ in wanted) > 1
    late = await _of_each(_quoted, wanted) if several else {}
    late = late or await _of_each(_taken, wanted)
    response = pb.RateLimitResponse(overall_code=_OVER if late else _OK)
    for number in range(len(wanted)):
        status = response.statuses.add(code=_OVER if number in late else _OK)
        if number in late:
            status.duration_until_reset.FromMilliseconds(math.ceil(late[number] * 1_000))
    if late:
        response.response_headers_to_add.add(key="retry-after", value=str(math.ceil(max(late.values()))))
    return response


async def _of_each(
    step: Callable[[float, IntervalQueue, int], Awaitable[float | None]], wanted: Sequence[_Wanted]
) -> dict[int, float]:
    """Do a step for all descriptors that have a limit; returns the seconds until those that come too late."""
    late: dict[int, float] = {}
    errors: list[IntervalqError] = []

    async def do(number: int, wait: float, queue: IntervalQueue, cost: int) -> None:
        try:
            if (comes := await step(wait, queue, cost)) is not None:
                late[number] = comes
        except IntervalqError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        for number, (wait, queue, cost) in enumerate(wanted):
            if queue is not None:
                group.start_soon(do, number, wait, queue, cost)
    if errors:
        raise errors[0]
    return late


async def _quoted(wait: float, queue: IntervalQueue, cost: int) -> float | None:
    """The seconds until a slot would come, if that is too late; otherwise None."""
    quoted = await queue.quote(cost)
    return quoted if quoted is not None and quoted > wait else None


async def _taken(wait: float, queue: IntervalQueue, cost: int) -> float | None:
    """Take a slot; if it would come too late, return the seconds after which to ask again."""
    try:
        with waits("slot"):
            async with queue.try_slot(within=wait, cost=cost):
                return None
    except SlotTimeout as late:
        return late.retry_after or 0.0
