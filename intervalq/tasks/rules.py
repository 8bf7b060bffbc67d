"""The specification of durable tasks: what each command does to a table of tasks, at a given time.

`apply(table, command, now)` is all that a store does, and all that it may do. The state is a table that may
have a million rows. It is changed in place, and only after everything has been checked, so a command that
raises has changed nothing. One choice is left to the table: *which* of the ready tasks are claimed, as long
as the number is right, and the order of priorities (`_spec/order.py`). Postgres has the same rules in SQL;
the conformance suite compares them with these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from intervalq._spec.shape import sound, typed
from intervalq.tasks._spec.checks import check, check_inboxes, named, new_inserts
from intervalq.tasks._spec.commands import (
    Acquire,
    Acquired,
    Beat,
    Beaten,
    Begin,
    Cancel,
    Cancelled,
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
    Outcomes,
    Range,
    Release,
    Select,
    Sessions,
    Work,
    Worked,
)
from intervalq.tasks._spec.leave import leave
from intervalq.tasks._spec.locks import acquire, release
from intervalq.tasks._spec.order import HIGHEST, STEP, choose, looked_at, rank, skippable
from intervalq.tasks._spec.outcome import CANCELLED, DAY, DONE, FAILED, Kept, day_of, is_dead, with_error
from intervalq.tasks._spec.row import (
    COUNTED,
    SECOND,
    LockRow,
    Mark,
    OutcomeRow,
    QueueStats,
    Row,
    Session,
)
from intervalq.tasks._spec.table import Table
from intervalq.tasks._spec.transitions import begun, cancelled, changed, claimed, freed, given_back, rest

__all__ = [
    "CANCELLED",
    "COUNTED",
    "DAY",
    "DONE",
    "FAILED",
    "HIGHEST",
    "SECOND",
    "STEP",
    "Acquire",
    "Acquired",
    "Beat",
    "Beaten",
    "Begin",
    "Cancel",
    "Cancelled",
    "Change",
    "Command",
    "Count",
    "Delete",
    "Depend",
    "End",
    "Failed",
    "Finished",
    "Insert",
    "Kept",
    "LockRow",
    "Mark",
    "Modified",
    "Modify",
    "OutcomeRow",
    "Outcomes",
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
    "day_of",
    "looked_at",
    "rank",
    "rest",
    "skippable",
    "sound",
    "typed",
    "with_error",
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
    ids = [part.id for part in named(command)]
    known = table.find([*ids, *(insert.id for insert in command.inserts)])
    inserts, existing = new_inserts(table, command, known, now)
    check(command, known, [insert.id for insert in inserts if insert.id in known], now)
    check_inboxes(table, command, inserts, known, now)

    for delete in command.deletes:
        row = _as_it_is(table, known[delete.id])
        mine = bool(command.session) and row.session == command.session and not row.cancelled
        leave(table, row, DONE if mine else CANCELLED, delete.kept, now, by=command.session)
        _remove(table, row, now)
    after = [_change(table, known[change.id], change, command.session, now) for change in command.changes]
    rows = [_insert(table, insert, now) for insert in inserts]
    # Other changes of the same key may have changed these rows again: the last of a key may now be its first.
    last = table.find([row.id for row in (*after, *rows) if row.key is not None])
    return Modified(
        inserted=tuple(last.get(row.id, row) for row in rows),
        changed=tuple(last.get(row.id, row) for row in after),
        existing=tuple(existing),
    )


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
        priority=insert.priority,
        keep_for=insert.keep_for,
        per_key=insert.per_key,
        follow_up=insert.follow_up,
        awaits=insert.awaits,
        waiting=insert.awaits > 0,
        errors=with_error("", insert.error, insert.attempt, now) if insert.keep_for and insert.error else "",
    )
    if insert.dedupe is not None:
        table.put_mark(Mark(insert.queue, insert.dedupe, insert.id, None))
    if insert.key is not None:
        if insert.replace:
            for other in table.of_key(insert.queue, insert.key):
                if not other.is_held(now):
                    leave(table, other, CANCELLED, None, now)
                    _remove(table, other, now, feed=False)
        row = _last_in_line(table, row)
    table.put([row])
    return row


def _change(table: Table, row: Row, change: Change, session: str, now: int) -> Row:
    row = _as_it_is(table, row)
    after = changed(row, change, now)
    if is_dead(after.queue) and not is_dead(row.queue):
        leave(table, after._replace(queue=row.queue), FAILED, change.kept, now, by=session)
        after = after._replace(follow_up="")  # it has ended, even if it is tried again
    if after.dedupe is not None and after.queue != row.queue:  # a dedupe key belongs to a queue
        table.put_mark(Mark(row.queue, after.dedupe, row.id, now + row.dedupe_for))
        after = after._replace(dedupe=None, dedupe_for=0)
    if after.key is None or after.queue == row.queue:
        table.put([after])
        return after
    # It leaves its key in the old queue, and becomes the last task of its key in the new one.
    table.remove([row])
    if not row.waiting:
        _feed(table, row, now)
    after = _last_in_line(table, after)
    table.put([after])
    return after


def _remove(table: Table, row: Row, now: int, *, feed: bool = True) -> None:
    row = _as_it_is(table, row)
    table.remove([row])
    if row.dedupe is not None:
        table.put_mark(Mark(row.queue, row.dedupe, row.id, now + row.dedupe_for))
    if feed and row.key is not None and not row.waiting:
        _feed(table, row, now)


def _as_it_is(table: Table, row: Row) -> Row:
    """A task as it is now: an earlier part of the same command may have ended what it waited for."""
    return table.find([row.id])[row.id] if row.waiting or row.key is not None else row


def _last_in_line(table: Table, row: Row) -> Row:
    """A task as the last one of its key, whose `per_key` is in force from now on."""
    key = cast("str", row.key)
    ends = table.ends_of_key(row.queue, key)
    if ends is None:
        return row._replace(place=1, waiting=False)
    is_full = row.per_key == 1 or table.count_of_key(row.queue, key, row.per_key) >= row.per_key
    return row._replace(place=ends[1].place + 1, waiting=is_full or ends[1].waiting)


def _feed(table: Table, gone: Row, now: int) -> None:
    """Make the next task of a key claimable, now that one of the first is gone.

    It is behind the first tasks of all other keys that were ready by now: keys take turns, whatever their
    backlogs. If more tasks of the key may run at a time since later ones came, it is several.
    """
    key = cast("str", gone.key)
    ends = table.ends_of_key(gone.queue, key)
    if ends is None or not ends[1].waiting:
        return
    first = ends[1].per_key
    fed = table.next_of_key(gone.queue, key, first) if first > 1 else [ends[0]] if ends[0].waiting else []
    table.put([row._replace(waiting=False, at=max(row.at, now)) for row in fed])


# --- cancel ------------------------------------------------------------------------------------------


def _cancel(table: Table, command: Cancel, now: int) -> Cancelled:
    removed: list[str] = []
    stopping: list[str] = []
    for id_ in dict.fromkeys(command.ids):
        row = table.find([id_]).get(id_)
        if row is None:
            continue
        if row.session is None or row.until is not None:
            leave(table, row, CANCELLED, None, now)
            _remove(table, row, now)
            removed.append(id_)
            continue
        if not row.cancelled:
            table.put([cancelled(row, now)])
        stopping.append(id_)
    return Cancelled(tuple(removed), tuple(stopping))


def _is_over(row: Row, part: Delete | Change, session: str) -> bool:
    """Whether a session ends its work on a cancelled task by this, whatever else it says of the task."""
    return row.session == session and not (isinstance(part, Change) and part.keep)


def _left(table: Table, session: str, now: int) -> list[Row]:
    """The claims that a session has left, to be freed. Those of cancelled tasks are removed."""
    rows = table.of_session(session)
    for row in rows:
        if row.cancelled:
            leave(table, row, CANCELLED, None, now)
            _remove(table, row, now)
    return [row for row in rows if not row.cancelled]


# --- work --------------------------------------------------------------------------------------------


def _work(table: Table, command: Work, now: int) -> Worked:
    known = table.find(part.id for part in command.settled)
    lost: list[str] = []
    for part in command.settled:
        row = known.get(part.id)
        if row is not None and row.cancelled and _is_over(row, part, command.session):
            # Another part may be about it, too: what its worker said before it was told.
            del known[part.id]
            leave(table, row, CANCELLED, part.kept, now)
            _remove(table, row, now)
            if isinstance(part, Change) or part.version != row.version:
                lost.append(part.id)
        elif row is None or row.version != part.version or row.session != command.session:
            lost.append(part.id)
        elif isinstance(part, Delete):
            leave(table, row, DONE, part.kept, now, by=command.session)
            _remove(table, row, now)
        else:
            _change(table, row, part, command.session, now)
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
    rows = [claimed(row, command, now) for row in choose(table, command.queues, limit, now)]
    table.put(rows)
    wait = None
    if len(rows) < limit:
        soon = [at for at in (table.next_ready(queue, now) for queue in command.queues) if at is not None]
        wait = min(soon) - now if soon else None
    return Worked(lost=tuple(lost), claimed=tuple(rows), wait=wait)


# --- sessions ----------------------------------------------------------------------------------------


def _begin(table: Table, command: Begin, now: int) -> None:
    table.put_session(command.session._replace(started=now, beaten=now))


def _beat(table: Table, command: Beat, now: int) -> Beaten:
    mine = table.session(command.session)
    if mine is not None:
        table.put_session(mine._replace(beaten=now))
    lapsed = [
        session
        for session in table.sessions()
        if session.id != command.session and session.beaten + session.expiry < now
    ]
    for session in lapsed:
        table.remove_session(session.id)
        table.put([freed(row, now, session) for row in _left(table, session.id, now)])
    table.sweep_marks(now)
    table.sweep_outcomes(now)
    claims = table.of_session(command.session)
    return Beaten(
        alive=mine is not None,
        claim_count=len(claims),
        lapsed=tuple(session.id for session in lapsed),
        cancelled=tuple(Delete(row.id, row.version) for row in claims if row.cancelled),
    )


def _end(table: Table, command: End, now: int) -> None:
    table.remove_session(command.session)
    table.put([given_back(row, now) for row in _left(table, command.session, now)])


# --- queries -----------------------------------------------------------------------------------------


def _select(table: Table, command: Select, now: int) -> tuple[Row, ...]:
    del now
    rows = table.select(command)
    return tuple(rows if command.values else [row._replace(json="null") for row in rows])


_RULES: Final[dict[type, Callable[[Table, Any, int], Any]]] = {
    Modify: _modify,
    Cancel: _cancel,
    Work: _work,
    Begin: _begin,
    Beat: _beat,
    End: _end,
    Acquire: acquire,
    Release: release,
    Select: _select,
    Outcomes: lambda table, command, now: tuple(table.outcomes(command, now)),
    Count: lambda table, command, now: tuple(table.count(command, now)),
    Sessions: lambda table, _command, _now: tuple(table.sessions()),
}
