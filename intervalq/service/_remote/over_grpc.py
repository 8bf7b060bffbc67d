"""intervalq.v1 over gRPC: steps, and streams of wake-ups that end with the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, get_args

import grpc
import grpc.aio

from intervalq._wire import verbs
from intervalq._wire.intervalq_v1_pb2 import QUEUES, SCHEDULES, TASKS, Kind, Result, Step, Subject, Wakeup
from intervalq._wire.values import dumps
from intervalq._wire.verbs import VERSION
from intervalq.errors import IntervalqError, UnsupportedOperation
from intervalq.service._access import Access, Caller, need
from intervalq.service._grpc import abort, caller_of, counts
from intervalq.service._large import SENDER
from intervalq.service._measures import measured, waits
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote import rights, steps
from intervalq.service._remote.places import Places
from intervalq.service._remote.stores import Stores
from intervalq.service._remote.tasks import RemoteTasks
from intervalq.store import SchedulesWaking
from intervalq.store import Waking as QueuesWaking
from intervalq.tasks.rules import Worked
from intervalq.tasks.store import Waking as TasksWaking

NAME: Final = "intervalq.v1.Store"

MAX_LISTENING: Final = 64
"""The maximum number of streams of wake-ups: a store may need a connection for each. Further clients poll."""
_PATIENCE: Final = 10.0
"""Seconds within which a client must take a wake-up."""


class Remote:
    """The stores of a service for clients over gRPC."""

    def __init__(self, stores: Stores, access: Access | None) -> None:
        self._stores, self._access = stores, access
        self._listening = Places(MAX_LISTENING)
        self._closed = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of the service, for a server of gRPC."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Apply": grpc.unary_unary_rpc_method_handler(
                measured(self._apply, _verb_of),
                request_deserializer=Step.FromString,
                response_serializer=Result.SerializeToString,
            ),
            "Listen": grpc.unary_stream_rpc_method_handler(
                self._listen,
                request_deserializer=Subject.FromString,
                response_serializer=Wakeup.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(NAME, methods)

    def close(self) -> None:
        """End all streams: the service is about to stop, and clients find another one."""
        self._closed = True
        self._listening.end_all()

    async def _apply(self, step: Step, context: grpc.aio.ServicerContext[Any, Any]) -> Result:
        try:
            result = await steps.apply(self._stores, step, caller_of(self._access, context))
        except Refusal as error:
            await abort(context, error)
            raise
        counts(self._stores.answers, context, len(result.answer))
        return result

    async def _listen(self, subject: Subject, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            caller = caller_of(self._access, context)
            listening = await _listening(self._stores, subject, caller)
            over = asyncio.Event()
            if self._closed:
                over.set()
            with self._listening.place(SENDER.get(), over.set), waits("stream"):
                async with listening as woken:
                    late = await _pass_on(context, woken, over)
            if late is not None:
                await late  # no other message can overtake it
            if not self._closed:
                await abort(
                    context, Refusal(Code.RESOURCE_EXHAUSTED, "others listen instead: poll meanwhile")
                )
        except (Refusal, IntervalqError) as error:
            await abort(context, error)


async def _pass_on(
    context: grpc.aio.ServicerContext[Any, Any], woken: Callable[[], Awaitable[bytes]], over: asyncio.Event
) -> asyncio.Future[None] | None:
    """Send wake-ups until the stream is over (None), or the client doesn't take one, which is returned."""
    found: tuple[bytes] | None = (b"",)
    while found is not None:
        sent = asyncio.ensure_future(context.write(Wakeup(handed=found[0])))
        try:
            await asyncio.wait([sent], timeout=_PATIENCE)
        except asyncio.CancelledError:
            sent.cancel()
            raise
        if not sent.done():
            return sent
        await sent
        found = None if over.is_set() else await _next(woken, over)
    return None


def _verb_of(step: Step) -> str:
    """The verb of a step, with its command if that begins as clients write it."""
    command = step.command[len(_OP) : len(_OP) + 30].partition(b'"')[0].decode(errors="replace")
    is_known = step.command.startswith(_OP) and command in _COMMANDS and step.kind in Kind.values()
    return f"{NAME}/Apply {Kind.Name(step.kind).lower()} {command}" if is_known else f"{NAME}/Apply"


_OP: Final = b'{"op":"'
_COMMANDS: Final = frozenset(
    one.__name__
    for kind in (verbs.QUEUES, verbs.TASKS, verbs.LEDGERS, verbs.SCHEDULES)
    for one in get_args(kind)
)

Woken = Callable[[], Awaitable[Any]]


async def _listening(
    stores: Stores, subject: Subject, caller: Caller
) -> AbstractAsyncContextManager[Callable[[], Awaitable[bytes]]]:
    """Listen in the store: the context gives a function that waits for the content of the next wake-up.

    Raises:
        Refusal: the caller may not.
        UnsupportedOperation: the store sends no such wake-ups.
    """
    if subject.version != VERSION:
        raise Refusal(Code.UNIMPLEMENTED, steps.other_version(subject.version))
    show: Callable[[Worked], Worked] | None = None
    context: AbstractAsyncContextManager[Woken]
    if subject.kind == TASKS:
        tasks = stores.of_tasks()
        remote = RemoteTasks(tasks, caller)
        listener = await remote.listener(subject.name)
        if not isinstance(tasks, TasksWaking):
            raise UnsupportedOperation(tasks.url, "this store sends no wake-ups")
        context, show = tasks.wakeups(listener), remote.worked
    elif subject.kind == SCHEDULES:
        queues = stores.of_queues()
        await need(caller, [("read", rights.schedule("*"))])
        if not isinstance(queues, SchedulesWaking):
            raise UnsupportedOperation(queues.url, "this store sends no notice of changed schedules")
        context = queues.schedule_changes()
    elif subject.kind == QUEUES:
        queues, name = stores.of_queues(), steps.record_name(subject.name)
        await need(caller, [("pace", rights.queue_of(name))])
        if not isinstance(queues, QueuesWaking):
            raise UnsupportedOperation(queues.url, "this store sends no wake-ups")
        context = queues.wakeups(name)
    else:
        raise Refusal(Code.INVALID_ARGUMENT, f"nothing wakes for {subject.kind}")
    return _shown(context, show)


@asynccontextmanager
async def _shown(
    context: AbstractAsyncContextManager[Woken], show: Callable[[Worked], Worked] | None
) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    async with context as woken:

        async def content() -> bytes:
            handed = await woken()
            return b"" if handed is None or show is None else dumps(Worked, show(handed))

        yield content


async def _next(woken: Callable[[], Awaitable[bytes]], over: asyncio.Event) -> tuple[bytes] | None:
    """The content of the next wake-up; None: the stream is over."""
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(woken()), asyncio.ensure_future(over.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return (waits[0].result(),) if waits[0].done() and not over.is_set() else None
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
