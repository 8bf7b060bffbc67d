"""The database of the SQLite store of queues: one table, in a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from intervalq.errors import StoreFull
from intervalq.rules import FOREVER, IDLE_KEPT, BadRecord, NewerRecord, State, lapses, settle
from intervalq_stores._files.json_records import QUEUE, bad_name, corrupt, newer, parse
from intervalq_stores._files.locked_file import MAX_BYTES
from intervalq_stores.sqlite._file import APPLICATION, BESIDE, LAYOUT, LIMIT_LENGTH, SCHEMA, SQLiteFile

if TYPE_CHECKING:
    import sqlite3  # the module above reports a Python without it

__all__ = ["BESIDE", "LAYOUT", "MAX_TEXT", "Change", "Database"]

_SCHEMA: Final = SCHEMA

MAX_TEXT: Final = MAX_BYTES // 2
"""The largest record that is written; records larger than twice that aren't read."""

_WRITE: Final = """
INSERT INTO queues (name, record, lapses) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, lapses = excluded.lapses
"""

_SCHEDULES: Final = """
CREATE TABLE IF NOT EXISTS schedules (name TEXT PRIMARY KEY NOT NULL, text TEXT NOT NULL) WITHOUT ROWID
"""
"""Made when it is first needed: the layout of the other table is the same with and without it."""

_WRITE_SCHEDULE: Final = """
INSERT INTO schedules (name, text) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text
"""

_SWEPT: Final = 16
"""How many possibly lapsed records a new one checks: more than one, so that they can't pile up."""


class Change(NamedTuple):
    """The change of a record: its new text (None: removed), and when it may be forgotten (None: never)."""

    text: str | None
    lapses: int | None

    @classmethod
    def to(cls, text: str, state: State) -> Change:
        """The change that keeps a record. One that can lapse only later is checked from time to time."""
        if not state.settings.ephemeral:
            return cls(text, None)
        at = lapses(state)
        return cls(text, at if at < FOREVER else state.last_now + IDLE_KEPT)


class Database(SQLiteFile):
    """The records in a database. Call everything but the constructor only inside the fork guard."""

    _has_schedules = False
    """Whether this transaction has changed schedules."""

    def read(self, queue: str) -> object:
        """The stored record of a queue; None: there is none."""
        with self.explained():
            rows = self._rows("SELECT record FROM queues WHERE name = ?", queue)
        return rows[0][0] if rows else None

    def names(self) -> list[str]:
        """List the queues that have a record, sorted."""
        with self.explained():
            rows = self._rows("SELECT name FROM queues ORDER BY name")
        for (name,) in rows:
            if not isinstance(name, str) or not QUEUE.fullmatch(name):
                raise bad_name(name, self._url)
        return [name for (name,) in rows]

    def schedules(self, name: str | None = None) -> dict[str, str]:
        """The text of a schedule, if it exists, or the texts of all (None)."""
        with self.explained():
            if not self._rows("SELECT 1 FROM sqlite_schema WHERE name = 'schedules'"):
                return {}
            found = dict(
                self._rows("SELECT name, text FROM schedules")
                if name is None
                else self._rows("SELECT name, text FROM schedules WHERE name = ?", name)
            )
        if not all(isinstance(text, str) for pair in found.items() for text in pair):
            raise corrupt("a schedule in it is not text", self._url)
        return found

    def write(self, changes: dict[str, Change], sweep: int | None) -> None:
        """Write the changes and commit them, so that they are safely on the disk.

        Args:
            changes: the change of each queue.
            sweep: also forget some records that have lapsed by this time.
        """
        with self.explained():
            if changes and self._connection is None:
                self._create()
            for queue, change in changes.items():
                if change.text is not None and len(change.text) > MAX_TEXT:
                    raise StoreFull(
                        self._url,
                        f"the record of queue {queue!r} has more than {MAX_TEXT} bytes, so nothing was "
                        "written: let fewer jobs run at the same time",
                    )
                if change.text is None:
                    self._rows("DELETE FROM queues WHERE name = ?", queue)
                else:
                    self._rows(_WRITE, queue, *change)
            if sweep is not None:
                self._sweep(sweep)
            if not changes and not self._has_schedules:
                self._rows("COMMIT")
                return
        self._has_schedules = False
        self.commit()

    def write_schedules(self, changes: dict[str, str | None]) -> None:
        """Write the new text of each of these schedules (None: it is removed); `write` commits them."""
        with self.explained():
            if self._connection is None:
                self._create()
            self._has_schedules = True
            self._rows(_SCHEDULES)
            for name, text in changes.items():
                if text is None:
                    self._rows("DELETE FROM schedules WHERE name = ?", name)
                else:
                    self._rows(_WRITE_SCHEDULE, name, text)

    # --- content ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Refuse a database that isn't ours, or has a newer version."""
        ((application, version, self.journal_mode),) = self._rows(
            "SELECT * FROM pragma_application_id, pragma_user_version, pragma_journal_mode"
        )
        if application != APPLICATION:
            raise corrupt("it is a database of another application", self._url)
        if version > LAYOUT:
            raise newer(version, LAYOUT, self._url)
        if version < 1:
            raise corrupt("its user_version is not that of a layout", self._url)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.setlimit(LIMIT_LENGTH, MAX_BYTES)

    def _sweep(self, now: int) -> None:
        found = self._rows(
            "SELECT name, record FROM queues WHERE lapses <= ? ORDER BY lapses LIMIT ?", now, _SWEPT
        )
        for name, record in found:
            try:
                state = State.from_dict(parse(record))
                gone = lapses(settle(state, now)) <= now
            except (BadRecord, NewerRecord, TypeError, ValueError):
                gone = False  # users of that queue will get the error
            if gone:
                self._rows("DELETE FROM queues WHERE name = ?", name)
            else:  # records that stay must not keep others from being checked
                self._rows("UPDATE queues SET lapses = ? WHERE name = ?", now + IDLE_KEPT, name)
