"""Tasks in dictionaries, with an index for each query of the rules."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from intervalq.tasks.rules import (
    Count,
    LockRow,
    Mark,
    OutcomeRow,
    Outcomes,
    QueueStats,
    Row,
    Select,
    Session,
    looked_at,
    rank,
    skippable,
)
from intervalq_stores.memory._task_outcomes import MemoryOutcomes

_SWEPT: Final = 16
"""How many marks or locks a sweep forgets: more than a command creates on average."""

_place = attrgetter("place")


class MemoryTable:
    """A `Table`. Its heaps may have outdated entries of tasks that have changed since, which are skipped."""

    def __init__(self) -> None:
        self.fresh: dict[str, int] = {}
        """The least `ready` of free tasks put into each queue. The code that wakes others clears it."""
        self.left: list[str] = []
        """The tasks that have left outcomes. Cleared likewise."""
        self._rows: dict[str, Row] = {}
        self._queues: dict[str, dict[str, Row]] = {}
        self._heaps: dict[str, dict[int, list[tuple[int, str]]]] = {}
        """For each queue and priority, a heap: when its tasks are ready, and their ids."""
        self._lines: dict[tuple[str, str], list[Row]] = {}
        self._held: dict[str, dict[str, Row]] = {}
        self._marks: dict[tuple[str, str], Mark] = {}
        self._ending: list[tuple[int, tuple[str, str]]] = []
        self._sessions: dict[str, Session] = {}
        self._locks: dict[str, LockRow] = {}
        self._outcomes = MemoryOutcomes()

    # --- tasks --------------------------------------------------------------------------------------

    def find(self, ids: Iterable[str]) -> dict[str, Row]:
        """See `Table.find`."""
        rows = self._rows
        return {id_: rows[id_] for id_ in ids if id_ in rows}

    def put(self, rows: Sequence[Row]) -> None:
        """See `Table.put`."""
        for row in rows:
            before = self._rows.get(row.id)
            if before is not None:
                self._forget(before, row)
            self._rows[row.id] = row
            self._queues.setdefault(row.queue, {})[row.id] = row
            if row.session is not None:
                self._held.setdefault(row.session, {})[row.id] = row
            if row.key is not None:
                line = self._lines.setdefault((row.queue, row.key), [])
                where = bisect_left(line, row.place, key=_place)
                line[where : where + (where < len(line) and line[where].id == row.id)] = [row]
            ready = row.ready
            if ready is None:
                continue
            if row.session is None:
                self.fresh[row.queue] = min(ready, self.fresh.get(row.queue, ready))
            if before is None or _home(before) != _home(row):
                self._push(row, ready)

    def remove(self, rows: Sequence[Row]) -> None:
        """See `Table.remove`."""
        for row in rows:
            before = self._rows.pop(row.id, None)
            if before is not None:
                self._forget(before, None)

    def _forget(self, before: Row, after: Row | None) -> None:
        """Remove a task from the indexes that it leaves."""
        if after is None or after.queue != before.queue:
            tasks = self._queues[before.queue]
            del tasks[before.id]
            if not tasks:
                del self._queues[before.queue]
                self._heaps.pop(before.queue, None)
        if before.session is not None and (after is None or after.session != before.session):
            tasks = self._held[before.session]
            del tasks[before.id]
            if not tasks:
                del self._held[before.session]
        if before.key is not None and (
            after is None or (after.queue, after.key, after.place) != (before.queue, before.key, before.place)
        ):
            name = before.queue, before.key
            line = self._lines[name]
            del line[bisect_left(line, before.place, key=_place)]
            if not line:
                del self._lines[name]

    # --- what is ready ------------------------------------------------------------------------------

    def ready(self, queue: str, now: int, limit: int) -> list[Row]:
        """See `Table.ready`."""
        most, heaps = looked_at(limit), self._heaps.get(queue, {})
        ranked = [
            [(rank(ready, priority), priority, id_) for ready, id_ in self._first(queue, priority, now, most)]
            for priority in list(heaps)
        ]
        for priority, entries in zip(heaps, ranked, strict=True):
            for place, _, id_ in entries:
                heappush(heaps[priority], (place - rank(0, priority), id_))
        first = list(islice(merge(*ranked), most))
        skipped = random.randint(0, skippable([priority for _, priority, _ in first], limit))  # noqa: S311 - no secret
        return [self._rows[id_] for _, _, id_ in first[skipped : skipped + limit]]

    def next_ready(self, queue: str, now: int) -> int | None:
        """See `Table.next_ready`."""
        soon: list[int] = []
        for priority, heap in self._heaps.get(queue, {}).items():
            entries = self._first(queue, priority, now, len(self._rows))
            while heap and not self._is_right(queue, priority, heap[0]):
                heappop(heap)
            soon += [heap[0][0]] if heap else []
            for entry in entries:
                heappush(heap, entry)
        return min(soon, default=None)

    def _first(self, queue: str, priority: int, now: int, limit: int) -> list[tuple[int, str]]:
        """Take the entries of ready tasks from a heap, in order."""
        heap = self._heaps[queue][priority]
        taken: list[tuple[int, str]] = []
        while heap and len(taken) < limit and heap[0][0] <= now:
            entry = heappop(heap)
            # A task that left and came back has two entries, which are adjacent.
            if self._is_right(queue, priority, entry) and (not taken or taken[-1] != entry):
                taken.append(entry)
        return taken

    def _push(self, row: Row, ready: int) -> None:
        heap = self._heaps.setdefault(row.queue, {}).setdefault(row.priority, [])
        heappush(heap, (ready, row.id))
        tasks = self._queues[row.queue]
        if len(heap) > 2 * len(tasks) + 64:  # most of them are outdated
            heap[:] = [
                (one.ready, one.id)
                for one in tasks.values()
                if one.ready is not None and one.priority == row.priority
            ]
            heapify(heap)

    def _is_right(self, queue: str, priority: int, entry: tuple[int, str]) -> bool:
        row = self._rows.get(entry[1])
        return row is not None and _home(row) == (queue, priority, entry[0])

    def of_key(self, queue: str, key: str) -> list[Row]:
        """See `Table.of_key`."""
        return list(self._lines.get((queue, key), ()))

    def ends_of_key(self, queue: str, key: str) -> tuple[Row, Row] | None:
        """See `Table.ends_of_key`."""
        line = self._lines.get((queue, key))
        return (line[0], line[-1]) if line else None

    def count_of_key(self, queue: str, key: str, most: int) -> int:
        """See `Table.count_of_key`."""
        return min(most, len(self._lines.get((queue, key), ())))

    def next_of_key(self, queue: str, key: str, first: int) -> list[Row]:
        """See `Table.next_of_key`."""
        return [row for row in self._lines.get((queue, key), ())[:first] if row.waiting]

    def of_session(self, session: str) -> list[Row]:
        """See `Table.of_session`."""
        held = self._held.get(session, {})
        return [held[id_] for id_ in sorted(held)]

    # --- marks and sessions -------------------------------------------------------------------------

    def mark(self, queue: str, key: str) -> Mark | None:
        """See `Table.mark`."""
        return self._marks.get((queue, key))

    def put_mark(self, mark: Mark) -> None:
        """See `Table.put_mark`."""
        self._marks[mark.queue, mark.key] = mark
        if mark.until is not None:
            heappush(self._ending, (mark.until, (mark.queue, mark.key)))

    def sweep_marks(self, now: int) -> None:
        """See `Table.sweep_marks`."""
        for _ in range(_SWEPT):
            if not self._ending or self._ending[0][0] > now:
                break
            until, name = heappop(self._ending)
            mark = self._marks.get(name)
            if mark is not None and mark.until == until:
                del self._marks[name]

    def lock(self, name: str) -> LockRow | None:
        """See `Table.lock`."""
        return self._locks.get(name)

    def put_lock(self, lock: LockRow) -> None:
        """See `Table.put_lock`. The last one put is the last in order, so the first ones are the oldest."""
        self._locks.pop(lock.name, None)
        self._locks[lock.name] = lock

    def sweep_locks(self, before: int) -> None:
        """See `Table.sweep_locks`."""
        for lock in list(islice(self._locks.values(), _SWEPT)):
            if lock.until <= before:
                del self._locks[lock.name]

    def session(self, session: str) -> Session | None:
        """See `Table.session`."""
        return self._sessions.get(session)

    def put_session(self, session: Session) -> None:
        """See `Table.put_session`."""
        self._sessions[session.id] = session

    def remove_session(self, session: str) -> None:
        """See `Table.remove_session`."""
        self._sessions.pop(session, None)

    def sessions(self) -> list[Session]:
        """See `Table.sessions`."""
        return sorted(self._sessions.values(), key=lambda session: (session.started, session.id))

    # --- outcomes -----------------------------------------------------------------------------------

    def put_outcome(self, fields: tuple[Any, ...]) -> None:
        """See `Table.put_outcome`."""
        self.left.append(fields[0])
        self._outcomes.put(fields)

    def sweep_outcomes(self, now: int) -> None:
        """See `Table.sweep_outcomes`."""
        self._outcomes.sweep(now)

    def outcomes(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        return self._outcomes.find(command, now)

    def set_back(self, now: int, by: int) -> None:
        """Adapt to a clock that was set back: future times move with it and stay as far away as before."""
        self.put([_sooner(row, now, by) for row in self._rows.values() if max(row.at, row.until or 0) > now])
        for mark in list(self._marks.values()):
            if mark.until is not None and mark.until > now:
                self.put_mark(mark._replace(until=mark.until - by))
        for session in self._sessions.values():
            self._sessions[session.id] = session._replace(beaten=min(session.beaten, now))

    # --- looks --------------------------------------------------------------------------------------

    def select(self, command: Select) -> list[Row]:
        """See `Table.select`."""
        rows: Iterable[Row]
        if command.ids:
            rows = self.find(command.ids).values()
        elif command.session is not None:
            rows = self.of_session(command.session)
        else:
            rows = (self._rows if command.queue is None else self._queues.get(command.queue, {})).values()
        found = [
            row
            for row in rows
            if command.queue in (None, row.queue) and command.session in (None, row.session)
        ]
        if not command.ids:
            found.sort(key=lambda row: (row.at, row.id))
        return found if command.limit is None else found[: command.limit]

    def count(self, command: Count, now: int) -> list[QueueStats]:
        """See `Table.count`."""
        found = sorted(
            queue
            for queue in self._queues
            if queue in command.names
            or queue.startswith(command.prefixes)
            or not (command.names or command.prefixes)
        )
        if command.limit is not None:
            found = found[: command.limit]
        return [_stats(queue, list(self._queues[queue].values()), now) for queue in found]


def _home(row: Row) -> tuple[str, int, int | None]:
    """Where it is among those that are claimed: its queue, its priority, and when it is ready."""
    return row.queue, row.priority, row.ready


def _sooner(row: Row, now: int, by: int) -> Row:
    at = row.at - by if row.at > now else row.at
    until = row.until - by if row.until is not None and row.until > now else row.until
    return row._replace(at=at, until=until)


def _stats(queue: str, rows: list[Row], now: int) -> QueueStats:
    claimed = sum(row.is_held(now) for row in rows)
    inbox = sum(row.waiting for row in rows)
    ready = sum(row.ready is not None and row.ready <= now and not row.is_held(now) for row in rows)
    return QueueStats(
        name=queue,
        size=len(rows),
        claimed=claimed,
        ready=ready,
        future=len(rows) - claimed - inbox - ready,
        inbox=inbox,
        most_claims=max(row.claims for row in rows),
    )
