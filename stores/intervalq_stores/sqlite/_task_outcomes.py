"""Outcomes in SQLite: a table for each day on which they expire, so that dropping a day costs little.

The row numbers of all these tables together are one rising sequence: outcomes are read in the order in which
they were written, whatever the clock did meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from intervalq.tasks.rules import Delete, Kept, OutcomeRow, Outcomes, Session, day_of, sound, typed
from intervalq_stores.sqlite._task_schema import OLD_NUMBERS

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
_PUT: Final = (
    f"INSERT INTO {{table}} (rowid, {_FIELDS}) VALUES (?, {', '.join('?' * len(OutcomeRow._fields))})"  # noqa: S608
)
# One statement for all: one for each task takes three times as long. Each value of `parts` is when the work
# began, and after a space the result, if any of them has one: texts take longer to read than numbers.
_DONE: Final = (
    f"INSERT INTO {{table}} (rowid, {_FIELDS}) "  # noqa: S608 - our own
    "SELECT :number + j.rowid, t.id, queue, t.key, 'done', t.json, "
    "{result}, attempt + NOT begun, errors, created, j.value + 0, :now, :host, :pid, :until "
    "FROM json_each(:parts) j CROSS JOIN intervalq_tasks t WHERE t.id = j.key "
    "AND version = :version AND +session = :session AND t.key IS NULL AND dedupe IS NULL AND follow_up = '' "
    "AND NOT cancelled AND (keep_for = :keep_for OR keep_for = 0 AND error = '')"
)
_RESULT: Final = "substr(j.value, instr(j.value, ' ') + 1)"
# What is in the table now was simple: to look at that again would cost as much as the rest of the deletion.
_REMOVE: Final = "DELETE FROM intervalq_tasks WHERE id IN (SELECT id FROM {table} WHERE rowid >= :number)"
_BLOCK: Final = 1024
_NUMBER: Final = "UPDATE intervalq_outcome_number SET last = last + ? RETURNING last"
_QUEUES: Final = "SELECT min(queue), max(queue) FROM {table} WHERE rowid > ?"
_NOTE: Final = "INSERT OR IGNORE INTO intervalq_outcome_queues "
_NOTE_ALL: Final = (
    f"{_NOTE} SELECT DISTINCT :day, queue, rowid / {_BLOCK} FROM {{table}} WHERE rowid > :number"  # noqa: S608
)
_NOTE_ONE: Final = f"{_NOTE} VALUES (:day, :queue, :block)"
_OF_T: Final = ", ".join(f"t.{field}" for field in ("rowid", *OutcomeRow._fields))
_GET: Final = f"SELECT {_OF_T} FROM {{table}} t WHERE {{where}}"  # noqa: S608 - our own
_GET_OF_QUEUE: Final = (
    f"SELECT {_OF_T} FROM intervalq_outcome_queues q CROSS JOIN {{table}} t "  # noqa: S608 - our own
    f"WHERE q.day = :day AND q.queue = :queue AND t.rowid >= q.block * {_BLOCK} "
    f"AND t.rowid < (q.block + 1) * {_BLOCK} AND {{where}} ORDER BY q.block DESC, t.rowid DESC LIMIT :limit"
)


class OutcomeTables:
    """The tables of outcomes, within the transaction of a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.left: list[str] = []
        """The tasks that have left outcomes; perhaps also some that have not."""
        self._connection = connection

    def put(self, outcomes: Sequence[tuple[Any, ...]]) -> None:
        """Add outcomes, given as the fields of their rows."""
        if not outcomes:
            return
        number = self._numbers(len(outcomes))
        by_day: dict[int, list[tuple[Any, ...]]] = {}
        for n, fields in enumerate(outcomes):
            by_day.setdefault(day_of(fields[-1]), []).append((number + n, *fields))  # the last one is `until`
            self.left.append(fields[0])
        for day, some in by_day.items():
            self._connection.executemany(_PUT.format(table=self._table(day)), some)
            self._note(day, number)

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
        day, number = day_of(until), self._numbers(len(ids))
        table = self._table(day)
        values = {
            "parts": json.dumps(dict(zip(ids, starts, strict=True))), "number": number,
            "session": session.id, "host": session.host, "pid": session.pid,
            "version": version, "keep_for": keep_for, "now": now, "until": until,
        }  # fmt: skip
        self.left += ids
        add = _DONE.format(table=table, result=_RESULT if has_results else "''")
        self._connection.execute(add, values)
        self._note(day, number)
        return self._connection.execute(_REMOVE.format(table=table), {"number": number}).rowcount

    def _numbers(self, count: int) -> int:
        """The first of `count` new numbers for outcomes, each higher than all earlier ones."""
        ((last,),) = self._get(_NUMBER, [count])
        return typed(int, last, "the number of outcomes") - count + 1

    def _note(self, day: int, number: int) -> None:
        """Note in which blocks the outcomes from this number on are, by their queues."""
        table = _name(day)
        ((first, last),) = self._get(_QUEUES.format(table=table), [number - 1])
        if first != last:
            self._connection.execute(_NOTE_ALL.format(table=table), {"day": day, "number": number - 1})
        elif first is not None:
            ((top,),) = self._get("SELECT last FROM intervalq_outcome_number", [])
            for block in range(number // _BLOCK, top // _BLOCK + 1):
                self._connection.execute(_NOTE_ONE, {"day": day, "queue": first, "block": block})

    def sweep(self, now: int) -> None:
        """Drop the table of a day that is over."""
        first = self._days()[:1]
        if first and first[0] < day_of(now):
            self._connection.execute(f"DROP TABLE {_name(first[0])}")
            self._connection.execute("DELETE FROM intervalq_outcome_queues WHERE day = ?", first)
            self._connection.execute("DELETE FROM intervalq_outcome_days WHERE day = ?", first)

    def find(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        found: list[tuple[int, OutcomeRow]] = []
        where = "t.until > :now"
        values: dict[str, Any] = {"now": now, "limit": -1 if command.limit is None else command.limit}
        for field, value in (("queue", command.queue), ("state", command.state)):
            if value is not None:
                where += f" AND t.{field} = :{field}"
                values[field] = value
        for day in self._days():
            names = {"table": _name(day), "where": where}
            if command.ids:
                get = f"{_GET.format(**names)} AND t.id = :id"
                for id_ in dict.fromkeys(command.ids):
                    found += self._rows(get, {**values, "id": id_})
                continue
            get = _GET.format(**names)
            if command.queue is not None:
                found += self._rows(_GET_OF_QUEUE.format(**names), {**values, "day": day})
                get += f" AND t.rowid <= {OLD_NUMBERS}"
            found += self._rows(f"{get} ORDER BY t.rowid DESC LIMIT :limit", values)
        found.sort(key=_order, reverse=not command.ids)
        return [one for _, one in found[: command.limit]]

    def _get(self, statement: str, values: Any) -> list[Any]:  # noqa: ANN401 - as `execute` takes them
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the user of the connection may have set another one
        return cursor.execute(statement, values).fetchall()

    def _rows(self, statement: str, values: dict[str, Any]) -> list[tuple[int, OutcomeRow]]:
        return [(number, sound(OutcomeRow._make(one))) for number, *one in self._get(statement, values)]

    def _days(self) -> list[int]:
        return [typed(int, day, "a day of outcomes") for (day,) in self._get(_DAYS, [])]

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


def _order(numbered: tuple[int, OutcomeRow]) -> tuple[int, int, int]:
    number, outcome = numbered
    return (0, outcome.ended, number) if number <= OLD_NUMBERS else (1, number, 0)
