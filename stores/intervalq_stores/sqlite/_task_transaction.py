"""A SQLite transaction for the user: a thread holds it, so that no event loop has to wait."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from intervalq.errors import InvalidOption, StoreError, StoreTimeout, TransactionConflict
from intervalq.store import wall_clock
from intervalq.tasks.rules import Command
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.sqlite._fork_guard import FORK_GUARD
from intervalq_stores.sqlite._task_batches import do
from intervalq_stores.sqlite._task_database import TaskDatabase, check, layout_of, make
from intervalq_stores.sqlite._task_schema import LAYOUT
from intervalq_stores.sqlite._task_table import SQLiteTable

A = TypeVar("A")

_RETRY: Final = 0.005
"""Seconds between two tries to get a database that another program holds."""


class SQLiteTransaction:
    """See `Transaction`. Its statements and commands run at once, in the calling thread."""

    def __init__(self, database: TaskDatabase) -> None:
        self._database = database
        self.connection = database.connection
        self.left: list[str] = []
        """The tasks that have left outcomes."""

    async def apply(self, command: Command[A]) -> A:
        """See `Transaction.apply`."""
        with FORK_GUARD.inside(), self._database.explained():
            table = SQLiteTable(self._database.connection)
            answer = do(table, command, wall_clock())
        self.left += table.outcome_tables.left
        return answer


class Holder:
    """Holds the lock and a transaction from `begun` until `end`. Created on the event loop."""

    def __init__(self, file: SharedFile, patience: float, why_held: Callable[[], str]) -> None:
        self.begun = Job()
        self.ended = Job()
        self.file = file
        self.database = TaskDatabase(file)
        self.foreign = False
        """Whether another program held the database at the last try."""
        self._patience = patience
        self._why_held = why_held
        self._end = threading.Event()
        self._keep = False

    def start(self) -> None:
        """Begin, in a thread."""
        # A daemon: a process can exit while the thread is blocked in a lock.
        threading.Thread(target=self._run, name="intervalq-transaction", daemon=True).start()

    def end(self, *, keep: bool) -> None:
        """Commit, or roll back."""
        self._keep = keep
        self._end.set()

    def _run(self) -> None:
        failed: BaseException | None = None
        try:
            with self.file.locked():
                if not self.begun.left:
                    try:
                        self._begin()
                        self.begun.finish(None)
                        self._end.wait()
                        self._finish()
                    finally:
                        with FORK_GUARD.inside():
                            self.database.close()
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiter
            failed = error
        self.begun.finish(failed)
        self.ended.finish(failed)

    def _begin(self) -> None:
        end = time.monotonic() + self._patience
        while True:
            with FORK_GUARD.inside():
                self.foreign = not self.database.begin(write=True)
                if not self.foreign:
                    self.database.table()
                    return
            if time.monotonic() >= end:
                raise StoreTimeout(self.file.url, self._why_held())
            time.sleep(_RETRY)

    def _finish(self) -> None:
        if not self._keep:
            return
        with FORK_GUARD.inside():
            if not self.database.connection.in_transaction:
                raise StoreError(
                    self.file.url,
                    "a statement ended the transaction: don't use COMMIT and ROLLBACK in it; the end of its "
                    "context does that",
                )
            self.database.commit()


# --- the user's own connection ---------------------------------------------------------------------------


def apply_on(connection: sqlite3.Connection, path: Path, url: str, command: Command[A]) -> A:
    """See `Transactional.apply_on`."""
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidOption("a command for this store needs a connection of the module sqlite3")
    with _plain(connection):
        _check_file(connection, path, url)
        _begin(connection, url)
        return do(SQLiteTable(connection), command, wall_clock())


@contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Use default texts and rows, whatever the user has set."""
    text, row = connection.text_factory, connection.row_factory
    connection.text_factory, connection.row_factory = str, None
    try:
        yield
    finally:
        connection.text_factory, connection.row_factory = text, row


def _check_file(connection: sqlite3.Connection, path: Path, url: str) -> None:
    names = [file for _, name, file in connection.execute("PRAGMA database_list") if name == "main"]
    try:
        same = bool(names[0]) and Path(names[0]).samefile(path)
    except OSError:
        same = False
    if not same:
        raise InvalidOption(f"this connection does not belong to the database of {url}")


def _begin(connection: sqlite3.Connection, url: str) -> None:
    """Make sure that a writable transaction has begun, and that the tables exist."""
    if not connection.in_transaction:
        if connection.isolation_level is None:
            raise InvalidOption(
                "this connection is in autocommit mode, but a command needs several statements: execute "
                "BEGIN IMMEDIATE first"
            )
        connection.execute("BEGIN IMMEDIATE")
    layout = check(layout_of(lambda statement: connection.execute(statement).fetchall()), url)
    try:
        if layout != LAYOUT:
            make(connection, layout)
            return
        # The transaction may have read an old snapshot: if it can't write any more, this statement fails.
        connection.execute("UPDATE intervalq_tasks_version SET layout = layout")
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            raise TransactionConflict(
                url,
                "the database has changed since this transaction read it, and nothing was done: roll it back "
                "and repeat all of it, or begin with BEGIN IMMEDIATE",
            ) from error
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreTimeout(
                url,
                "another program held the database longer than this connection waits, and nothing was done: "
                "roll back and try again, or connect with a longer timeout=",
            ) from error
        raise
