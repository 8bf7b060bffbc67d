"""Outcomes in SQLite: a table for each day on which they expire, so that dropping a day costs little."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from intervalq.tasks.rules import Delete, Kept, OutcomeRow, Outcomes, Session, day_of, sound, typed

_NOTHING: Final = Kept(0)
_FIELDS: Final = ", ".join(OutcomeRow._fields)
_DAYS: Final = "SELECT day FROM intervalq_outcome_days ORDER BY day"
# No statement is prepared for a day's table before there is one; ids mostly come in order, so that the index
# grows at its end.
_CREATE: Final = """CREATE TABLE {table} (
    id TEXT NOT NULL, queue TEXT NOT NULL, key TEXT, state TEXT NOT NULL, json TEXT NOT NULL,
    result TEXT NOT NULL, attempts INTEGER NOT NULL, errors TEXT NOT NULL, created INTEGER NOT NULL,
    started INTEGER NOT NULL, ended INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    until INTEGER NOT NULL)"""
_INDEX: Final = "CREATE INDEX {table}_id ON {table} (id)"
_PUT: Final = f"INSERT INTO {{table}} VALUES ({', '.join('?' * len(OutcomeRow._fields))})"  # noqa: S608 - our own
# One statement for all: one for each task takes three times as long. Each value of `parts` is when the work
# began, and after a space the result, if any of them has one: texts take longer to read than numbers.
_IS_SIMPLE: Final = (
    "version = :version AND +session = :session AND t.key IS NULL AND dedupe IS NULL AND follow_up = '' "
    "AND NOT cancelled AND (keep_for = :keep_for OR keep_for = 0 AND error = '')"
)
_DONE: Final = (
    "INSERT INTO {table} SELECT t.id, queue, t.key, 'done', t.json, "  # noqa: S608 - our own
    "{result}, attempt + NOT begun, errors, created, j.value + 0, :now, :host, :pid, :until "
    f"FROM json_each(:parts) j CROSS JOIN intervalq_tasks t WHERE t.id = j.key AND {_IS_SIMPLE}"
)
_RESULT: Final = "substr(j.value, instr(j.value, ' ') + 1)"
_REMOVE: Final = (
    "DELETE FROM intervalq_tasks AS t WHERE id IN (SELECT key FROM json_each(:parts)) "  # noqa: S608 - our own
    f"AND {_IS_SIMPLE}"
)
_GET: Final = f"SELECT {_FIELDS} FROM {{table}} WHERE until > ?"  # noqa: S608 - our own


class OutcomeTables:
    """The tables of outcomes, within the transaction of a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.left: list[str] = []
        """The tasks that have left outcomes; perhaps also some that have not."""
        self._connection = connection

    def put(self, outcomes: Iterable[OutcomeRow]) -> None:
        """Add outcomes."""
        by_day: dict[int, list[OutcomeRow]] = {}
        for outcome in outcomes:
            by_day.setdefault(day_of(outcome.until), []).append(outcome)
            self.left.append(outcome.id)
        for day, some in by_day.items():
            self._connection.executemany(_PUT.format(table=self._table(day)), some)

    def settle(self, parts: list[Delete], session: Session, now: int) -> int:
        """Remove simple tasks that are done, and add their outcomes; returns how many.

        The others are not the session's, or have something that only the rules know how to end.
        """
        groups = {(version, (kept or _NOTHING).keep_for): parts for _, version, kept in parts}
        if len(groups) > 1:
            groups = {group: [] for group in groups}
            for part in parts:
                groups[part.version, (part.kept or _NOTHING).keep_for].append(part)
        return sum(self._settle(*group, some, session, now) for group, some in groups.items())

    def _settle(self, version: int, keep_for: int, parts: list[Delete], session: Session, now: int) -> int:
        """See `settle`, for tasks of one version which are kept for the same time."""
        ids, _, kepts = zip(*parts, strict=True)
        _, results, durations = zip(*[kept or _NOTHING for kept in kepts], strict=True)
        starts: list[Any] = [now - took if took else 0 for took in durations]
        has_results = any(results)
        if has_results:
            starts = [f"{start} {result}" for start, result in zip(starts, results, strict=True)]
        until = now + keep_for
        values = {
            "parts": json.dumps(dict(zip(ids, starts, strict=True))),
            "session": session.id, "host": session.host, "pid": session.pid,
            "version": version, "keep_for": keep_for, "now": now, "until": until,
        }  # fmt: skip
        self.left += ids
        add = _DONE.format(table=self._table(day_of(until)), result=_RESULT if has_results else "''")
        self._connection.execute(add, values)
        return self._connection.execute(_REMOVE, values).rowcount

    def sweep(self, now: int) -> None:
        """Drop the table of a day that is over."""
        first = self._days()[:1]
        if first and first[0] < day_of(now):
            self._connection.execute(f"DROP TABLE {_name(first[0])}")
            self._connection.execute("DELETE FROM intervalq_outcome_days WHERE day = ?", first)

    def find(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        found: list[OutcomeRow] = []
        where, values = "", list[object]([now])
        for field, value in (("queue", command.queue), ("state", command.state)):
            if value is not None:
                where += f" AND {field} = ?"
                values.append(value)
        limit = -1 if command.limit is None else command.limit
        for day in self._days():
            get = _GET.format(table=_name(day)) + where
            if command.ids:
                for id_ in dict.fromkeys(command.ids):
                    found += self._rows(f"{get} AND id = ? ORDER BY rowid", [*values, id_])
            else:  # they were added in this order
                found += self._rows(f"{get} ORDER BY rowid DESC LIMIT ?", [*values, limit])
        found.sort(key=lambda one: one.ended, reverse=not command.ids)
        return found[: command.limit]

    def _rows(self, statement: str, values: list[Any]) -> list[OutcomeRow]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the user of the connection may have set another one
        return [sound(OutcomeRow._make(one)) for one in cursor.execute(statement, values)]

    def _days(self) -> list[int]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return [typed(int, day, "a day of outcomes") for (day,) in cursor.execute(_DAYS)]

    def _table(self, day: int) -> str:
        """The name of a day's table, which is created if it isn't there."""
        name = _name(day)
        add = "INSERT OR IGNORE INTO intervalq_outcome_days VALUES (?)"
        if self._connection.execute(add, [day]).rowcount:
            self._connection.execute(_CREATE.format(table=name))
            self._connection.execute(_INDEX.format(table=name))
        return name


def _name(day: int) -> str:
    return f"intervalq_outcomes_{day}"
