"""A ledger in SQLite tables, for the rules, within a transaction that the caller ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from intervalq.ledger.rules import Meta, Row, sound, typed

LAYOUT: Final = 1
"""The version of these tables."""

SCHEMA: Final = (
    # A dropped ledger has no name any more; its rows are removed a few at a time.
    """CREATE TABLE intervalq_ledgers (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, created INTEGER NOT NULL, expires INTEGER,
    cancelled INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL)""",
    """CREATE TABLE intervalq_ledger_sessions (
    ledger INTEGER NOT NULL, session TEXT NOT NULL, lapses INTEGER NOT NULL,
    PRIMARY KEY (ledger, session)) WITHOUT ROWID""",
    # The session that ended a row isn't kept (it is NULL then), because no answer depends on it.
    """CREATE TABLE intervalq_ledger_rows (
    ledger INTEGER NOT NULL, key TEXT NOT NULL, stage TEXT NOT NULL, session TEXT, attempt INTEGER NOT NULL,
    value TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (ledger, key))""",
    "CREATE INDEX intervalq_ledger_open ON intervalq_ledger_rows (ledger) WHERE session IS NOT NULL",
    "CREATE TABLE intervalq_ledgers_version (layout INTEGER NOT NULL)",
    f"INSERT INTO intervalq_ledgers_version VALUES ({LAYOUT})",  # noqa: S608 - all of it is our own
)

_FIND: Final = "SELECT id, created, expires, cancelled, done, failed FROM intervalq_ledgers WHERE name = ?"
_SESSIONS: Final = "SELECT session, lapses FROM intervalq_ledger_sessions WHERE ledger = ?"
_MAKE: Final = (
    "INSERT INTO intervalq_ledgers (name, created, expires, cancelled, done, failed) "
    "VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
)
_CHANGE: Final = "UPDATE intervalq_ledgers SET expires = ?, cancelled = ?, done = ?, failed = ? WHERE id = ?"
_ROW: Final = "stage, ifnull(session, ''), attempt, value, at FROM intervalq_ledger_rows WHERE ledger = ?"
_PUT: Final = (
    "INSERT INTO intervalq_ledger_rows (ledger, key, stage, session, attempt, value, at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ledger, key) DO UPDATE SET stage = excluded.stage, "
    "session = excluded.session, attempt = excluded.attempt, value = excluded.value, at = excluded.at"
)
_ENDED: Final = ("done", "failed")

SWEPT: Final = 2_000
"""The maximum number of rows of dropped ledgers that one transaction removes."""


class SQLiteBook:
    """A `Book`. Changes are kept in memory until `flush`."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.meta: Meta | None = None
        self.sessions: dict[str, int] = {}
        self._connection = connection
        self._name = name
        self._id = 0  # none
        self._known: dict[str, Row | None] = {}
        self._changed: dict[str, Row | None] = {}
        self._counts = {"done": 0, "failed": 0}
        self._stored: tuple[Any, ...] = ()
        self._lapses: dict[str, int] = {}
        for number, created, expires, cancelled, done, failed in self._rows(_FIND, name):
            self._id = number
            for figure in (created, expires or 0, cancelled, done, failed):
                typed(int, figure, f"a figure of ledger {name!a}")
            self.meta = Meta(created, expires, bool(cancelled))
            self._counts = {"done": done, "failed": failed}
            self._stored = self._columns(self.meta)
            self._lapses = dict(self._rows(_SESSIONS, number))
            for lapses in self._lapses.values():
                typed(int, lapses, f"the end of a session of ledger {name!a}")
            self.sessions = dict(self._lapses)

    # --- for the rules ------------------------------------------------------------------------------

    def get(self, key: str) -> Row | None:
        """See `Book.get`."""
        if key not in self._known:
            found = self._rows(f"SELECT {_ROW} AND key = ?", self._id, key) if self._id else []
            self._known[key] = sound(Row._make(found[0])) if found else None
        return self._known[key]

    def put(self, key: str, row: Row | None) -> None:
        """See `Book.put`."""
        for one, more in ((self.get(key), -1), (row, 1)):
            if one is not None and one.stage in _ENDED:
                self._counts[one.stage] += more
        self._known[key] = self._changed[key] = row

    def clear(self) -> None:
        """See `Book.clear`. It is fast, however many rows there are, because `sweep` removes them later."""
        if self._id:
            self._rows("UPDATE intervalq_ledgers SET name = NULL WHERE id = ?", self._id)
        self.meta, self._id, self._stored, self._counts = None, 0, (), {"done": 0, "failed": 0}
        for known in (self.sessions, self._lapses, self._known, self._changed):
            known.clear()

    def page(self, cursor: str, limit: int) -> tuple[list[tuple[str, Row]], str]:
        """See `Book.page`."""
        self.flush()
        found = self._rows(
            f"SELECT key, {_ROW} AND key > ? ORDER BY key LIMIT ?",
            *(self._id, cursor, limit + 1),
        )
        page = [(typed(str, key, "a key"), sound(Row._make(rest))) for key, *rest in found[:limit]]
        return page, page[-1][0] if len(found) > limit else ""

    def unfinished(self) -> Iterable[Row]:
        """See `Book.unfinished`."""
        self.flush()
        return [
            sound(Row._make(one)) for one in self._rows(f"SELECT {_ROW} AND session IS NOT NULL", self._id)
        ]

    def ended(self) -> tuple[int, int]:
        """See `Book.ended`."""
        return self._counts["done"], self._counts["failed"]

    # --- for the store ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all changes."""
        if self.meta is None:
            return
        columns = self._columns(self.meta)
        if not self._id:
            ((self._id,),) = self._rows(_MAKE, self._name, *columns)
        elif columns != self._stored:
            self._rows(_CHANGE, *columns[1:], self._id)
        self._stored = columns
        gone = [(self._id, key) for key, row in self._changed.items() if row is None]
        self._all("DELETE FROM intervalq_ledger_rows WHERE ledger = ? AND key = ?", gone)
        self._all(_PUT, [self._written(key, row) for key, row in self._changed.items() if row is not None])
        self._changed.clear()
        if self.sessions != self._lapses:
            gone = [(self._id, session) for session in self._lapses.keys() - self.sessions.keys()]
            self._all("DELETE FROM intervalq_ledger_sessions WHERE ledger = ? AND session = ?", gone)
            changed = self.sessions.items() - self._lapses.items()
            put = [(self._id, *one) for one in changed]
            self._all(
                "REPLACE INTO intervalq_ledger_sessions (ledger, session, lapses) VALUES (?, ?, ?)", put
            )
            self._lapses = dict(self.sessions)

    def _written(self, key: str, row: Row) -> tuple[Any, ...]:
        session = None if row.stage in _ENDED else row.session
        return self._id, key, row.stage, session, row.attempt, row.value, row.at

    def _columns(self, meta: Meta) -> tuple[Any, ...]:
        return meta.created, meta.expires, int(meta.cancelled), *self._counts.values()

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()

    def _all(self, statement: str, values: list[tuple[Any, ...]]) -> None:
        if values:
            self._connection.executemany(statement, values)


def sweep(connection: sqlite3.Connection, now: int | None) -> None:
    """Remove some rows of dropped ledgers.

    Args:
        connection: in a transaction that may write.
        now: first drop ledgers that have expired by this time; None: drop none.
    """
    if now is not None:
        connection.execute("UPDATE intervalq_ledgers SET name = NULL WHERE expires <= ?", (now,))
    found = connection.execute("SELECT id FROM intervalq_ledgers WHERE name IS NULL LIMIT 1").fetchall()
    for (id_,) in found:
        some = "SELECT rowid FROM intervalq_ledger_rows WHERE ledger = ? LIMIT ?"
        done = connection.execute(
            f"DELETE FROM intervalq_ledger_rows WHERE rowid IN ({some})",  # noqa: S608 - our own text
            (id_, SWEPT),
        )
        if done.rowcount < SWEPT:
            connection.execute("DELETE FROM intervalq_ledger_sessions WHERE ledger = ?", (id_,))
            connection.execute("DELETE FROM intervalq_ledgers WHERE id = ?", (id_,))
