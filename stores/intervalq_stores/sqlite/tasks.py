"""`sqlite:///path/app.db`: tasks in one SQLite database, the user's own or a new one, on one machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast

import anyio
from anyio import to_thread

from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.store import wall_clock
from intervalq.tasks.rules import Command, Count, Outcomes, QueueStats, Row, Select, Sessions, apply
from intervalq.tasks.store import Isolation
from intervalq_stores._files.advice import Advice, advise
from intervalq_stores._files.worker_thread import Job
from intervalq_stores._waiters import Waiters
from intervalq_stores.sqlite._fork_guard import FORK_GUARD
from intervalq_stores.sqlite._store import SQLiteBase
from intervalq_stores.sqlite._task_batches import do
from intervalq_stores.sqlite._task_database import TaskDatabase
from intervalq_stores.sqlite._task_schema import LAYOUT
from intervalq_stores.sqlite._task_table import SQLiteTable
from intervalq_stores.sqlite._task_transaction import Holder, SQLiteTransaction, apply_on

A = TypeVar("A")

_EXAMPLE: Final = "sqlite:///path/app.db"

_WAITERS: Final[dict[str, Waiters]] = {}
"""The waiters of this process for outcomes in a database, by its real path."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WAITERS.clear)


class _Asked(Job):
    """A command, and the waiter for its answer."""

    def __init__(self, command: Command[Any], now: int | None) -> None:
        super().__init__()
        self.command = command
        self.now = now


class _OldTablesError(Exception):
    """The tables have an older layout, which only a command that writes can change."""


class SQLiteTaskStore(SQLiteBase[TaskDatabase]):
    """Tasks in tables of their own. Commands that wait at the same time share one transaction and its sync.

    They queue for a lock beside the database, because SQLite's own wait starves some of them.
    """

    keeps = "tasks"
    keeps_outcomes: Final = True
    shares_keys: Final = True
    follows_up: Final = True
    tells_of_others: Final = False

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`. A command whose caller leaves while it waits for the lock is not done."""
        if isinstance(command, Select | Outcomes | Count | Sessions):
            look: Callable[[SQLiteTable], Any] = lambda table: _looked_at(table, command, now)  # noqa: E731
            return cast("A", await self._see(look, ()))
        return cast("A", await self._ask(_Asked(command, now)))

    @asynccontextmanager
    async def transaction(self, isolation: Isolation) -> AsyncIterator[SQLiteTransaction]:
        """See `Transactional.transaction`. Transactions are serializable: there is only one at a time.

        Meanwhile nobody else can change anything, not even this process: use its own `apply`, and keep it
        short.
        """
        del isolation
        holder = Holder(self._shared(), self.patience, self._why_held)
        keep = False
        self._start(holder)
        try:
            await holder.begun.wait(self.patience)
            if not holder.begun.finished:
                held = holder.foreign and not holder.file.waiting
                raise StoreTimeout(self.url, self._why_held() if held else self._why_no_answer(holder.file))
            if holder.begun.error is not None:
                raise holder.begun.error
            mine = SQLiteTransaction(holder.database)
            yield mine
            keep = True
        finally:
            holder.end(keep=keep)
            with anyio.CancelScope(shield=True):
                # Don't wait for a transaction that never began: its thread releases the lock when it gets it.
                await holder.ended.wait(self.patience if holder.begun.finished else 0)
        if not holder.ended.finished:
            doubt = "it is unknown whether the transaction was committed"
            raise StoreTimeout(self.url, self._why_no_answer(holder.file, doubt))
        if holder.ended.error is not None:
            raise holder.ended.error
        self._waiters.notify(mine.left)

    async def apply_on(self, connection: sqlite3.Connection, command: Command[A]) -> A:
        """See `Transactional.apply_on`. It waits for other programs as long as the connection does.

        If the connection has no transaction yet, one is begun, unless it is in autocommit mode.
        """
        with self._database.explained():
            return apply_on(connection, self._path, self.url, command)

    @asynccontextmanager
    async def awaited(self, ids: Sequence[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`. Nobody is notified of what ends on the user's own connection."""
        with self._waiters.waiting(ids) as waiter:
            yield waiter.wait

    @property
    def _waiters(self) -> Waiters:
        return _WAITERS.setdefault(os.path.realpath(self._path), Waiters())

    async def page(self, queue: str | None, cursor: str, limit: int) -> tuple[list[Row], str]:
        """Tasks of a queue (None: of all queues) by id, after the id `cursor`; and the next cursor, or ''."""

        def look(table: SQLiteTable) -> list[Row]:
            return table.page(queue, cursor, limit)

        rows = await self._see(look, list[Row]())
        return rows, rows[-1].id if len(rows) == limit else ""

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence with the remedy."""
        return await to_thread.run_sync(advise, self._file, self._check, abandon_on_cancel=True)

    def _start(self, holder: Holder) -> None:
        self._refuse_network()
        try:
            holder.start()
        except RuntimeError as error:
            raise StoreUnavailable(self.url, f"can't start a thread to use it: {error}") from error

    # --- commands, in the worker thread ------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        self._database = TaskDatabase(self._file)

    def _batch(self, jobs: list[Job]) -> None:
        table = self._database.table()
        for job in jobs:
            self._one(table, cast("_Asked", job))
        self._database.commit()
        if table.outcome_tables.left:
            self._waiters.notify(table.outcome_tables.left)

    def _one(self, table: SQLiteTable, job: _Asked) -> None:
        try:
            with self._database.explained():
                now = wall_clock() if job.now is None else job.now
                if job.now is None:
                    table.read(now)
                job.answer = do(table, job.command, now)
        except Exception as error:
            if not table.in_transaction:
                raise  # earlier changes of this transaction are undone, too
            job.error = error
            job.stands = True

    # --- queries, in any thread ---------------------------------------------------------------------

    async def _see(self, look: Callable[[SQLiteTable], A], otherwise: A) -> A:
        try:
            return await to_thread.run_sync(self._looked, look, otherwise, abandon_on_cancel=True)
        except _OldTablesError:
            await self._ask(_Asked(Sessions(), None))  # any command upgrades them
        return await to_thread.run_sync(self._looked, look, otherwise, abandon_on_cancel=True)

    def _looked(self, look: Callable[[SQLiteTable], A], otherwise: A) -> A:
        """The result of a query of the tables; `otherwise`, if there are none."""

        def attempt() -> tuple[A] | None:
            database = TaskDatabase(self._shared())
            with FORK_GUARD.inside(), database.explained():
                try:
                    if not database.begin(write=False):
                        return None
                    if database.is_old:
                        raise _OldTablesError
                    table = database.look()
                    return (otherwise if table is None else look(table),)
                finally:
                    database.close()

        return self._retried(attempt)[0]

    def _check(self) -> Advice:
        try:
            stats = self._looked(lambda table: _looked_at(table, Count(), None), tuple[QueueStats, ...]())
        except _OldTablesError:
            return [("ok", f"the tables of tasks are old; the next command upgrades them to layout {LAYOUT}")]
        return [("ok", f"the tables of tasks can be read: {sum(one.size for one in stats)} tasks")]


def _looked_at(table: SQLiteTable, command: Command[A], now: int | None) -> A:
    return apply(table, command, wall_clock() if now is None else now)
