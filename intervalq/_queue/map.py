"""`queue.map` and `map_all`: many calls at the queue's pace, with at most a window of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, Unpack, overload

import anyio

from intervalq._queue.attempts import start
from intervalq._queue.held import HOLDING, held_here, waiting
from intervalq._queue.job import RunningJob
from intervalq._queue.keywords import MapOptions
from intervalq._queue.options import Cost, Settle, whole
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Planning, Queue
from intervalq._timing.backends import spawn
from intervalq.errors import ConfigMismatch, JobCancelled, QueueClosed, StoreError

T = TypeVar("T")
R = TypeVar("R")


class Mapped(NamedTuple, Generic[T, R]):
    """The outcome of one item of `map_all`."""

    item: T
    result: R | None
    """What the function returned; None if it failed."""
    error: Exception | None
    """What it raised; None: nothing."""


class Maps:
    """The part of an `IntervalQueue` that calls a function for each of many items."""

    @overload
    def map(
        self: Planning,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        settle: Settle[R] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[R, None]: ...

    @overload
    def map(
        self: Planning,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        settle: Settle[R] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[R, None]: ...

    def map(
        self: Planning,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        ordered: bool = False,
        window: int = 64,
        cost: Cost = 1,
        settle: Settle[Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call the function for each item at the queue's pace, and yield the results.

        Args:
            function: as for `add`.
            items: read as they are needed: at most `window` of them wait, run, or have an unread result, so
                memory is bounded whatever their number.
            ordered: yield results in the order of the items; False: as they are ready.
            window: see `items`.
            cost: of each call, as for `add`.
            settle: as for `add`.

        If the function raises, the iteration ends with that error, and the other jobs are cancelled: see
        `map_all`.
        """
        plan = self._plan(cost=cost, settle=settle)
        return _results(
            partial(_Feed, self, function, items, plan, ordered=ordered, window=whole("window", window, 1))
        )

    @overload
    def map_all(
        self: Planning,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        settle: Settle[R] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Mapped[T, R], None]: ...

    @overload
    def map_all(
        self: Planning,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        settle: Settle[R] | None = None,
        **options: Unpack[MapOptions],
    ) -> AsyncGenerator[Mapped[T, R], None]: ...

    def map_all(
        self: Planning,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        ordered: bool = False,
        window: int = 64,
        cost: Cost = 1,
        settle: Settle[Any] | None = None,
    ) -> AsyncGenerator[Mapped[Any, Any], None]:
        """As `map`, but go on after errors, and yield `(item, result, error)` for each item.

        An error of the queue itself still ends the iteration, except `SlotTimeout`, which is that of an item.
        """
        plan = self._plan(cost=cost, settle=settle)
        return _outcomes(
            partial(_Feed, self, function, items, plan, ordered=ordered, window=whole("window", window, 1))
        )


async def _results(make: Callable[[], _Feed]) -> AsyncGenerator[Any, None]:
    async with aclosing(_ended(make)) as ended:
        async for job, _ in ended:
            yield await job


async def _outcomes(make: Callable[[], _Feed]) -> AsyncGenerator[Mapped[Any, Any], None]:
    async with aclosing(_ended(make)) as ended:
        async for job, item in ended:
            try:
                made = Mapped(item, await job, None)
            except (QueueClosed, StoreError, ConfigMismatch, JobCancelled):
                raise
            except Exception as error:  # noqa: BLE001 - the function's own
                made = Mapped(item, None, error)
            yield made


async def _ended(make: Callable[[], _Feed]) -> AsyncGenerator[tuple[RunningJob[Any], Any], None]:
    """The jobs that have ended, with their items."""
    feed, held = make(), held_here() if HOLDING.get() else ()
    spawn(feed.run)
    try:
        while True:
            if held:
                async with waiting(feed.queue._shard(), held, feed.is_running):
                    ended = await feed.next_job()
            else:
                ended = await feed.next_job()
            if ended is None:
                return
            yield ended
    finally:
        feed.stop()


class _Feed:
    """Reads items in the background and adds their jobs, as long as the window has room."""

    def __init__(
        self,
        queue: Queue,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        plan: Plan,
        *,
        ordered: bool,
        window: int,
    ) -> None:
        self.queue = queue
        self._function, self._plan = function, plan
        self._items = items
        self._ordered = ordered
        self._room = anyio.Semaphore(window)
        self._unread: dict[RunningJob[Any], Any] = {}
        """The jobs whose results were not yielded, with their items."""
        self._ready: deque[RunningJob[Any]] = deque()
        self._begun = self._over = False
        self._error: Exception | None = None
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        try:
            with self._scope:
                async with aclosing(_each(self._items)) as items:
                    async for item in items:
                        await self._room.acquire()
                        if self._over:
                            return
                        job = start(self.queue, self._function, (item,), self._plan)
                        self._unread[job] = item
                        self._begun = True
                        if self._ordered:
                            self._ready.append(job)
                            self._changed.set()
                        else:
                            job.when_done(partial(self._done, job))
        except Exception as error:  # noqa: BLE001 - from the items or a closed queue; raised to the consumer
            self._error = error
        except BaseException:
            self._error = JobCancelled(self.queue.name)  # not all items were read
            raise
        finally:
            self._over = True
            self._changed.set()

    def _done(self, job: RunningJob[Any]) -> None:
        self._ready.append(job)
        self._changed.set()

    async def next_job(self) -> tuple[RunningJob[Any], Any] | None:
        """The next job whose result is to be yielded, and its item; None: there are no more."""
        while not self._ready:
            if self._over and not self._unread:
                if self._error is not None:
                    raise self._error
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        job = self._ready.popleft()
        await job.ended()
        item = self._unread.pop(job)
        self._room.release()
        return job, item

    def is_running(self) -> bool:
        """Whether the next result needs no further slot; unknown, and False, before the first job."""
        if self._ready:
            return self._ready[0].done or self._ready[0]._waiter.gone
        return self._begun and all(job._waiter.gone for job in self._unread)

    def stop(self) -> None:
        """Read no more items, and cancel jobs whose results were not yielded."""
        self._over = True
        self._scope.cancel()
        for job in self._unread:
            job.cancel()


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
