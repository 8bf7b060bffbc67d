"""Calls a function that runs tasks: at its pace, within its timeout, and in a thread if it is plain."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final, Generic, TypeVar

import anyio
from anyio import to_thread

from intervalq._queue.slot import Slot, in_time
from intervalq._timing.backoff import backoff
from intervalq.errors import IntervalqError, TransactionConflict
from intervalq.tasks._worker.job import Job

A = TypeVar("A")

log: Final = logging.getLogger("intervalq")

_CONFLICTS: Final = 5
"""How many times a function is run again if its transaction conflicts with another one."""


class Calls(Generic[A]):
    """The calls of one function for claims, or for chunks."""

    def __init__(
        self,
        job: Job,
        function: Callable[[A], Any],
        slot: Callable[[A], AbstractAsyncContextManager[Slot] | None],
        began: Callable[[A, Slot | None], bool],
        tell: Callable[[A], Awaitable[bool]],
    ) -> None:
        """Prepare calls of a job.

        Args:
            job: how its function is called.
            function: calls the job's function.
            slot: the slot that a paced call waits for; None: it waits for none.
            tell: tells the store, once its slot has come, that a paced call is about to begin, if the store
                must know that before; returns whether it was told now.
            began: called when a paced function is about to begin, with its slot; returns whether it may.
        """
        self._job = job
        self._function = function
        self._slot = slot
        self._began = began
        self._tell = tell
        self._waits: set[anyio.CancelScope] = set()  # for slots
        self._is_async = inspect.iscoroutinefunction(job.function)
        untimed: Callable[[A], Awaitable[Any]] = function if self._is_async else self._in_thread
        self._call = untimed if job.timeout is None else self._timed
        self.begin = self._call if job.pace is None else self._paced

    async def _paced(self, given: A) -> Any:  # noqa: ANN401 - the function's result
        while True:
            try:
                coming, slot = self._slot(given), None
            except Exception:
                self._begins(given, None)  # the user's choice failed, which is a failed attempt
                raise
            async with AsyncExitStack() as stack:
                if coming is not None:
                    slot = await self._entered(stack, coming)
                if await self._tell(given) and slot is not None and not in_time(slot):
                    continue  # by its next slot, the store knows
                self._begins(given, slot)
                return await self._call(given)

    async def _entered(self, stack: AsyncExitStack, coming: AbstractAsyncContextManager[Slot]) -> Slot:
        slot: Slot | None = None
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                slot = await stack.enter_async_context(coming)
            except IntervalqError as error:
                log.warning("a task of queues %s got no slot: %s", ", ".join(self._job.queues), error)
                raise NoSlotError from error
            finally:
                self._waits.discard(scope)
        if slot is None or scope.cancel_called:
            raise NoSlotError
        return slot

    def _begins(self, given: A, slot: Slot | None) -> None:
        if not self._began(given, slot):
            raise NoSlotError

    def stop(self) -> None:
        """Prevent calls that still wait for a slot from beginning."""
        for scope in self._waits:
            scope.cancel()

    async def again(self, given: A) -> Any:  # noqa: ANN401 - as above
        """Run a function again, in another slot, after its transaction conflicted with another one."""
        for attempt in range(1, _CONFLICTS):
            await anyio.sleep(backoff(attempt, 0.01))
            try:
                return await self.begin(given)
            except TransactionConflict:
                pass
        return await self.begin(given)

    async def _timed(self, given: A) -> Any:  # noqa: ANN401 - as above
        with anyio.fail_after(self._job.timeout):
            return await (self._function(given) if self._is_async else self._in_thread(given))

    async def _in_thread(self, given: A) -> Any:  # noqa: ANN401 - as above
        # A limiter of its own: there may be more runners than shared threads.
        own = anyio.CapacityLimiter(1)
        result = await to_thread.run_sync(self._function, given, abandon_on_cancel=True, limiter=own)
        return await result if inspect.isawaitable(result) else result


class NoSlotError(Exception):
    """The task got no slot, or may no longer begin."""
