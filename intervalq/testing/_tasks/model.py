"""The simplest possible table of tasks: the rules use it to compute the answer that a store should give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

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
    day_of,
    rank,
)


class ModelTable:
    """A `Table` without any index. Of the ready tasks, it hands out those that the store chose."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.marks: dict[tuple[str, str], Mark] = {}
        self.living: dict[str, Session] = {}
        self.locks: dict[str, LockRow] = {}
        self.left: list[OutcomeRow] = []
        self._queues: tuple[str, ...] = ()
        self._chosen: list[str] | None = []

    def choose(self, queues: Sequence[str], ids: Iterable[str]) -> None:
        """Hand out these tasks in the next `Work`, which asked for these queues."""
        self._queues = tuple(queues)
        self._chosen = list(ids)

    # --- tasks --------------------------------------------------------------------------------------

    def find(self, ids: Iterable[str]) -> dict[str, Row]:
        """See `Table.find`."""
        return {id_: self.rows[id_] for id_ in ids if id_ in self.rows}

    def put(self, rows: Sequence[Row]) -> None:
        """See `Table.put`."""
        self.rows.update({row.id: row for row in rows})

    def remove(self, rows: Sequence[Row]) -> None:
        """See `Table.remove`."""
        for row in rows:
            del self.rows[row.id]

    def ready(self, queue: str, now: int, limit: int) -> list[Row]:
        """See `Table.ready`: the tasks that the store chose, if its choice was valid."""
        if self._chosen is not None:
            self._check(self._chosen, now, limit)
            self._queues, self._chosen = tuple(self._chosen), None
        return [self.rows[id_] for id_ in self._queues if self.rows[id_].queue == queue]

    def _check(self, chosen: list[str], now: int, limit: int) -> None:
        there = Counter(
            row.queue
            for row in self.rows.values()
            if row.queue in self._queues and row.ready is not None and row.ready <= now
        )
        assert len(set(chosen)) == len(chosen), f"claimed twice at once: {chosen}"
        for id_ in chosen:
            row = self.rows.get(id_)
            assert row is not None, f"claimed {id_}, which is not there"
            assert row.queue in self._queues, f"claimed from a queue that was not asked: {row}"
            assert row.ready is not None and row.ready <= now, f"claimed what is not ready at {now}: {row}"  # noqa: PT018 - one thought
        assert len(chosen) == min(limit, there.total()), f"claimed {len(chosen)} of {there}, limit {limit}"
        share = -(-limit // len(self._queues))
        shares = {queue: min(share, there[queue]) for queue in self._queues}
        got = Counter(self.rows[id_].queue for id_ in chosen)
        for queue, due in shares.items():
            if sum(shares.values()) <= limit:
                assert got[queue] >= due, f"{queue} has a share of {due}, got {got} of {there}"
            else:
                assert got[queue] <= due, f"{queue} has a share of {due}, got {got} of {there}"
        self._check_order(chosen, now)

    def _check_order(self, chosen: list[str], now: int) -> None:
        """Check that nobody was overtaken by a task of another priority that is behind it."""
        places = {
            row.id: (row, rank(row.ready, row.priority))
            for row in self.rows.values()
            if row.ready is not None
        }
        for number, id_ in enumerate(chosen):
            row, place = places[id_]
            left = set(places) - set(chosen[: number + 1])
            for other, before in map(places.__getitem__, left):
                assert (
                    (other.ready or 0) > now
                    or other.queue != row.queue
                    or other.priority == row.priority
                    or before >= place
                ), f"at {now}, {row} overtook {other}"

    def next_ready(self, queue: str, now: int) -> int | None:
        """See `Table.next_ready`."""
        return min(
            (
                row.ready
                for row in self.rows.values()
                if row.queue == queue and row.ready is not None and row.ready > now
            ),
            default=None,
        )

    def of_key(self, queue: str, key: str) -> list[Row]:
        """See `Table.of_key`."""
        line = [row for row in self.rows.values() if (row.queue, row.key) == (queue, key)]
        return sorted(line, key=lambda row: row.place)

    def ends_of_key(self, queue: str, key: str) -> tuple[Row, Row] | None:
        """See `Table.ends_of_key`."""
        line = self.of_key(queue, key)
        return (line[0], line[-1]) if line else None

    def count_of_key(self, queue: str, key: str, most: int) -> int:
        """See `Table.count_of_key`."""
        return min(most, len(self.of_key(queue, key)))

    def next_of_key(self, queue: str, key: str, first: int) -> list[Row]:
        """See `Table.next_of_key`."""
        return [row for row in self.of_key(queue, key)[:first] if row.waiting]

    def of_session(self, session: str) -> list[Row]:
        """See `Table.of_session`."""
        return sorted(row for row in self.rows.values() if row.session == session)

    # --- marks and sessions -------------------------------------------------------------------------

    def mark(self, queue: str, key: str) -> Mark | None:
        """See `Table.mark`."""
        return self.marks.get((queue, key))

    def put_mark(self, mark: Mark) -> None:
        """See `Table.put_mark`."""
        self.marks[mark.queue, mark.key] = mark

    def sweep_marks(self, now: int) -> None:
        """See `Table.sweep_marks`."""
        for name in [name for name, mark in self.marks.items() if mark.until is not None]:
            until = self.marks[name].until
            if until is not None and until <= now:
                del self.marks[name]

    def lock(self, name: str) -> LockRow | None:
        """See `Table.lock`."""
        return self.locks.get(name)

    def put_lock(self, lock: LockRow) -> None:
        """See `Table.put_lock`."""
        self.locks[lock.name] = lock

    def sweep_locks(self, before: int) -> None:
        """See `Table.sweep_locks`."""
        self.locks = {name: lock for name, lock in self.locks.items() if lock.until > before}

    def put_outcome(self, fields: tuple[Any, ...]) -> None:
        """See `Table.put_outcome`."""
        self.left.append(OutcomeRow._make(fields))

    def sweep_outcomes(self, now: int) -> None:
        """See `Table.sweep_outcomes`. A store drops one day at a time, but nobody sees what it has left."""
        self.left = [outcome for outcome in self.left if day_of(outcome.until) >= day_of(now)]

    def outcomes(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        found = [
            outcome
            for outcome in self.left
            if outcome.until > now
            and (not command.ids or outcome.id in command.ids)
            and command.queue in (None, outcome.queue)
            and command.state in (None, outcome.state)
        ]
        return (found if command.ids else found[::-1])[: command.limit]

    def session(self, session: str) -> Session | None:
        """See `Table.session`."""
        return self.living.get(session)

    def put_session(self, session: Session) -> None:
        """See `Table.put_session`."""
        self.living[session.id] = session

    def remove_session(self, session: str) -> None:
        """See `Table.remove_session`."""
        self.living.pop(session, None)

    def sessions(self) -> list[Session]:
        """See `Table.sessions`."""
        return sorted(self.living.values(), key=lambda session: (session.started, session.id))

    # --- looks --------------------------------------------------------------------------------------

    def select(self, command: Select) -> list[Row]:
        """See `Table.select`."""
        rows = [self.rows[id_] for id_ in command.ids if id_ in self.rows]
        if not command.ids:
            rows = sorted(self.rows.values(), key=lambda row: (row.at, row.id))
        if command.queue is not None:
            rows = [row for row in rows if row.queue == command.queue]
        if command.session is not None:
            rows = [row for row in rows if row.session == command.session]
        return rows[: command.limit]

    def count(self, command: Count, now: int) -> list[QueueStats]:
        """See `Table.count`."""
        queues: dict[str, list[Row]] = {}
        for row in self.rows.values():
            queues.setdefault(row.queue, []).append(row)
        wanted = [
            name
            for name in sorted(queues)
            if not (command.names or command.prefixes)
            or name in command.names
            or name.startswith(command.prefixes)
        ]
        return [_stats(name, queues[name], now) for name in wanted[: command.limit]]


def _stats(name: str, rows: list[Row], now: int) -> QueueStats:
    states = Counter(_state(row, now) for row in rows)
    return QueueStats(
        name=name,
        size=len(rows),
        claimed=states["claimed"],
        ready=states["ready"],
        future=states["future"],
        inbox=states["inbox"],
        most_claims=max(row.claims for row in rows),
    )


def _state(row: Row, now: int) -> str:
    if row.waiting:
        return "inbox"
    if row.is_held(now):
        return "claimed"
    # A claim that has ended on its own leaves the task ready, whatever `at` is.
    return "ready" if row.session is not None or row.at <= now else "future"
