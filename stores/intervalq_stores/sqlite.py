"""`sqlite:///path/state.db`: all queues in one SQLite database, shared by the processes of one machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final, TypeVar

from intervalq.errors import InsecurePath, InvalidOption, StoreTimeout
from intervalq.rules import State
from intervalq.store import wall_clock
from intervalq_stores._clerk import Job
from intervalq_stores._database import BESIDE, Change, Database
from intervalq_stores._file_advice import NETWORK, Advice, advise, file_system
from intervalq_stores._file_store import ClerkedFile, FileStore, path_of, stamp
from intervalq_stores._fork_gate import GATE
from intervalq_stores._records import broken, parse, state_of
from intervalq_stores._shared_file import SharedFile

T = TypeVar("T")

_EXAMPLE: Final = "sqlite:///path/state.db"
_RETRY: Final = 0.005
"""Seconds between two tries to get a database that some other program holds."""
_TICK: Final = 20_000_000
"""Nanoseconds in which two changes of a file may have the same time: more than any system's tick."""


class SQLiteWaits(ClerkedFile):
    """The waits for a database that other programs use, too; not on a disk where SQLite breaks."""

    def __init__(self, url: str, path: Path) -> None:
        """Make one that isn't in use yet; `url` as it may be shown."""
        self._foreign = False
        """Another program held the database at the last try."""
        self._is_local = False
        super().__init__(url, path)

    def _shared(self) -> SharedFile:
        return SharedFile(self._path, self.url, BESIDE)

    def _retried(self, attempt: Callable[[], T | None]) -> T:
        """Try until it isn't None, which is that another program holds the database."""
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
                f"it lies on a network file system ({kind}), where SQLite's log breaks: keep it "
                "on a local disk, or use a store with a server",
            )
        self._is_local = True

    def _why_late(self, job: Job) -> str:
        return self._why_held() if self._foreign else super()._why_late(job)

    def _why_held(self) -> str:
        return (
            f"another program held the database for {self.patience:g} s, and nothing was done: see with "
            f"`fuser {self._path.name!a}` in its folder which one, and end its transaction"
        )


class SQLiteStore(SQLiteWaits, FileStore):
    """Records in a table, a step a transaction. The steps queue for a lock beside the database.

    SQLite's own way to wait, sleeping and trying, starves waiters: 0.7 s with four processes, against a few
    milliseconds. A connection is kept as long as jobs follow each other: one for each step costs a new log
    with it, 1.3 ms instead of a tenth of that.
    """

    def __init__(self, url: str) -> None:
        rest = url.partition(":")[2].strip("/")
        if rest in {"", ":memory:"}:
            raise InvalidOption(
                f"records in the memory of one process are memory://, and a database is {_EXAMPLE}"
            )
        path = path_of(url, _EXAMPLE)
        super().__init__(f"sqlite{path.as_uri().removeprefix('file')}", path)

    def _begin(self) -> None:
        super()._begin()
        self._database = Database(self._file)

    # --- steps --------------------------------------------------------------------------------------

    def _do(self, take: Callable[[], list[Job]]) -> None:
        self._retried(lambda: self._attempt(take))

    def _attempt(self, take: Callable[[], list[Job]]) -> bool | None:
        with self._file.locked(), GATE.inside():
            self._foreign = not self._database.begin(write=True)
            if self._foreign:
                return None  # without the lock meanwhile: those who wait for it are told of the right one
            try:
                self._batch(take())
            except BaseException:
                self._database.close()
                raise
        return True

    def _batch(self, jobs: list[Job]) -> None:
        changes: dict[str, Change] = {}
        sweep: int | None = None
        for job in jobs:
            known = changes.get(job.queue)
            text = known.text if known else self._database.read(job.queue)
            at = wall_clock() if job.now is None else job.now
            try:
                change = self._step(job, text, at)
            except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
                job.error = error
            else:
                if change is not None:
                    changes[job.queue] = change
                    if text is None and job.now is None:
                        sweep = at  # a new one makes room: idle keyed queues leave nothing behind
            job.stands = job.error is not None or not changes
        self._database.commit(changes, sweep)

    def _step(self, job: Job, text: object, at: int) -> Change | None:
        """Do a job on a record; None: this changed nothing."""
        data, before = self._record(job.queue, text)
        after, job.answer = job.step(before, at)
        if after is before:
            return None
        if after is None:
            return Change(None, None)
        try:  # fields that aren't known are kept
            written = json.dumps({**data, **after.to_dict()}, allow_nan=False)
        except (RecursionError, ValueError) as error:
            raise broken(job.queue, f"a field in it can't be written again: {error}", self.url) from error
        return Change.to(written, after)

    def _record(self, queue: str, text: object) -> tuple[dict[str, object], State | None]:
        if text is None:
            return {}, None
        if not isinstance(text, str):
            raise broken(queue, "it is not text", self.url)
        try:
            data = parse(text)
        except ValueError as error:
            raise broken(queue, f"it is not JSON: {error}", self.url) from error
        return data, state_of(data, queue, self.url)

    def _rest(self) -> None:
        with GATE.inside():
            self._database.close()

    # --- looks, in any thread -----------------------------------------------------------------------

    def _names(self) -> list[str]:
        return self._look(Database.names)

    def _get(self, queue: str) -> State | None:
        return self._record(queue, self._look(lambda database: database.read(queue)))[1]

    def _look(self, look: Callable[[Database], T]) -> T:
        def attempt() -> tuple[T] | None:
            database = Database(self._shared())
            with GATE.inside():
                try:
                    return (look(database),) if database.begin(write=False) else None
                finally:
                    database.close()

        return self._retried(attempt)[0]

    def _signature(self) -> Hashable:
        log = stamp(f"{self._path}-wal")
        # The log is written in place: of two changes within a tick the second shows once that has passed.
        past = log is None or time.time_ns() - log[1] > _TICK
        return stamp(str(self._path)), log, past

    def _advise(self) -> Advice:
        return advise(self._file, self._check)

    def _check(self) -> Advice:
        def look(database: Database) -> Advice:
            database.check()
            names = database.names()
            for name in names:
                self._record(name, database.read(name))
            return [
                ("ok", f"the database can be read and is whole: {len(names)} queues"),
                ("ok", f"its journal mode is {database.journal_mode or 'wal, once it is made'}"),
            ]

        return self._look(look)
