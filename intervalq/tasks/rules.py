"""The specification of durable tasks: what each command does to a table of tasks, at a given time.

`apply(table, command, now)` is all that a store does, and all that it may do. The state is a table that may
have a million rows. It is changed in place, and only after everything has been checked, so a command that
raises has changed nothing. One choice is left to the table: *which* of the ready tasks are claimed, as long
as the number is right. Postgres has the same rules in SQL; the conformance suite compares them with these.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from intervalq._spec.shape import typed
from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks._spec.commands import (
    Acquire,
    Acquired,
    Beat,
    Beaten,
    Begin,
    Change,
    Command,
    Count,
    Delete,
    Depend,
    End,
    Failed,
    Finished,
    Insert,
    Modified,
    Modify,
    Range,
    Release,
    Select,
    Sessions,
    Work,
    Worked,
)
from intervalq.tasks._spec.locks import acquire, release
from intervalq.tasks._spec.row import COUNTED, SECOND, Held, Mark, QueueStats, Row, Session, sound
from intervalq.tasks._spec.sessions import beat, begin, end
from intervalq.tasks._spec.table import Table
from intervalq.tasks._spec.transitions import begun, changed, claimed, rest

__all__ = [
    "COUNTED",
    "SECOND",
    "Acquire",
    "Acquired",
    "Beat",
    "Beaten",
    "Begin",
    "Change",
    "Command",
    "Count",
    "Delete",
    "Depend",
    "End",
    "Failed",
    "Finished",
    "Held",
    "Insert",
    "Mark",
    "Modified",
    "Modify",
    "QueueStats",
    "Range",
    "Release",
    "Row",
    "Select",
    "Session",
    "Sessions",
    "Table",
    "Work",
    "Worked",
    "apply",
    "changed",
    "rest",
    "sound",
    "typed",
]

A = TypeVar("A")


def apply(table: Table, command: Command[A], now: int) -> A:
    """Apply a command when the store's clock reads `now`, and return its answer.

    Raises:
        DependencyError, InboxFull: see `Modify`; the table is as it was.
    """
    return cast("A", _RULES[type(command)](table, command, now))


# --- modify ------------------------------------------------------------------------------------------


def _modify(table: Table, command: Modify, now: int) -> Modified:
    named = [part.id for part in _named(command)]
    known = table.find([*named, *(insert.id for insert in command.inserts)])
    inserts, existing = _new(table, command, known, now)
    _check(command, known, [insert.id for insert in inserts if insert.id in known], now)
    _check_inboxes(table, command, inserts, known, now)

    for delete in command.deletes:
        _remove(table, known[delete.id], now)
    after = [_change(table, known[change.id], change, now) for change in command.changes]
    rows = [_insert(table, insert, now) for insert in inserts]
    # Other changes of the same key may have changed these rows again: the last of a key may now be its first.
    last = table.find([row.id for row in (*after, *rows) if row.key is not None])
    return Modified(
        inserted=tuple(last.get(row.id, row) for row in rows),
        changed=tuple(last.get(row.id, row) for row in after),
        existing=tuple(existing),
    )


def _new(
    table: Table, command: Modify, known: dict[str, Row], now: int
) -> tuple[list[Insert], list[tuple[str, str]]]:
    """The inserts to make; and, for those that are left out, the existing tasks."""
    inserts: list[Insert] = []
    existing: list[tuple[str, str]] = []
    taken: dict[tuple[str, str], str] = {}
    for insert in command.inserts:
        if insert.skip and insert.id in known:
            existing.append((insert.id, insert.id))
            continue
        if insert.dedupe is not None:
            name = (insert.queue, insert.dedupe)
            mark = table.mark(*name)
            first = taken.get(name)
            if first is None and mark is not None and (mark.until is None or mark.until > now):
                first = mark.id
            if first is not None:
                existing.append((insert.id, first))
                continue
            taken[name] = insert.id
        inserts.append(insert)
    return inserts, existing


def _named(command: Modify) -> list[Change | Delete | Depend]:
    return [*command.changes, *command.deletes, *command.depends]


def _check(command: Modify, known: dict[str, Row], collisions: list[str], now: int) -> None:
    """Check that all tasks exist at their versions and are not claimed by others."""
    missing: dict[type, list[str]] = {Change: [], Delete: [], Depend: []}
    claims: list[str] = []
    for part in _named(command):
        row = known.get(part.id)
        if row is None or (row.version != part.version and not command.force):
            missing[type(part)].append(part.id)
        elif isinstance(part, Depend) or command.force:
            continue
        elif (row.is_held(now) and row.session != command.session) or (
            isinstance(part, Change)
            and part.keep
            and not (row.is_held(now) and row.session == command.session)
        ):
            claims.append(part.id)
    if collisions or claims or any(missing.values()):
        raise DependencyError(
            inserts=tuple(collisions),
            changes=tuple(missing[Change]),
            deletes=tuple(missing[Delete]),
            depends=tuple(missing[Depend]),
            claims=tuple(claims),
        )


def _check_inboxes(
    table: Table, command: Modify, inserts: list[Insert], known: dict[str, Row], now: int
) -> None:
    """Check that no inbox exceeds its limit; tasks that this command removes make room."""
    sizes = _sizes(table, command, inserts)
    if not sizes:
        return
    gone = {delete.id for delete in command.deletes}

    def moved(queue: str, row: Row, by: int) -> None:
        if row.key is not None and (queue, row.key) in sizes:
            sizes[queue, row.key] += by

    for delete in command.deletes:
        moved(known[delete.id].queue, known[delete.id], -1)
    for change in command.changes:
        row = known[change.id]
        if change.queue is not None and change.queue != row.queue:
            moved(row.queue, row, -1)
            moved(change.queue, row, 1)
            gone.add(change.id)
    for insert in inserts:
        line = insert.queue, cast("str", insert.key)
        if line not in sizes:
            continue
        if insert.replace:
            # Only the first task of a key can be claimed, and all others are replaced.
            ends = table.ends_of_key(*line)
            sizes[line] = int(ends is not None and ends[0].is_held(now) and ends[0].id not in gone)
        # The first one of them doesn't count as waiting.
        elif insert.inbox is not None and sizes[line] > insert.inbox:
            raise InboxFull(insert.queue, line[1], insert.inbox)
        sizes[line] += 1


def _sizes(table: Table, command: Modify, inserts: list[Insert]) -> dict[tuple[str, str], int]:
    """The number of tasks of each key whose inbox has a limit."""
    limits: dict[tuple[str, str], list[int]] = {}
    for insert in inserts:
        if insert.key is not None and insert.inbox is not None:
            limits.setdefault((insert.queue, insert.key), []).append(insert.inbox)
    parts = len(inserts) + len(command.changes) + len(command.deletes)
    return {
        line: _size(table, *line, min(inboxes) - parts, max(inboxes) + parts + 1)
        for line, inboxes in limits.items()
    }


def _size(table: Table, queue: str, key: str, few: int, most: int) -> int:
    """The number of tasks of a key. If it is at most `few`, gaps may count, because they can't matter."""
    ends = table.ends_of_key(queue, key)
    span = ends[1].place - ends[0].place + 1 if ends is not None else 0
    return span if span <= few else table.count_of_key(queue, key, most)


