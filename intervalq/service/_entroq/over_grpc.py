"""EntroQ over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import anyio
import grpc
import grpc.aio
from google.protobuf.message import Message

from intervalq.errors import IntervalqError
from intervalq.service._access import Access
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import NAME, STREAM_TASKS, UNARY, Method
from intervalq.service._entroq.model import details_of
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._grpc import abort, caller_of, counts
from intervalq.service._measures import measured, measured_stream
from intervalq.service._refusal import Code, Refusal

_MARGIN: Final = 0.02
"""Seconds before the client's deadline, or a fifth of the time until then if that is less, in which nothing
is claimed for it: the task would arrive too late, and nobody else would get it until the claim expires."""


def handler(verbs: Verbs, access: Access | None) -> grpc.GenericRpcHandler:
    """The handler of all methods, for a gRPC server."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            measured(_answered(verbs, access, method), f"{NAME}/{method.name}"),
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
        for method in UNARY
    }
    methods["StreamTasks"] = grpc.unary_stream_rpc_method_handler(
        measured_stream(_streamed(verbs, access), f"{NAME}/StreamTasks"),
        request_deserializer=pb.TasksRequest.FromString,
        response_serializer=pb.TasksResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(NAME, methods)


def _answered(verbs: Verbs, access: Access | None, method: Method) -> Callable[..., Any]:
    async def answer(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        try:
            verb = method.verb(verbs, request, caller_of(access, context))
            message = await (_in_time(verb, context.time_remaining()) if method.waits else verb)
        except (Refusal, IntervalqError) as error:
            await abort(context, error, _details(error))
            raise
        counts(verbs.answers, context, message.ByteSize())
        return message

    return answer


async def _in_time(answer: Awaitable[Message], left: float | None) -> Message:
    """An answer that can still arrive, if the client waits for it for so many seconds; None: without end.

    Raises:
        Refusal: there is none until then.
    """
    if left is None:
        return await answer
    with anyio.move_on_after(left - min(_MARGIN, left / 5)):
        return await answer
    raise Refusal(Code.DEADLINE_EXCEEDED, "there was no task before the deadline: ask again")


def _streamed(verbs: Verbs, access: Access | None) -> Callable[..., AsyncIterator[Message]]:
    async def answer(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
        try:
            async for message in STREAM_TASKS(verbs, request, caller_of(access, context)):
                yield message
        except (Refusal, IntervalqError) as error:
            await abort(context, error, _details(error))
            raise

    return answer


def _details(error: Refusal | IntervalqError) -> list[Message]:
    return details_of(error) if isinstance(error, Refusal) else []
