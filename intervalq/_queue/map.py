"""`queue.map`: the results of many calls at the queue's pace, with at most a window of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio

from intervalq._queue.attempts import start
from intervalq._queue.held import HOLDING, held_here, waiting
from intervalq._queue.job import RunningJob
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Queue
from intervalq._timing.backends import spawn
from intervalq.errors import JobCancelled


async def paced_map(
    queue: Queue,
    function: Callable[[Any], Any],
    items: Iterable[Any] | AsyncIterable[Any],
    plan: Plan,
    *,
    ordered: bool,
    window: int,
) -> AsyncGenerator[Any, None]:
    """See `IntervalQueue.map`."""
    feed = _Feed(queue, function, items, plan, ordered=ordered, window=window)
    held = held_here() if HOLDING.get() else ()
    spawn(feed.run)
    try:
        while True:
            if held:
                async with waiting(queue._shard(), held, feed.is_running):
                    job = await feed.next_job()
            else:
                job = await feed.next_job()
            if job is None:
                return
            yield await job
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
        self._queue, self._function, self._plan = queue, function, plan
        self._items = items
        self._ordered = ordered
        self._room = anyio.Semaphore(window)
        self._unread: dict[RunningJob[Any], None] = {}
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
                        job = start(self._queue, self._function, (item,), self._plan)
                        self._unread[job] = None
                        self._begun = True
                        if self._ordered:
                            self._ready.append(job)
                            self._changed.set()
                        else:
                            job.when_done(partial(self._done, job))
        except Exception as error:  # noqa: BLE001 - from the items or a closed queue; raised to the consumer
            self._error = error
        except BaseException:
            self._error = JobCancelled(self._queue.name)  # not all items were read
            raise
        finally:
            self._over = True
            self._changed.set()

    def _done(self, job: RunningJob[Any]) -> None:
        self._ready.append(job)
        self._changed.set()

    async def next_job(self) -> RunningJob[Any] | None:
        """The next job whose result is to be yielded; None: there are no more."""
        while not self._ready:
            if self._over and not self._unread:
                if self._error is not None:
                    raise self._error
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        job = self._ready.popleft()
        await job.ended()
        del self._unread[job]
        self._room.release()
        return job

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
