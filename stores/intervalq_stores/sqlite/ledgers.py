"""`sqlite:///path/state.db`: ledgers in one SQLite database, that of the queues or the user's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from anyio import to_thread

from intervalq.errors import StoreError
from intervalq.ledger.rules import Answer, Command, Count, Drop, Look, apply
from intervalq.store import wall_clock
from intervalq_stores._files.jobs import LedgerJob
from intervalq_stores._files.json_records import corrupt, newer
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.sqlite._file import SQLiteFile, code_of
from intervalq_stores.sqlite._fork_guard import FORK_GUARD
from intervalq_stores.sqlite._ledger_rows import LAYOUT, SCHEMA, SQLiteBook, sweep
from intervalq_stores.sqlite._store import SQLiteBase

T = TypeVar("T")

_EXAMPLE: Final = "sqlite:///path/state.db"
_SWEEPS_OF_A_DROP: Final = 20
_NAMES: Final = (
    "SELECT name FROM intervalq_ledgers WHERE name IS NOT NULL AND ifnull(expires > ?, 1) ORDER BY name"
)
_SETTINGS: Final = (
    "PRAGMA cache_size = -16000",  # KiB: keys that are not in order touch many pages
    "PRAGMA wal_autocheckpoint = 4000",  # pages: fewer syncs, for a log of 16 MB at most
)


class LedgerDatabase(SQLiteFile):
    """The tables of ledgers in a database. Call everything but the constructor only inside the fork guard."""

    made = False
    """Whether the tables exist in the current transaction."""

    def prepare(self) -> sqlite3.Connection:
        """The connection to change the tables in the current transaction; creates missing tables."""
        with self.explained():
            if self._connection is None:
                self._create()
            if not self.made:
                for statement in SCHEMA:
                    self.connection.execute(statement)
                self.made = True
            return self.connection

    def look(self) -> sqlite3.Connection | None:
        """The connection to read the tables; None: there are none."""
        return self._connection if self.made else None

    def _look(self) -> None:
        self.made = False
        try:
            found = self._rows("SELECT layout FROM intervalq_ledgers_version")
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_ERROR:
                raise
        else:  # otherwise there is no such table
            layout = found[0][0] if found else 0
            if not isinstance(layout, int) or layout < 1:
                raise corrupt("the number in intervalq_ledgers_version is not that of a layout", self._url)
            if layout > LAYOUT:
                raise newer(layout, LAYOUT, self._url)
            self.made = True
        super()._look()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in _SETTINGS:
            connection.execute(pragma)

    def _empty(self) -> None:
        """See `SQLiteFile._empty`: an empty file is one that SQLite itself has just made."""


class SQLiteLedgerStore(SQLiteBase[LedgerDatabase]):
    """Ledgers in tables of their own. A command is atomic as a whole.

    Commands that wait at the same time share one transaction and its sync; those that only read use a read
    transaction, and wait for nobody.
    """

    keeps = "ledgers"

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`. A command whose caller leaves while it waits for the lock is not done."""
        if isinstance(command, Look | Count):
            return await self._looked(lambda connection: _look(connection, ledger, command, now))
        answer: Answer = await self._ask(LedgerJob(ledger, command, now))
        return answer

    async def names(self) -> list[str]:
        """See `LedgerStore.names`."""

        def look(connection: sqlite3.Connection | None) -> list[str]:
            found = [] if connection is None else connection.execute(_NAMES, (wall_clock(),)).fetchall()
            return [name for (name,) in found]

        return await self._looked(look)

    # --- commands, in the worker thread ------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        self._database = LedgerDatabase(self._file)

    def _batch(self, jobs: list[Job]) -> None:
        connection = self._database.prepare()
        books: dict[str, SQLiteBook] = {}
        expired: int | None = None
        sweeps = 1
        for job in jobs:
            assert isinstance(job, LedgerJob)
            at = wall_clock() if job.now is None else job.now
            if isinstance(job.command, Drop):
                sweeps = _SWEEPS_OF_A_DROP
            elif job.now is None:
                expired = at
            self._one(connection, books, job, at)
        with self._database.explained():
            for _ in range(sweeps):
                sweep(connection, expired)
        self._database.commit()

    def _one(
        self, connection: sqlite3.Connection, books: dict[str, SQLiteBook], job: LedgerJob, at: int
    ) -> None:
        try:
            with self._database.explained():
                connection.execute("SAVEPOINT intervalq")
                if job.ledger not in books:
                    books[job.ledger] = SQLiteBook(connection, job.ledger)
                job.answer = apply(books[job.ledger], job.command, at)
                books[job.ledger].flush()
                connection.execute("RELEASE intervalq")
        except Exception as error:
            books.clear()  # they have changes that are rolled back now
            if not connection.in_transaction:
                raise  # earlier changes of this transaction are undone, too
            connection.execute("ROLLBACK TO intervalq")
            connection.execute("RELEASE intervalq")
            job.error, job.stands = self._translated(error), True

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, UnicodeEncodeError | OverflowError):
            return StoreError(self.url, f"a text or number of this command can't be stored: {error}")
        return error

    # --- queries, in any thread ---------------------------------------------------------------------

    async def _looked(self, look: Callable[[sqlite3.Connection | None], T]) -> T:
        def attempt() -> tuple[T] | None:
            database = LedgerDatabase(self._shared())
            with FORK_GUARD.inside(), database.explained():
                try:
                    return (look(database.look()),) if database.begin(write=False) else None
                finally:
                    database.close()

        return await to_thread.run_sync(lambda: self._retried(attempt)[0], abandon_on_cancel=True)


def _look(connection: sqlite3.Connection | None, ledger: str, command: Command, now: int | None) -> Answer:
    at = wall_clock() if now is None else now
    if connection is None:
        return Answer(at, found=False)
    return apply(SQLiteBook(connection, ledger), command, at)
