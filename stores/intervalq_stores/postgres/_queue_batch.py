"""Group commit: commands that come while a statement is in flight are sent together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import anyio

A = TypeVar("A")

_MAX_COMMANDS: Final = 100
"""The maximum number of commands in one statement. With more, slots would pass before the answers arrive."""


class Step(NamedTuple):
    """A command for the record of one queue."""

    queue: str
    command: dict[str, Any]
    now: int | None
    common: str | None = None
    """The name of the common record, if the queue is that of a key under one rate."""
    known: dict[str, Any] | None = None
    """What the sender knows of the common record: `Common.to_dict()`."""

    @property
    def order(self) -> tuple[str, str]:
        """All processes lock rows in this order, so they can't deadlock: a queue comes before its keys."""
        return self.queue.partition(":")[0], self.queue


Send: TypeAlias = Callable[[Sequence[Step]], Awaitable[Sequence[A | Exception]]]
"""Does these steps, and returns the outcome of each. Calls don't overlap."""


class _Call(NamedTuple, Generic[A]):
    step: Step
    answer: asyncio.Future[A]


class Batcher(Generic[A]):
    """Calls `send` in a task of its own while commands wait, so that a cancelled caller harms nobody."""

    def __init__(self, send: Send[A]) -> None:
        self._send = send
        self._waiting: list[_Call[A]] = []
        self._sent: list[_Call[A]] = []
        self._scope: anyio.CancelScope | None = None  # the steps of the present call of `send`
        self._task: asyncio.Task[None] | None = None

    async def do(self, step: Step) -> A:
        """The outcome of a step, which waits for at most one other call of `send`, unless very many wait."""
        loop = asyncio.get_running_loop()
        if self._task is not None and self._task.get_loop() is not loop:  # that event loop has ended
            self._waiting, self._sent, self._task = [], [], None
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append(_Call(step, answer))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await answer
        except asyncio.CancelledError:
            if self._scope is not None and all(call.answer.done() for call in self._sent):
                self._scope.cancel()  # nobody waits for the outcome any more
            raise

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        mine = asyncio.current_task()
        try:
            while self._next():
                with anyio.CancelScope() as self._scope:
                    await self._deliver()
                self._scope = None
        finally:
            if self._task is mine:  # otherwise another event loop has taken over
                for call in (*self._sent, *self._waiting):  # none are left, unless this loop ends
                    call.answer.cancel()
                self._waiting, self._sent, self._task = [], [], None

    def _next(self) -> bool:
        waiting = [call for call in self._waiting if not call.answer.done()]
        self._sent = sorted(waiting[:_MAX_COMMANDS], key=lambda call: call.step.order)
        self._waiting = waiting[_MAX_COMMANDS:]
        return bool(self._sent)

    async def _deliver(self) -> None:
        outcomes: Sequence[A | Exception]
        try:
            outcomes = await self._send([call.step for call in self._sent])
        except Exception as error:  # noqa: BLE001 - the callers raise it
            outcomes = [error] * len(self._sent)
        for call, outcome in zip(self._sent, outcomes, strict=True):
            if call.answer.done():
                continue
            if isinstance(outcome, Exception):
                call.answer.set_exception(outcome)
                call.answer.exception()  # avoids asyncio's complaint if its caller was cancelled
            else:
                call.answer.set_result(outcome)
        self._sent = []
