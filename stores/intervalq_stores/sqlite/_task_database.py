"""The database of the SQLite store of tasks, the user's own or a new one: its tables and their layout."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from intervalq.errors import StoreUnavailable
from intervalq_stores._files.json_records import corrupt, newer
from intervalq_stores.sqlite._file import SQLiteFile, code_of
from intervalq_stores.sqlite._task_schema import LAYOUT, SCHEMA, STEPS
from intervalq_stores.sqlite._task_table import SQLiteTable

_PRAGMAS: Final = (
    "PRAGMA cache_size = -16000",  # KiB: ids that are not in order touch many pages
    "PRAGMA wal_autocheckpoint = 4000",  # pages: fewer syncs, for a log of 16 MB at most
    # Some builds overwrite all that is deleted, and so write every page of a table that they drop.
    # This overwrites only what is written anyway.
    "PRAGMA secure_delete = FAST",
    "PRAGMA temp_store = MEMORY",  # otherwise each changed page is first copied to a temporary file
)


class TaskDatabase(SQLiteFile):
    """The tables of tasks in a database. Call everything but the constructor only inside the fork guard."""

    layout: int | None = None
    """The layout of the tables in the current transaction; None: there are no tables."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the current transaction.

        Raises:
            StoreUnavailable: it was closed, for example before a fork.
        """
        if self._connection is None:
            raise StoreUnavailable(
                self._url,
                "the transaction was ended because this process forked during it, and nothing was done: "
                "begin it again, and don't fork in it",
            )
        return self._connection

    def table(self) -> SQLiteTable:
        """The tables to change in the current transaction, created or upgraded if needed."""
        with self.explained():
            if self._connection is None:
                self._create()
            if self.layout != LAYOUT:
                make(self.connection, self.layout)
                self.layout = LAYOUT
            return SQLiteTable(self.connection)

    @property
    def is_old(self) -> bool:
        """Whether the tables must be upgraded before they can be read."""
        return self._connection is not None and self.layout not in (None, LAYOUT)

    def look(self) -> SQLiteTable | None:
        """The tables to read; None: there are none."""
        return SQLiteTable(self.connection) if self._connection is not None and self.layout else None

    # --- content ------------------------------------------------------------------------------------

    def _look(self) -> None:
        layout = layout_of(self._rows)
        ((self.journal_mode,),) = self._rows("SELECT * FROM pragma_journal_mode")
        self.layout = check(layout, self._url)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in _PRAGMAS:
            connection.execute(pragma)

    def _empty(self) -> None:
        """See `SQLiteFile._empty`: an empty file is one that SQLite itself has just made."""


def layout_of(rows: Callable[[str], list[Any]]) -> object:
    """The number of the layout; None: there are no tables."""
    try:
        found = rows("SELECT layout FROM intervalq_tasks_version")
    except sqlite3.OperationalError as error:
        if code_of(error) != sqlite3.SQLITE_ERROR:
            raise
        return None  # there is no such table
    return found[0][0] if found else 0


def check(layout: object, url: str) -> int | None:
    """The given layout. Refuses the layout of a newer version, and values that aren't layouts."""
    if layout is None:
        return None
    if not isinstance(layout, int) or layout < 1:
        raise corrupt("the number in intervalq_tasks_version is not that of a layout", url)
    if layout > LAYOUT:
        raise newer(layout, LAYOUT, url)
    return layout


def make(connection: sqlite3.Connection, layout: int | None) -> None:
    """Create the tables, or upgrade those of an older layout, in the current transaction."""
    steps = SCHEMA if layout is None else [step for old in range(layout, LAYOUT) for step in STEPS[old]]
    for statement in steps:
        connection.execute(statement)
    connection.execute("UPDATE intervalq_tasks_version SET layout = ?", [LAYOUT])
