"""`file:///path/state.json`: each ledger in a JSON file of its own, in the folder `state.json.ledgers`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from anyio import to_thread

from intervalq.errors import InvalidName, StoreFull, StoreUnavailable
from intervalq.ledger.rules import Answer, Command, Count, Forget, Look, MemoryBook, apply
from intervalq.store import wall_clock
from intervalq_stores._files.jobs import LedgerJob
from intervalq_stores._files.locked_file import MAX_BYTES
from intervalq_stores._files.store import ThreadedFile, path_of
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.json._ledger_document import read, written

_EXAMPLE: Final = "file:///path/state.json"
_END: Final = ".json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""The pattern of names of ledgers, which can't lead out of the folder."""


class _TooLargeError(Exception):
    """The document would be too large, so nothing was written."""


class JSONLedgerStore:
    """Ledgers of one machine: a document is read, changed and replaced as a whole, under a lock beside it.

    A command is atomic as a whole; commands that wait at the same time share a read and a write. The document
    is rewritten each time, so this store is for ledgers of some thousands of rows, and refuses larger ones.
    """

    def __init__(self, url: str) -> None:
        path = path_of(url, _EXAMPLE)
        self.url = path.as_uri()
        self._folder = path.with_name(f"{path.name}.ledgers")
        self._files: dict[str, _LedgerFile] = {}
        self._of("a")  # fails at once on a platform without such locks
        self._files.clear()

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`. A command whose caller leaves while it waits for the lock is not done."""
        file = self._of(ledger)
        if isinstance(command, Look | Count):
            return await to_thread.run_sync(file.look, command, now, abandon_on_cancel=True)
        asked = LedgerJob(ledger, command, now)
        answer = await file.ask(asked)
        if asked.made and now is None:  # a new ledger removes expired ones
            for other in await to_thread.run_sync(lambda: self._there()[1], abandon_on_cancel=True):
                await self._of(other).ask(LedgerJob(other, Forget((), ()), None))
        return answer

    async def names(self) -> list[str]:
        """See `LedgerStore.names`."""
        return await to_thread.run_sync(lambda: self._there()[0], abandon_on_cancel=True)

    async def aclose(self) -> None:
        """See `LedgerStore.aclose`."""
        for file in self._files.values():
            await file.aclose()

    def _of(self, ledger: str) -> _LedgerFile:
        if ledger not in self._files:
            if not _NAME.fullmatch(ledger):
                raise InvalidName(ledger)
            self._files[ledger] = _LedgerFile(self.url, self._folder / f"{ledger}{_END}", ledger)
        return self._files[ledger]

    def _there(self) -> tuple[list[str], list[str]]:
        """The existing ledgers, and those that have expired."""
        try:
            found = sorted(path.name for path in self._folder.iterdir() if path.name.endswith(_END))
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise StoreUnavailable(
                self.url, f"its folder can't be read: {error.strerror}: check that folder"
            ) from error
        there: list[str] = []
        expired: list[str] = []
        now = wall_clock()
        for name in (file.removesuffix(_END) for file in found):
            with suppress(InvalidName):  # not a file of ours
                meta = self._of(name).read().meta
                if meta is not None:
                    (there if meta.expires is None or meta.expires > now else expired).append(name)
        return there, expired


class _LedgerFile(ThreadedFile):
    """The document of one ledger."""

    def __init__(self, url: str, path: Path, ledger: str) -> None:
        self._ledger = ledger
        super().__init__(url, path)

    async def ask(self, job: LedgerJob) -> Answer:
        """Do a command."""
        answer: Answer = await self._ask(job)
        return answer

    def look(self, command: Command, now: int | None) -> Answer:
        """Do a command that changes nothing; in any thread, and without the lock."""
        return apply(self.read(), command, wall_clock() if now is None else now)

    def read(self) -> MemoryBook:
        """The ledger in the file; in any thread, and without the lock."""
        return read(self._shared().read(), self._ledger, self.url)

    def _do(self, take: Callable[[], list[Job]]) -> None:
        with self._file.locked():
            jobs = take()
            try:
                self._batch(jobs)
            except _TooLargeError:
                for job in jobs:  # one by one, so that jobs that don't make it larger are done
                    self._alone(job)

    def _alone(self, job: Job) -> None:
        try:
            self._batch([job])
        except _TooLargeError:
            job.error = StoreFull(
                self.url,
                f"ledger {self._ledger!r} would have more than {MAX_BYTES} bytes, so nothing was written: "
                "use a SQLite database (sqlite:///path/state.db), which is not rewritten, or a server",
            )
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiters
            job.error = error
        job.stands = True

    def _batch(self, jobs: list[Job]) -> None:
        before = self._file.read()
        book = read(before, self._ledger, self.url)
        for job in jobs:
            assert isinstance(job, LedgerJob)
            job.made = book.meta is None
            job.answer = apply(book, job.command, wall_clock() if job.now is None else job.now)
            job.made &= book.meta is not None
        after = None if book.meta is None else written(book, self._ledger)
        if after is None:
            if before is not None:
                self._remove()
        elif len(after) > MAX_BYTES:
            raise _TooLargeError
        elif after != before:
            self._file.replace(after)

    def _remove(self) -> None:
        """Remove the document and its lock file; waiters then lock the next one, as `SharedFile` does."""
        self._file.still_locked()
        try:
            self._path.unlink()
            self._file.lock_path.unlink()
        except OSError as error:
            raise StoreUnavailable(
                self.url, f"a ledger can't be removed: {error.strerror}: let this user write its folder"
            ) from error
