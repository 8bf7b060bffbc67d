"""A job that was added in the background: await it, see its place, cancel it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import anyio

from intervalq._queue.held import Held, held_here, waiting
from intervalq.errors import JobCancelled, QueueClosed, SlotTimeout
from intervalq.rules import Slot

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard
    from intervalq._shard.wait_queue import Waiter

R = TypeVar("R")

log: Final = logging.getLogger("intervalq")


class Job(Generic[R]):
    """Created by `IntervalQueue.add`. `await job` gives the function's result, or raises its error."""

    # Many jobs may wait, so attributes that a waiting job doesn't need have their defaults in the class.

    attempt = 0
    """How many times the function was started so far."""
    done = False
    """Whether the job has ended: with a result, with an error, or cancelled."""
    _awaited_by: Held = ()  # the slots held by code that waits for this job
    _slot: Grant | None = None
    _slot_of: Waiter | None = None
    _scope: anyio.CancelScope | None = None
    _ended: anyio.Event | None = None
    _when_done: Callable[[], None] | None = None
    _result: R | None = None
    _error: BaseException | None = None
    _trace: TracebackType | None = None  # it must not grow if the job is awaited twice
    _seen = False
    _task: int | None = None

    def __init__(self, shard: Shard, waiter: Waiter, kept: dict[Any, None]) -> None:
        self._shard = shard
        self._waiter = waiter  # the place in the wait queue of the latest attempt
        self._kept = kept  # has this job until it ends, so that closing can wait for it

    @property
    def ticket(self) -> int | None:
        """The job's ticket: that of its latest start, else the one that it will use if nothing changes.

        None: it has no ticket yet, because other jobs of its handle come first (see `add`), or the queue is
        held.
        """
        slot = self._place()
        return None if slot is None else slot.ticket

    @property
    def due(self) -> float | None:
        """The slot of `ticket` on the store's clock, in seconds since 1970; None: as for `ticket`."""
        slot = self._place()
        if isinstance(slot, Slot):
            return self._shard.due(slot)
        return None if slot is None else slot.due

    def cancel(self) -> None:
        """Take the job out of the queue, or cancel its function if it runs; do nothing if it has ended."""
        self._seen = True
        if self.done:
            return
        if self._waiter.start is not None:  # it has no task yet
            self._waiter.start = None
            self._shard.leave(self._waiter)
            self._error = JobCancelled(self._shard.queue)
            self._end()
            return
        self._scope = self._scope or anyio.CancelScope()
        self._scope.cancel()

    def __await__(self) -> Generator[Any, Any, R]:
        return self._wait().__await__()

    async def _wait(self) -> R:
        self._seen = True
        if not self.done and (held := held_here()):
            self._awaited_by += held
            try:
                async with waiting(self._shard, held, lambda: self._waiter.gone):
                    await self._end_of_it()
            finally:  # code that gives up waiting can end before this job does
                left = list(self._awaited_by)
                for slot in held:
                    left.remove(slot)
                self._awaited_by = tuple(left)
        await self._end_of_it()
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        return cast("R", self._result)

    def __del__(self) -> None:
        if self._error is not None and not self._seen and not isinstance(self._error, QueueClosed):
            log.error(
                "a job of queue %r failed and nobody awaited it", self._shard.queue, exc_info=self._error
            )

    async def _end_of_it(self) -> None:
        if not self.done:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    def _end(self) -> None:
        self.done = True
        self._kept.pop(self, None)
        if self._ended is not None:
            self._ended.set()
        if self._when_done is not None:
            self._when_done()

    def _place(self) -> Slot | Grant | None:
        if self._slot is not None and self._slot_of is self._waiter:
            return self._slot
        return self._shard.expected(self._waiter)


class RunningJob(Job[R]):
    """A job with the methods that the queue needs."""

    def begins(self, slot: Grant) -> None:
        """Note that an attempt begins."""
        self._slot, self._slot_of = slot, self._waiter
        self.attempt += 1

    async def carry(self, work: Callable[[], Awaitable[R]]) -> None:
        """Do the work, and keep its result or error for those who wait."""
        self._task = anyio.get_current_task().id
        self._scope = scope = self._scope or anyio.CancelScope()
        try:
            with scope:
                self._result = await work()
            if scope.cancelled_caught:
                self._error = JobCancelled(self._shard.queue)
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait for the job
            self._error, self._trace = error, error.__traceback__
        except BaseException as error:
            cancelled = anyio.get_cancelled_exc_class()
            if isinstance(error, cancelled) or (
                isinstance(error, BaseExceptionGroup) and error.subgroup(cancelled) is not None
            ):
                self._error = JobCancelled(self._shard.queue)
                raise
            self._error, self._trace = error, error.__traceback__
        finally:
            self._end()

    async def queued(self) -> None:
        """Wait until the job has the ticket that it should have by now, if any.

        Raises the error that kept the job from being queued. If its slot comes too late for it, that is the
        job's own error, as when it has waited for too long.
        """
        if self._waiter.error is None:
            within = self._waiter.within
            with anyio.move_on_after(None if within is None else within / 1e6):
                await self._shard.placed()
        if self._waiter.error is not None:
            await self._end_of_it()
        if self.done and self.attempt == 0 and self._error is not None:
            if isinstance(self._error, SlotTimeout):
                return
            self._seen = True
            raise self._error

    async def ended(self) -> None:
        """Wait until the job has ended in any way; return at once if called in the job itself."""
        if anyio.get_current_task().id != self._task:
            await self._end_of_it()

    def pass_on(self, future: Future[R]) -> None:
        """Give the outcome to a thread that waits for it."""
        self._seen = True
        if future.cancelled():
            return
        if isinstance(self._error, JobCancelled):
            future.cancel()
        elif self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(cast("R", self._result))

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once at the end, in the event loop."""
        self._when_done = callback
        if self.done:
            callback()