def _insert(table: Table, insert: Insert, now: int) -> Row:
    row = Row(
        id=insert.id,
        version=0,
        queue=insert.queue,
        at=now + insert.delay if insert.at is None else insert.at,
        json=insert.json,
        key=insert.key,
        attempt=insert.attempt,
        error=insert.error,
        created=now,
        modified=now,
        dedupe=insert.dedupe,
        dedupe_for=insert.dedupe_for,
    )
    if insert.dedupe is not None:
        table.put_mark(Mark(insert.queue, insert.dedupe, insert.id, None))
    if insert.key is not None:
        if insert.replace:
            for other in table.of_key(insert.queue, insert.key):
                if not other.is_held(now):
                    _remove(table, other, now, feed=False)
        row = _last_in_line(table, row)
    table.put([row])
    return row


def _change(table: Table, row: Row, change: Change, now: int) -> Row:
    row = _as_it_is(table, row)
    after = changed(row, change, now)
    if after.dedupe is not None and after.queue != row.queue:  # a dedupe key belongs to a queue
        table.put_mark(Mark(row.queue, after.dedupe, row.id, now + row.dedupe_for))
        after = after._replace(dedupe=None, dedupe_for=0)
    if after.key is None or after.queue == row.queue:
        table.put([after])
        return after
    # It leaves its key in the old queue, and becomes the last task of its key in the new one.
    table.remove([row])
    if not row.waiting:
        _feed(table, row)
    after = _last_in_line(table, after)
    table.put([after])
    return after


