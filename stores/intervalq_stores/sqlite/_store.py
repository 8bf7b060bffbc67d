"""The common part of the three kinds of SQLite stores: their steps, and waiting for other programs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

from intervalq.errors import InsecurePath, InvalidOption, StoreTimeout
from intervalq_stores._files.advice import NETWORK, file_system
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores._files.store import ThreadedFile, path_of
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.sqlite._file import BESIDE, SQLiteFile
from intervalq_stores.sqlite._fork_guard import FORK_GUARD

T = TypeVar("T")
D = TypeVar("D", bound=SQLiteFile)

_EXAMPLE: Final = "sqlite:///path/state.db"
_RETRY: Final = 0.005
"""Seconds between two tries to get a database that another program holds."""


class SQLiteBase(ThreadedFile, Generic[D]):
    """Steps in a database that other programs may use, too; it refuses network disks, where SQLite breaks."""

    keeps: ClassVar[str]
    """What it keeps, for errors."""
    _database: D

    def __init__(self, url: str) -> None:
        rest = url.partition(":")[2].strip("/")
        if rest in {"", ":memory:"}:
            raise InvalidOption(
                f"{self.keeps} in the memory of one process are memory://, and a database is {_EXAMPLE}"
            )
        path = path_of(url, _EXAMPLE)
        self._foreign = False
        """Whether another program held the database at the last try."""
        self._is_local = False
        super().__init__(f"sqlite{path.as_uri().removeprefix('file')}", path)

    @abstractmethod
    def _batch(self, jobs: list[Job]) -> None:
        """Do jobs in the transaction that has begun, and commit it."""

    def _do(self, take: Callable[[], list[Job]]) -> None:
        """Do the jobs as soon as no other program holds the database; each waiter has its own bound."""
        self._refuse_network()
        while not self._attempt(take) and self._thread.wanted():
            time.sleep(_RETRY)

    def _attempt(self, take: Callable[[], list[Job]]) -> bool:
        with self._file.locked(), FORK_GUARD.inside():
            self._foreign = not self._database.begin(write=True)
            if self._foreign:
                return False  # the lock is free meanwhile, so errors of its waiters name the right holder
            try:
                self._batch(take())
            except BaseException:
                self._database.close()
                raise
        return True

    def _rest(self) -> None:
        with FORK_GUARD.inside():
            self._database.close()

    def _shared(self) -> SharedFile:
        return SharedFile(self._path, self.url, BESIDE)

    def _retried(self, attempt: Callable[[], T | None]) -> T:
        """Repeat an attempt until it isn't None, which means that another program holds the database."""
        self._refuse_network()
        end = time.monotonic() + self.patience
        while (done := attempt()) is None:
            if time.monotonic() >= end:
                raise StoreTimeout(self.url, self._why_held())
            time.sleep(_RETRY)
        return done

    def _refuse_network(self) -> None:
        if self._is_local:
            return
        folder = self._path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        kind = file_system(folder)
        if kind in NETWORK:
            raise InsecurePath(
                self.url,
                f"it is on a network file system ({kind}), where SQLite's log breaks: keep it "
                "on a local disk, or use a store with a server",
            )
        self._is_local = True

    def _why_late(self, job: Job) -> str:
        return self._why_held() if self._foreign else super()._why_late(job)

    def _why_held(self) -> str:
        return (
            f"another program held the database for {self.patience:g} s, and nothing was done: find it with "
            f"`fuser {self._path.name!a}` in its folder, and end its transaction"
        )
