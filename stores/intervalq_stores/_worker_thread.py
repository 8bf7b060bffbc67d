"""A thread that does a store's blocking work: job after job, in batches, and nothing for those who left.

`anyio.to_thread` can't do this: a thread that is blocked in a lock can't be called back, on asyncio each
one left behind is one more thread, and Python doesn't exit before the last of them has come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import anyio

from intervalq.store import Step

_LINGER: Final = 1.0
"""Seconds that an idle thread stays; a new one costs some 0.1 ms."""


class Job:
    """A step to do, who waits for it, and what came out. Made on the event loop of who waits."""

    def __init__(self, queue: str, step: Step[Any], now: int | None) -> None:
        self.queue = queue
        self.step = step
        self.now = now
        self.answer: Any = None
        self.error: BaseException | None = None
        self.stands = False
        """The answer or error holds whatever becomes of the batch."""
        self.taken = False
        """The clerk has begun with the batch that it is in."""
        self.finished = False
        self.left = False
        """Nobody waits any more: don't begin with it."""
        self._done = anyio.Event()
        self._call_soon = call_soon()

    async def wait(self, seconds: float) -> None:
        """Until it's finished, or for so long; then, and when cancelled, it's left."""
        try:
            with anyio.move_on_after(seconds):
                await self._done.wait()
        finally:
            self.left = True

    def finish(self, error: BaseException | None) -> None:
        """Tell who waits; an error is that of the batch."""
        if error is not None and not self.stands:
            self.error = error
        self.finished = True
        with contextlib.suppress(RuntimeError):  # that event loop is closed: nobody waits there
            self._call_soon(self._done.set)


class WorkerThread:
    """Does jobs in a thread of its own, which runs only while there are some."""

    def __init__(self, do: Callable[[Callable[[], list[Job]]], None], rest: Callable[[], None]) -> None:
        """Make one that calls `do` whenever there are jobs, and `rest` when there have been none for a while.

        Args:
            do: is given a function that takes the jobs then waiting, to be called when they can be done. Each
                job gets its answer or error; what `do` raises is the error of all that don't stand by then.
            rest: is called in the same thread before that ends. It raises nothing.
        """
        self.pid = os.getpid()
        """The process it works in: a forked child has no such thread."""
        self._do = do
        self._rest = rest
        self._jobs: list[Job] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._changed = threading.Condition()

    def put(self, job: Job) -> None:
        """Have a job done.

        Raises:
            RuntimeError: no thread can be started.
        """
        with self._changed:
            self._closing = False
            if self._thread is None:
                # A daemon: a process can exit while the thread is blocked in a lock.
                thread = threading.Thread(target=self._run, name="intervalq-file-store", daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """End the thread once its jobs are done; a new job starts another."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        while self._has_jobs():
            batch: list[Job] = []

            def take(batch: list[Job] = batch) -> list[Job]:
                batch.extend(self._take())
                return batch

            failed: BaseException | None = None
            try:
                self._do(take)
            except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
                failed = error
                if not batch:
                    take()
            for job in batch:
                job.finish(failed)

    def _has_jobs(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing, _LINGER)
            if self._jobs:
                return True
        self._rest()
        with self._changed:
            if not self._jobs:  # there may be some again
                self._thread = None
            return bool(self._jobs)

    def _take(self) -> list[Job]:
        with self._changed:
            jobs = [job for job in self._jobs if not job.left]
            self._jobs.clear()
        for job in jobs:
            job.taken = True
        return jobs


def call_soon() -> Callable[[Callable[[], None]], object]:
    """How another thread runs something on the event loop that calls this."""
    if "trio" in sys.modules:
        import trio  # noqa: PLC0415 - only where it is there already

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
