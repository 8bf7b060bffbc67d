"""Tasks in SQLite tables, for the rules, within a transaction that the caller begins and ends."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from intervalq.tasks.rules import (
    COUNTED,
    SECOND,
    Count,
    LockRow,
    Mark,
    OutcomeRow,
    Outcomes,
    QueueStats,
    Row,
    Select,
    Session,
    sound,
    typed,
)
from intervalq_stores.sqlite import _task_order as _order
from intervalq_stores.sqlite._task_order import LEVELS
from intervalq_stores.sqlite._task_outcomes import OutcomeTables
from intervalq_stores.sqlite._task_schema import SET_BACK

FIELDS: Final = ", ".join(Row._fields)

_SWEPT: Final = 16
"""How many marks or locks a sweep forgets: more than a command creates on average."""

_GET: Final = f"SELECT {FIELDS} FROM intervalq_tasks"  # noqa: S608 - our own names
_GET_ALL: Final = f"{_GET} WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
_BY_NUMBER: Final = (
    f"SELECT rowid, {FIELDS} FROM intervalq_tasks "  # noqa: S608
    "WHERE rowid IN (SELECT value FROM json_each(?))"
)
_PUT: Final = (
    f"INSERT INTO intervalq_tasks ({FIELDS}, ready) VALUES ({', '.join('?' * (len(Row._fields) + 1))}) "  # noqa: S608
    "ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{field} = excluded.{field}" for field in (*Row._fields[1:], "ready"))
)
_OF_KEY: Final = f"{_GET} WHERE queue = ? AND key = ?"
_COUNT_OF_KEY: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM intervalq_tasks WHERE queue = ? AND key = ? LIMIT ?)"
)
_NEXT_OF_KEY: Final = f"SELECT * FROM ({_OF_KEY} ORDER BY place LIMIT ?) WHERE waiting"  # noqa: S608
_FIRST_OF: Final = (
    "SELECT rowid FROM intervalq_tasks WHERE queue = ? AND priority = ? AND ready IS NOT NULL "
    "AND session IS NULL ORDER BY ready LIMIT ?"
)
"""The first free tasks of a queue and priority by time."""
_REST_OF: Final = (
    "SELECT value FROM json_each(?) UNION ALL SELECT rowid FROM "
    "(SELECT rowid FROM intervalq_tasks WHERE queue = ? AND waiting ORDER BY at LIMIT ?) "
    "UNION ALL SELECT rowid FROM intervalq_tasks WHERE session IS NOT NULL AND +queue = ?"
)
"""The first tasks of a queue by time that wait behind others; and all claimed ones."""

_NAME: Final = "the name of a queue of tasks"
_CLAIMED_QUEUES: Final = "SELECT DISTINCT queue FROM intervalq_tasks WHERE session IS NOT NULL"
_NEXT_QUEUE: Final = (
    "SELECT min(queue) FROM (SELECT min(queue) AS queue FROM intervalq_tasks "
    "WHERE queue >= ? AND ready IS NOT NULL "
    "UNION ALL SELECT min(queue) FROM intervalq_tasks WHERE queue >= ? AND waiting)"
)
_STATS: Final = f"""{LEVELS}SELECT
    (SELECT count(*) FROM (SELECT 1 FROM levels CROSS JOIN intervalq_tasks
        WHERE queue = ? AND priority = p AND ready <= ? LIMIT ?)),
    (SELECT count(*) FROM (SELECT 1 FROM levels CROSS JOIN intervalq_tasks
        WHERE queue = ? AND priority = p AND ready > ? LIMIT ?)),
    (SELECT count(*) FROM (SELECT 1 FROM intervalq_tasks WHERE queue = ? AND waiting LIMIT ?)),
    (SELECT max(claims) FROM intervalq_tasks WHERE queue = ? AND claims > 0 AND session IS NULL)"""  # noqa: S608 - our own names
_ENDS: Final = "SELECT (SELECT min(rowid) FROM intervalq_tasks), (SELECT max(rowid) FROM intervalq_tasks)"
_SAMPLES: Final = 100
_SAMPLE: Final = 20
"""An estimate reads this many parts of the table, each with this many row numbers."""
_SAMPLED: Final = """WITH RECURSIVE sample (start) AS
    (SELECT ? UNION ALL SELECT start + ? FROM sample WHERE start + ? <= ?)
    SELECT queue, count(*) FILTER (WHERE ready <= ?), count(*) FILTER (WHERE ready > ?),
    count(*) FILTER (WHERE waiting) FROM sample CROSS JOIN intervalq_tasks t
    ON t.rowid >= start AND t.rowid < start + ? GROUP BY queue"""
_STATS_CLAIMED: Final = (
    "SELECT count(*) FILTER (WHERE ifnull(until > ?, 1)), count(*) FILTER (WHERE until > ?), max(claims) "
    "FROM intervalq_tasks WHERE session IS NOT NULL AND +queue = ?"
)


def row_of(values: Sequence[Any]) -> Row:
    """A row from its columns; they are checked, because SQLite accepts any value in any column."""
    flags = values[17] == 1, values[18] == 1, values[19] == 1, *values[20:]
    return sound(
        tuple.__new__(Row, (*values[:7], values[7] == 1, *values[8:17], *flags))
    )  # twice as fast as Row(...)


class SQLiteTable:
    """A `Table`. Changed rows are written together: by `flush`, or when a query needs it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._new: dict[str, Row] = {}
        self._gone: set[str] = set()
        self._ends: dict[tuple[str, str], tuple[Row, Row]] = {}
        self._outcomes: list[tuple[Any, ...]] = []
        self.outcome_tables = OutcomeTables(connection)

    def flush(self) -> None:
        """Write all changes."""
        if self._gone:
            gone = [(id_,) for id_ in self._gone]
            self._connection.executemany("DELETE FROM intervalq_tasks WHERE id = ?", gone)
            self._gone.clear()
        if self._new:
            self._connection.executemany(_PUT, [(*row, row.ready) for row in self._new.values()])
            self._new.clear()
        if self._outcomes:
            self.outcome_tables.put(self._outcomes)
            self._outcomes.clear()

    def forget(self) -> None:
        """Drop unwritten changes, and everything that is cached about the tables."""
        self._new.clear()
        self._gone.clear()
        self._ends.clear()
        self._outcomes.clear()

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction is still open."""
        return self._connection.in_transaction

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Execute a statement."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the user of the connection may have set another one
        return cursor.execute(statement, values).fetchall()

    def changed(self, statement: str, *values: object) -> int:
        """Execute a statement; returns how many rows it changed."""
        return self._connection.execute(statement, values).rowcount

    # --- tasks --------------------------------------------------------------------------------------

    def find(self, ids: Iterable[str]) -> dict[str, Row]:
        """See `Table.find`."""
        asked = list(ids)
        found = {id_: self._new[id_] for id_ in asked if id_ in self._new}
        there = [id_ for id_ in asked if id_ not in found and id_ not in self._gone]
        if len(there) < 4 or any("\0" in id_ for id_ in there):  # SQLite's JSON ends a text there
            values = [row for id_ in there for row in self.rows(f"{_GET} WHERE id = ?", id_)]
        else:
            values = self.rows(_GET_ALL, json.dumps(there))
        found.update((one[0], row_of(one)) for one in values)
        return found

    def put(self, rows: Sequence[Row]) -> None:
        """See `Table.put`."""
        for row in rows:
            self._new[row.id] = row
            if row.key is not None:
                ends = self._ends.get((row.queue, row.key))
                if ends is not None:
                    first = row if row.place <= ends[0].place else ends[0]
                    last = row if row.place >= ends[1].place else ends[1]
                    self._ends[row.queue, row.key] = first, last

    def remove(self, rows: Sequence[Row]) -> None:
        """See `Table.remove`."""
        for row in rows:
            self._new.pop(row.id, None)
            self._gone.add(row.id)
            if row.key is not None:
                self._ends.pop((row.queue, row.key), None)

    # --- what is ready ------------------------------------------------------------------------------

    def skipped(self, queue: str, now: int, limit: int) -> int | None:
        """See `_task_order`."""
        self.flush()
        return _order.skipped(self.rows, queue, now, limit)

    def ranked(self, queue: str, now: int, limit: int) -> list[int]:
        """See `_task_order`."""
        self.flush()
        return _order.ranked(self.rows, queue, now, limit)

    def ready(self, queue: str, now: int, limit: int) -> list[Row]:
        """See `Table.ready`."""
        numbers = self.ranked(queue, now, limit)
        found = {number: row_of(one) for number, *one in self.rows(_BY_NUMBER, json.dumps(numbers))}
        return [found[number] for number in numbers]

    def next_ready(self, queue: str, now: int) -> int | None:
        """See `Table.next_ready`."""
        self.flush()
        return _order.next_ready(self.rows, queue, now)

    def of_key(self, queue: str, key: str) -> list[Row]:
        """See `Table.of_key`."""
        self.flush()
        return [row_of(one) for one in self.rows(f"{_OF_KEY} ORDER BY place", queue, key)]

    def ends_of_key(self, queue: str, key: str) -> tuple[Row, Row] | None:
        """See `Table.ends_of_key`."""
        ends = self._ends.get((queue, key))
        if ends is None:
            self.flush()
            found = [
                row_of(one)
                for order in ("ASC", "DESC")
                for one in self.rows(f"{_OF_KEY} ORDER BY place {order} LIMIT 1", queue, key)
            ]
            if not found:
                return None
            ends = self._ends[queue, key] = (found[0], found[1])
        return ends

    def count_of_key(self, queue: str, key: str, most: int) -> int:
        """See `Table.count_of_key`."""
        self.flush()
        ((there,),) = self.rows(_COUNT_OF_KEY, queue, key, most)
        return int(there)

    def next_of_key(self, queue: str, key: str, first: int) -> list[Row]:
        """See `Table.next_of_key`."""
        self.flush()
        return [row_of(one) for one in self.rows(_NEXT_OF_KEY, queue, key, first)]

    def of_session(self, session: str) -> list[Row]:
        """See `Table.of_session`."""
        self.flush()
        return [row_of(one) for one in self.rows(f"{_GET} WHERE session = ? ORDER BY id", session)]

    # --- marks and sessions -------------------------------------------------------------------------

    def read(self, now: int) -> None:
        """Record the reading of the clock, to the second; if it was set back, move future times with it."""
        clock = self.rows("SELECT last_now FROM intervalq_clock")
        last_now = max((typed(int, one, "the clock of tasks") for (one,) in clock), default=0)
        if last_now - SECOND <= now < last_now + SECOND:
            return
        if now < last_now:
            self.flush()
            for statement in SET_BACK:
                self._connection.execute(statement, {"now": now, "by": last_now - now})
        self.rows("UPDATE intervalq_clock SET last_now = ?", now)

    def mark(self, queue: str, key: str) -> Mark | None:
        """See `Table.mark`."""
        found = self.rows("SELECT * FROM intervalq_marks WHERE queue = ? AND key = ?", queue, key)
        return sound(Mark._make(found[0])) if found else None

    def put_mark(self, mark: Mark) -> None:
        """See `Table.put_mark`."""
        self.rows("REPLACE INTO intervalq_marks (queue, key, id, until) VALUES (?, ?, ?, ?)", *mark)

    def sweep_marks(self, now: int) -> None:
        """See `Table.sweep_marks`."""
        some = "SELECT rowid FROM intervalq_marks WHERE until <= ? LIMIT ?"
        self.rows(f"DELETE FROM intervalq_marks WHERE rowid IN ({some})", now, _SWEPT)  # noqa: S608 - our own

    def lock(self, name: str) -> LockRow | None:
        """See `Table.lock`."""
        found = self.rows("SELECT * FROM intervalq_locks WHERE name = ?", name)
        return sound(LockRow._make(found[0])) if found else None

    def put_lock(self, lock: LockRow) -> None:
        """See `Table.put_lock`."""
        self.rows("REPLACE INTO intervalq_locks VALUES (?, ?, ?, ?, ?)", *lock)

    def sweep_locks(self, before: int) -> None:
        """See `Table.sweep_locks`."""
        some = "SELECT name FROM intervalq_locks WHERE until <= ? LIMIT ?"
        self.rows(f"DELETE FROM intervalq_locks WHERE name IN ({some})", before, _SWEPT)  # noqa: S608 - our own

    def put_outcome(self, fields: tuple[Any, ...]) -> None:
        """See `Table.put_outcome`."""
        self._outcomes.append(fields)

    def sweep_outcomes(self, now: int) -> None:
        """See `Table.sweep_outcomes`."""
        self.outcome_tables.sweep(now)

    def outcomes(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        return self.outcome_tables.find(command, now)

    def session(self, session: str) -> Session | None:
        """See `Table.session`."""
        found = self.rows("SELECT * FROM intervalq_sessions WHERE id = ?", session)
        return sound(Session._make(found[0])) if found else None

    def put_session(self, session: Session) -> None:
        """See `Table.put_session`."""
        self.rows("REPLACE INTO intervalq_sessions VALUES (?, ?, ?, ?, ?, ?, ?)", *session)

    def remove_session(self, session: str) -> None:
        """See `Table.remove_session`."""
        self.rows("DELETE FROM intervalq_sessions WHERE id = ?", session)

    def sessions(self) -> list[Session]:
        """See `Table.sessions`."""
        found = self.rows("SELECT * FROM intervalq_sessions ORDER BY started, id")
        return [sound(Session._make(one)) for one in found]

    # --- looks --------------------------------------------------------------------------------------

    def select(self, command: Select) -> list[Row]:
        """See `Table.select`."""
        self.flush()
        if command.ids:
            found = self.find(command.ids)
            rows = [found[id_] for id_ in command.ids if id_ in found]
            rows = [row for row in rows if command.queue in (None, row.queue)]
            rows = [row for row in rows if command.session in (None, row.session)]
            return rows if command.limit is None else rows[: command.limit]
        fields = FIELDS if command.values else FIELDS.replace(" json,", " 'null',")
        statement, values = f"SELECT {fields} FROM intervalq_tasks WHERE 1", list[object]()  # noqa: S608
        if command.queue is not None and command.session is None and command.limit is not None:
            numbers = [
                number
                for level in _order.levels(self.rows, command.queue)
                for (number,) in self.rows(_FIRST_OF, command.queue, level, command.limit)
            ]
            statement += f" AND rowid IN ({_REST_OF})"
            values += [json.dumps(numbers), command.queue, command.limit, command.queue]
        else:
            for field, value in (("queue", command.queue), ("session", command.session)):
                if value is not None:
                    statement += f" AND {field} = ?"
                    values.append(value)
        statement += " ORDER BY at, id LIMIT ?"
        limit = -1 if command.limit is None else command.limit
        return [row_of(one) for one in self.rows(statement, *values, limit)]

    def page(self, queue: str | None, after: str, limit: int) -> list[Row]:
        """The first tasks of a queue (None: of all queues) by id, after the id `after`."""
        where, values = ("id > ?", [after]) if queue is None else ("id > ? AND queue = ?", [after, queue])
        return [row_of(one) for one in self.rows(f"{_GET} WHERE {where} ORDER BY id LIMIT ?", *values, limit)]

    def count(self, command: Count, now: int) -> list[QueueStats]:
        """See `Table.count`."""
        self.flush()
        names = set(command.names)
        for prefix in command.prefixes or (() if names else ("",)):
            names |= self._queues(prefix)
        found: list[QueueStats] = []
        about: dict[str, tuple[int, int, int]] | None = None
        for name in sorted(names, key=str.encode):
            if len(found) == command.limit:
                break
            stats = self._stats(name, now)
            if not stats.exact:
                about = self._sampled(now) if about is None else about
                stats = self._stats(name, now, about.get(name))
            found += [stats] if stats.size else []
        return found

    def _queues(self, prefix: str) -> set[str]:
        """The names of queues with a prefix; each takes one index lookup, however many tasks it has."""
        found = {name for (name,) in self.rows(_CLAIMED_QUEUES) if typed(str, name, _NAME).startswith(prefix)}
        start = prefix
        while True:
            ((name,),) = self.rows(_NEXT_QUEUE, start, start)
            if name is None or not typed(str, name, _NAME).startswith(prefix):
                return found
            found.add(name)
            start = name + "\1"

    def _stats(self, queue: str, now: int, about: tuple[int, int, int] | None = None) -> QueueStats:
        """The numbers of a queue's tasks; those above `COUNTED` are `COUNTED` + 1, or taken from `about`."""
        most = COUNTED + 1
        values = queue, queue, now, most, queue, now, most, queue, most, queue
        ((past, coming, inbox, again),) = self.rows(_STATS, *values)
        exact = max(past, coming, inbox) < most
        if about is not None:
            counted = zip((past, coming, inbox), about, strict=True)
            past, coming, inbox = (max(one, other) if one == most else one for one, other in counted)
        ((claimed, leased, claims),) = self.rows(_STATS_CLAIMED, now, now, queue)
        size = past + coming - leased + inbox + claimed
        claims = max(typed(int, n or 0, f"the claims of a task of queue {queue!a}") for n in (again, claims))
        return sound(QueueStats(queue, size, claimed, past, coming - leased, inbox, claims, exact))

    def _sampled(self, now: int) -> dict[str, tuple[int, int, int]]:
        """Estimates, for each queue, of its tasks that are ready, in the future, and behind others."""
        ((first, last),) = self.rows(_ENDS)
        step = max(_SAMPLE, (last - first + 1) // _SAMPLES)
        start = first + random.randrange(step - _SAMPLE + 1)  # noqa: S311 - no secret
        found = self.rows(_SAMPLED, start, step, step, last, now, now, _SAMPLE)
        return {
            queue: (past * step // _SAMPLE, coming * step // _SAMPLE, inbox * step // _SAMPLE)
            for queue, past, coming, inbox in found
        }
