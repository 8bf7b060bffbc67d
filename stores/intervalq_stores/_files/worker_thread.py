"""A thread for a store's blocking work: it does jobs in batches, and skips jobs whose callers have left.

`anyio.to_thread` is not suitable: a thread that is blocked in a lock can't be cancelled, so each abandoned
call on asyncio leaves a thread behind, and Python doesn't exit before the last of them has returned.
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

from intervalq.store import stopwatch

_LINGER: Final = 1.0
"""Seconds after which an idle thread ends; a new one costs about 0.1 ms."""


class Job:
    """The waiter for a piece of work, and its outcome. Created on the event loop of the waiter."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self.stands = False
        """Whether the answer or error is final, whatever happens to the batch."""
        self.taken = False
        """Whether the thread has begun with its batch."""
        self.finished = False
        self.finished_at = 0
        """When it was finished, on `stopwatch`; its waiter may be woken later."""
        self.left = False
        """Whether nobody waits any more, so that it must not be begun."""
        self._done = anyio.Event()
        self._call_soon = call_soon()

    async def wait(self, seconds: float) -> None:
        """Wait until it is finished, but at most `seconds`; then, or if cancelled, mark it as left."""
        try:
            with anyio.move_on_after(seconds):
                await self._done.wait()
        finally:
            self.left = True

    def finish(self, error: BaseException | None) -> None:
        """Wake the waiter; `error` is that of the batch."""
        if error is not None and not self.stands:
            self.error = error
        self.finished, self.finished_at = True, stopwatch()
        with contextlib.suppress(RuntimeError):  # that event loop is closed, so nobody waits
            self._call_soon(self._done.set)


class WorkerThread:
    """Does jobs in a thread of its own, which runs only while there are some."""

    def __init__(self, do: Callable[[Callable[[], list[Job]]], None], rest: Callable[[], None]) -> None:
        """`do` is called whenever there are jobs, and `rest` when there have been none for a while.

        Args:
            do: gets a function that takes the waiting jobs, to be called when they can be done. It sets each
                job's answer or error; an error that it raises is that of all jobs that don't stand by then.
                It may return without a call once nobody waits.
            rest: called in the same thread before it ends. It must not raise.
        """
        self.pid = os.getpid()
        """The process that has the thread: a forked child has no such thread."""
        self._do = do
        self._rest = rest
        self._jobs: list[Job] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._changed = threading.Condition()

    def put(self, job: Job) -> None:
        """Queue a job.

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

    def wanted(self) -> bool:
        """Whether anybody waits for a job that hasn't been taken; abandoned jobs are forgotten."""
        with self._changed:
            self._jobs = [job for job in self._jobs if not job.left]
            return bool(self._jobs)

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
            except BaseException as error:  # noqa: BLE001 - it is raised in the waiters
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
            if not self._jobs:  # new ones may have come
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
    """A function with which another thread can run something on the calling event loop."""
    if "trio" in sys.modules:
        import trio  # noqa: PLC0415 - only if it is already imported

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
