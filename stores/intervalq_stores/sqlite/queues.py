"""`sqlite:///path/state.db`: all queues in one SQLite database, shared by the processes of one machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from intervalq.errors import CorruptState
from intervalq.rules import State
from intervalq.store import wall_clock
from intervalq_stores._files.advice import Advice, advise
from intervalq_stores._files.jobs import PairJob, StepJob, SwapJob
from intervalq_stores._files.json_records import broken, parse, renewed, state_of
from intervalq_stores._files.store import FileStore, stamp
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.sqlite._fork_guard import FORK_GUARD
from intervalq_stores.sqlite._queue_database import Change, Database
from intervalq_stores.sqlite._store import SQLiteBase

T = TypeVar("T")

_TICK: Final = 20_000_000
"""Nanoseconds within which two changes of a file may have the same timestamp: more than any system's tick."""


class SQLiteStore(SQLiteBase[Database], FileStore):
    """Records in a table, with one transaction per step. The steps queue for a lock beside the database.

    SQLite's own wait, which sleeps and retries, starves waiters: 0.7 s with four processes, instead of a few
    milliseconds. A connection is kept while jobs follow each other: a new one for each step would also create
    a new log, which takes 1.3 ms instead of a tenth of that.
    """

    keeps = "records"

    def _begin(self) -> None:
        super()._begin()
        self._database = Database(self._file)

    # --- steps --------------------------------------------------------------------------------------

    def _batch(self, jobs: list[Job]) -> None:
        changes: dict[str, Change] = {}
        schedules: dict[str, str | None] = {}
        sweep: int | None = None
        for job in jobs:
            if isinstance(job, SwapJob):
                self._swap(job, schedules)
                continue
            assert isinstance(job, StepJob | PairJob)
            names = (job.queue,) if isinstance(job, StepJob) else (job.queue, job.common)
            texts = [changes[name].text if name in changes else self._database.read(name) for name in names]
            at = wall_clock() if job.now is None else job.now
            try:
                made = self._step(job, texts, at)
            except BaseException as error:  # noqa: BLE001 - it is raised in the waiters
                job.error = error
            else:
                changes |= {name: change for name, change in zip(names, made, strict=True) if change}
                if made[0] is not None and texts[0] is None and job.now is None:
                    sweep = at  # a new record removes lapsed ones
            job.stands = job.error is not None or not changes
        if schedules:
            self._database.write_schedules(schedules)
        self._database.write(changes, sweep)

    def _swap(self, job: SwapJob, changes: dict[str, str | None]) -> None:
        """Change a schedule; the changes of this transaction are in `changes`."""
        try:
            stored = changes if job.name in changes else self._database.schedules(job.name)
        except CorruptState as error:
            job.error, job.stands = error, True
            return
        before = stored.get(job.name)
        job.answer = job.swap(before)
        if job.answer.text != before:
            changes[job.name] = job.answer.text

    def _step(self, job: StepJob | PairJob, texts: list[object], at: int) -> list[Change | None]:
        """Do a job on one record or two; None: it changed nothing."""
        first = self._record(job.queue, texts[0])
        if isinstance(job, StepJob):
            after, job.answer = job.step(first[1], at)
            return [self._change(job.queue, *first, after)]
        common = self._record(job.common, texts[1])
        after, common_after, job.answer = job.step(first[1], common[1], at)
        return [
            self._change(job.queue, *first, after),
            self._change(job.common, *common, common_after),
        ]

    def _change(
        self, queue: str, data: dict[str, object], before: State | None, after: State | None
    ) -> Change | None:
        if after is before:
            return None
        if after is None:
            return Change(None, None)
        try:
            written = json.dumps(renewed(data, after), allow_nan=False)
        except (RecursionError, ValueError) as error:
            raise broken(queue, f"a field in it can't be written back: {error}", self.url) from error
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

    # --- queries, in any thread ---------------------------------------------------------------------

    def _names(self) -> list[str]:
        return self._look(Database.names)

    def _schedules(self) -> dict[str, str]:
        return self._look(lambda database: database.schedules())

    def _get(self, queue: str) -> State | None:
        return self._record(queue, self._look(lambda database: database.read(queue)))[1]

    def _look(self, look: Callable[[Database], T]) -> T:
        def attempt() -> tuple[T] | None:
            database = Database(self._shared())
            with FORK_GUARD.inside():
                try:
                    return (look(database),) if database.begin(write=False) else None
                finally:
                    database.close()

        return self._retried(attempt)[0]

    def _signature(self) -> Hashable:
        log = stamp(f"{self._path}-wal")
        # The log is written in place, so the second of two changes within a tick shows only after the tick.
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
            counted = "1 queue" if len(names) == 1 else f"{len(names)} queues"
            return [
                ("ok", f"the database can be read and is intact; it has {counted}"),
                ("ok", f"its journal mode is {database.journal_mode or 'wal, once it is created'}"),
            ]

        return self._look(look)
