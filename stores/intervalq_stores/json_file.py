"""`file:///path/state.json`: all queues in one JSON file, shared by the processes of one machine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote_to_bytes, urlsplit

import anyio
from anyio import to_thread

from intervalq.errors import InvalidOption, StoreError, StoreTimeout, StoreUnavailable
from intervalq.store import DocumentStore, Step, T, wall_clock
from intervalq_stores import _shared_file
from intervalq_stores._clerk import Clerk, Job
from intervalq_stores._document import Document
from intervalq_stores._file_advice import advise
from intervalq_stores._shared_file import SharedFile

_POLL: Final = 0.05
"""Seconds between two looks at the file by somebody who waits for the end of a hold."""


class JSONFileStore(DocumentStore):
    """Records in one file: read, changed and replaced as a whole under a lock, one process at a time."""

    patience = 10.0
    """How many seconds a step may wait for the lock and the disk. A step takes about a millisecond, so that
    even hundreds of processes get their turn in this time, and a longer wait means that the holder hangs."""

    def __init__(self, url: str) -> None:
        self._path = _path(url)
        self.url = self._path.as_uri()
        if not _shared_file.HAS_FLOCK:
            raise StoreError(
                self.url,
                "this platform has no flock, which makes the steps of several processes one at a time: use "
                "redis:// or postgresql://, or memory:// within one process",
            )
        self._file = SharedFile(self._path, self.url)
        self._clerk = Clerk(self._do)

    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """See `DocumentStore.update`. A step whose caller left while it waited for the lock is not done."""
        if self._clerk.pid != os.getpid():
            self._file, self._clerk = SharedFile(self._path, self.url), Clerk(self._do)
        job = Job(queue, step, now)
        try:
            self._clerk.put(job)
        except RuntimeError as error:
            raise StoreUnavailable(self.url, f"no thread can be started to use it: {error}") from error
        await job.wait(self.patience)
        if not job.finished:
            raise StoreTimeout(self.url, self._why_late(job))
        if job.error is not None:
            raise job.error
        return cast("T", job.answer)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return (await to_thread.run_sync(self._read, abandon_on_cancel=True)).names()

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self._clerk.close()

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`: looks at the file while somebody waits, and reads it when it has changed."""
        seen = self._signature()

        async def woken() -> None:
            nonlocal seen
            while True:
                there = self._signature()
                if there != seen:
                    seen = there
                    if not await to_thread.run_sync(self._is_held, queue, abandon_on_cancel=True):
                        return
                await anyio.sleep(_POLL)

        yield woken

    async def advice(self) -> list[tuple[str, str]]:
        """Say what `doctor` shows: pairs of `ok`, `warning` or `error`, and a sentence with the remedy."""
        return await to_thread.run_sync(advise, self._path, self.url, abandon_on_cancel=True)

    def _do(self, take: Callable[[], list[Job]]) -> None:
        """Do all the jobs that wait in one go: they share one reading, one writing, and the wait for both."""
        with self._file.locked():
            jobs = take()
            if not jobs:
                return
            document = self._read()
            changed = False
            for job in jobs:
                try:
                    changed |= _step(document, job)
                except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
                    job.error = error
                job.stands = job.error is not None or not changed
            if changed:
                self._file.replace(document.to_bytes())

    def _read(self) -> Document:
        return Document(self._file.read(), self.url)

    def _is_held(self, queue: str) -> bool:
        try:
            state = self._read().get(queue)
        except StoreError:
            return False  # its next step tells who waits
        return state is not None and state.held_since is not None

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116 - called twenty times a second
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _why_late(self, job: Job) -> str:
        if self._file.waiting:
            return (
                f"its lock was not free for {self.patience:g} s, it is held by {self._file.holder()}, and "
                "nothing was done: if that process hangs, end it, and the lock is free"
            )
        done = "whether the step was done is not known" if job.taken else "nothing was done"
        return f"the disk did not answer in {self.patience:g} s, {done}: see what keeps the machine busy"


def _step(document: Document, job: Job) -> bool:
    """Do a job on the document; whether this changed it."""
    at = wall_clock() if job.now is None else job.now
    before = document.get(job.queue)
    after, job.answer = job.step(before, at)
    if after is before:
        return False
    if before is None and job.now is None:  # a new one makes room: idle keyed queues leave nothing behind
        document.forget_lapsed(at)
    document.put(job.queue, after)
    return True


def _path(url: str) -> Path:
    """Tell the path that a URL names, with its percent signs decoded."""
    try:
        parts = urlsplit(url)
        path = os.fsdecode(unquote_to_bytes(parts.path))
    except ValueError as error:
        raise InvalidOption(f"not a URL of a file: {error}") from error
    if parts.netloc not in {"", "localhost"}:
        raise InvalidOption(
            "a file store is on this machine: write file:///path/state.json with three slashes, or the path"
        )
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise InvalidOption(
            "a file store has no options: write ? as %3F and # as %23 if they belong to the path"
        )
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidOption("a file store needs the whole path of a file, as in file:///path/state.json")
    return Path(path)
