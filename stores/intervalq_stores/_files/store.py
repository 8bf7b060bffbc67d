"""The common part of stores in files: steps in a thread under a lock, bounded waits, wake-ups."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote_to_bytes, urlsplit

import anyio
from anyio import to_thread

from intervalq import rules
from intervalq.errors import InvalidOption, StoreError, StoreTimeout, StoreUnavailable
from intervalq.rules import Answer, Command, State
from intervalq.store import (
    DocumentStore,
    PairStep,
    Step,
    StoredSchedules,
    Swapped,
    T,
    keyed_step,
    stopwatch,
    wall_clock,
)
from intervalq_stores._files.jobs import PairJob, StepJob, SwapJob
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores._files.worker_thread import Job, WorkerThread

if TYPE_CHECKING:  # few queues have keys under one rate
    from intervalq.keyed import Common, KeyedAnswer

_POLL: Final = 0.05
"""Seconds between two checks of the file by a shard that waits for the end of a hold."""


class ThreadedFile(ABC):
    """A local file, which is changed under a lock by one process at a time, in a thread."""

    url: str

    patience = 10.0
    """How many seconds a step may wait for the lock and the disk. A step takes about a millisecond, so even
    hundreds of processes get their turn in this time, and a longer wait means that the holder hangs."""

    def __init__(self, url: str, path: Path) -> None:
        """`url` must be safe to display."""
        self.url = url
        self._path = path
        self._begin()

    async def _ask(self, job: Job) -> Any:  # noqa: ANN401 - the type depends on the job
        """Do a job, and return its answer; if the caller leaves before it is taken, it is not done."""
        if self._thread.pid != os.getpid():
            self._begin()
        try:
            self._thread.put(job)
        except RuntimeError as error:
            raise StoreUnavailable(self.url, f"can't start a thread to use it: {error}") from error
        await job.wait(self.patience)
        if not job.finished:
            raise StoreTimeout(self.url, self._why_late(job))
        if job.error is not None:
            raise job.error
        return job.answer

    async def aclose(self) -> None:
        """Close the file once all jobs are done; it opens again when it is used again."""
        self._thread.close()

    def _begin(self) -> None:
        """Create what belongs to one process: a forked child has no such thread, and must not share files."""
        self._file = self._shared()
        self._thread = WorkerThread(self._do, self._rest)

    def _shared(self) -> SharedFile:
        return SharedFile(self._path, self.url)

    @abstractmethod
    def _do(self, take: Callable[[], list[Job]]) -> None:
        """Do all waiting jobs together: they share one read, one write, and the wait for both."""

    def _rest(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is only needed while there are jobs."""

    def _why_late(self, job: Job) -> str:
        return self._why_no_answer(self._file, "it is unknown whether the step was done" if job.taken else "")

    def _why_no_answer(self, file: SharedFile, doubt: str = "") -> str:
        if file.waiting:
            return (
                f"its lock was not free for {self.patience:g} s, and nothing was done; the holder is "
                f"{file.holder()}: if that process hangs, end it, which frees the lock"
            )
        done = doubt or "nothing was done"
        return f"the disk did not answer in {self.patience:g} s, {done}: check what keeps the machine busy"


class FileStore(ThreadedFile, DocumentStore):
    """A store of records in such a file."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`. The trip ends when the step is done: a busy event loop hears of that later."""
        job = StepJob(queue, lambda state, at: rules.apply(state, command, at), now)
        sent = stopwatch()
        answer = cast("Answer", await self._ask(job))
        return replace(answer, trip=(sent, job.finished_at))

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`, and `apply`."""
        job = PairJob(queue, known.record, keyed_step(command, known), now)
        sent = stopwatch()
        made = cast("KeyedAnswer", await self._ask(job))
        return made._replace(answer=replace(made.answer, trip=(sent, job.finished_at)))

    async def update_pair(self, queue: str, common: str, step: PairStep[T], now: int | None) -> T:
        """See `DocumentStore.update_pair`, and `update`."""
        return cast("T", await self._ask(PairJob(queue, common, step, now)))

    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """See `DocumentStore.update`. A step whose caller leaves while it waits for the lock is not done."""
        return cast("T", await self._ask(StepJob(queue, step, now)))

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        found = await to_thread.run_sync(self._schedules, abandon_on_cancel=True)
        wanted = {name: text for name, text in found.items() if names is None or name in names}
        return StoredSchedules(wall_clock() if now is None else now, wanted)

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`, and `update`."""
        return cast("Swapped", await self._ask(SwapJob(name, known, text, earliest, now)))

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return await to_thread.run_sync(self._names, abandon_on_cancel=True)

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`: polls the file while somebody waits, and reads it when it has changed."""
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
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence with the remedy."""
        return await to_thread.run_sync(self._advise, abandon_on_cancel=True)

    @abstractmethod
    def _names(self) -> list[str]:
        """List the queues that have a record, sorted; in any thread, and without the lock."""

    @abstractmethod
    def _schedules(self) -> dict[str, str]:
        """The texts of all schedules; in any thread, and without the lock."""

    @abstractmethod
    def _get(self, queue: str) -> State | None:
        """Look up a record; in any thread, and without the lock."""

    @abstractmethod
    def _signature(self) -> Hashable:
        """A value that differs after every change; called twenty times a second."""

    @abstractmethod
    def _advise(self) -> list[tuple[str, str]]: ...

    def _is_held(self, queue: str) -> bool:
        try:
            state = self._get(queue)
        except StoreError:
            return False  # the next step will report the error
        return state is not None and state.held_since is not None


def stamp(path: str) -> tuple[int, int, int] | None:
    """The identity, modification time and size of the file at a path; None: there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called often
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def path_of(url: str, example: str) -> Path:
    """The path in a URL, with percent escapes decoded; `example` is a valid URL for errors."""
    try:
        parts = urlsplit(url)
        path = os.fsdecode(unquote_to_bytes(parts.path))
    except ValueError:  # its message may contain a part of a password
        raise InvalidOption(f"this is not the URL of a file: write {example}") from None
    if parts.netloc not in {"", "localhost"}:
        raise InvalidOption(f"a file store is on this machine: write {example}, with three slashes")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise InvalidOption(
            "a file store has no options: write ? as %3F and # as %23 if they belong to the path"
        )
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidOption(f"a file store needs the whole path of a file, as in {example}")
    if os.name == "nt" and path[2:3] == ":":  # /C:/Users/...
        return Path(path[1:])
    return Path("/" + path.lstrip("/"))  # Path would keep two leading slashes
