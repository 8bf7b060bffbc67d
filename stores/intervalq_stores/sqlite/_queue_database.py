"""The database of the SQLite store: one table, of what was made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from intervalq.errors import StoreFull
from intervalq.rules import FOREVER, IDLE_KEPT, BadRecord, NewerRecord, State, lapses, settle
from intervalq_stores._files.json_records import QUEUE, bad_name, corrupt, newer, parse
from intervalq_stores._files.locked_file import MAX_BYTES
from intervalq_stores.sqlite._file import APPLICATION, BESIDE, LAYOUT, LONGEST, SCHEMA, SQLiteFile

if TYPE_CHECKING:
    import sqlite3  # a Python without it is told of in the module above

__all__ = ["BESIDE", "LAYOUT", "MAX_TEXT", "Change", "Database"]

_SCHEMA: Final = SCHEMA

MAX_TEXT: Final = MAX_BYTES // 2
"""The largest record that is written; what is larger than twice that isn't read."""

_WRITE: Final = """
INSERT INTO queues (name, record, lapses) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, lapses = excluded.lapses
"""

_SWEPT: Final = 16
"""How many records a new one looks at that may have lapsed: more than one, so that they can't pile up."""


class Change(NamedTuple):
    """What becomes of a record: its new text, and when it may be forgotten; None: it's gone, and never."""

    text: str | None
    lapses: int | None

    @classmethod
    def to(cls, text: str, state: State) -> Change:
        """Keep a record. One that can't lapse as it is, but may later, is looked at now and then."""
        if not state.settings.ephemeral:
            return cls(text, None)
        at = lapses(state)
        return cls(text, at if at < FOREVER else state.last_now + IDLE_KEPT)


class Database(SQLiteFile):
    """The records in a database; all but the constructor only inside of the gate."""

    def read(self, queue: str) -> object:
        """Give what stands for the record of a queue; None: nothing."""
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

    def commit(self, changes: dict[str, Change], sweep: int | None) -> None:
        """Keep the changes, safely on the disk, and end the transaction.

        Args:
            changes: of each queue.
            sweep: forget some records that have lapsed by this time.
        """
        with self.explained():
            if changes and self._connection is None:
                self._create()
            for queue, change in changes.items():
                if change.text is not None and len(change.text) > MAX_TEXT:
                    raise StoreFull(
                        self._url,
                        f"the record of queue {queue!r} has more than {MAX_TEXT} bytes, nothing was "
                        "written: let fewer jobs run at the same time",
                    )
                if change.text is None:
                    self._rows("DELETE FROM queues WHERE name = ?", queue)
                else:
                    self._rows(_WRITE, queue, *change)
            if sweep is not None:
                self._sweep(sweep)
            if changes:
                self.still_ours()
            self._rows("COMMIT")

    # --- what it holds ------------------------------------------------------------------------------

    def _look(self) -> None:
        """Refuse a database that isn't ours, or of a newer version."""
        ((application, version, self.journal_mode),) = self._rows(
            "SELECT * FROM pragma_application_id, pragma_user_version, pragma_journal_mode"
        )
        if application != APPLICATION:
            raise corrupt("it is a database of something else", self._url)
        if version > LAYOUT:
            raise newer(version, LAYOUT, self._url)
        if version < 1:
            raise corrupt("its user_version is not that of a layout", self._url)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.setlimit(LONGEST, MAX_BYTES)

    def _sweep(self, now: int) -> None:
        found = self._rows(
            "SELECT name, record FROM queues WHERE lapses <= ? ORDER BY lapses LIMIT ?", now, _SWEPT
        )
        for name, record in found:
            try:
                state = State.from_dict(parse(record))
                gone = lapses(settle(state, now)) <= now
            except (BadRecord, NewerRecord, TypeError, ValueError):
                gone = False  # whoever uses that queue is told
            if gone:
                self._rows("DELETE FROM queues WHERE name = ?", name)
            else:  # those that stay must not keep others from being looked at
                self._rows("UPDATE queues SET lapses = ? WHERE name = ?", now + IDLE_KEPT, name)