def _remove(table: Table, row: Row, now: int, *, feed: bool = True) -> None:
    row = _as_it_is(table, row)
    table.remove([row])
    if row.dedupe is not None:
        table.put_mark(Mark(row.queue, row.dedupe, row.id, now + row.dedupe_for))
    if feed and row.key is not None and not row.waiting:
        _feed(table, row)


def _as_it_is(table: Table, row: Row) -> Row:
    """A task as it is now: an earlier part of the same command may have made it the first of its key."""
    return row if row.key is None else table.find([row.id])[row.id]


def _last_in_line(table: Table, row: Row) -> Row:
    ends = table.ends_of_key(row.queue, cast("str", row.key))
    return row._replace(place=ends[1].place + 1 if ends else 1, waiting=ends is not None)


def _feed(table: Table, gone: Row) -> None:
    """Make the next task of a key claimable, now that the first is gone."""
    ends = table.ends_of_key(gone.queue, cast("str", gone.key))
    if ends is not None and ends[0].waiting:
        table.put([ends[0]._replace(waiting=False)])


# --- work --------------------------------------------------------------------------------------------


def _work(table: Table, command: Work, now: int) -> Worked:
    known = table.find(part.id for part in command.settled)
    lost: list[str] = []
    for part in command.settled:
        row = known.get(part.id)
        if row is None or row.version != part.version or row.session != command.session:
            lost.append(part.id)
        elif isinstance(part, Delete):
            _remove(table, row, now)
        else:
            _change(table, row, part, now)
    session = table.session(command.session)
    if session is None:
        return Worked(alive=False, lost=tuple(lost))
    mine = [row for row in table.find(command.begun).values() if row.session == command.session]
    table.put([begun(row) for row in mine if not row.begun])
    limit = command.limit
    if command.most is not None and limit:
        held = sum(
            len(table.of_session(other.id))
            for other in table.sessions()
            if other.consumer == session.consumer
        )
        limit = max(0, min(limit, command.most - held))
    rows = [claimed(row, command, now) for row in _choose(table, command.queues, limit, now)]
    table.put(rows)
    wait = None
    if len(rows) < limit:
        soon = [at for at in (table.next_ready(queue, now) for queue in command.queues) if at is not None]
        wait = min(soon) - now if soon else None
    return Worked(lost=tuple(lost), claimed=tuple(rows), wait=wait)


def _choose(table: Table, queues: Sequence[str], limit: int, now: int) -> list[Row]:
    """Ready tasks: first the same share of each queue, whatever their sizes, then whatever else is ready."""
    if not limit or not queues:
        return []
    share = -(-limit // len(queues))
    chosen: list[Row] = []
    rest: list[Row] = []
    for queue in random.sample(queues, len(queues)):
        ready = table.ready(queue, now, limit)
        chosen += ready[:share]
        rest += ready[share:]
        if len(chosen) >= limit:
            break
    return (chosen + rest)[:limit]


# --- queries -----------------------------------------------------------------------------------------


def _select(table: Table, command: Select, now: int) -> tuple[Row, ...]:
    del now
    rows = table.select(command)
    return tuple(rows if command.values else [row._replace(json="null") for row in rows])


_RULES: Final[dict[type, Callable[[Table, Any, int], Any]]] = {
    Modify: _modify,
    Work: _work,
    Begin: begin,
    Beat: beat,
    End: end,
    Acquire: acquire,
    Release: release,
    Select: _select,
    Count: lambda table, command, now: tuple(table.count(command, now)),
    Sessions: lambda table, _command, _now: tuple(table.sessions()),
}
