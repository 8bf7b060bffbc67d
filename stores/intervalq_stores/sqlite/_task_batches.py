"""Does one command on the SQLite tables, with a fast path for the most frequent kind of work."""

from __future__ import annotations

import json
import random
from typing import Any, Final, TypeVar

from intervalq.errors import InvalidTask
from intervalq.rules import FOREVER
from intervalq.tasks.rules import Command, Delete, Row, Session, Work, Worked, apply, sound
from intervalq_stores.sqlite._task_table import SQLiteTable

A = TypeVar("A")

_SETTLE: Final = (
    "DELETE FROM intervalq_tasks WHERE id IN (SELECT value FROM json_each(?)) AND version = ? "
    "AND +session = ? AND key IS NULL AND dedupe IS NULL "  # +: by ids, not by its index
    "AND keep_for = 0 AND follow_up = ''"
)
_READY: Final = "queue = ? AND priority = 0 AND ready <= ? ORDER BY ready LIMIT ? OFFSET ?"
_NUMBERS: Final = "SELECT rowid FROM intervalq_tasks WHERE "
_CHOSEN: Final = "rowid IN (SELECT value FROM json_each(?))"
# Each column costs time in each row. Most columns of a task that was never claimed are known, which is when
# the last one here is true. Claimed tasks are read before the update: RETURNING would copy them to a
# temporary table.
_READ: Final = (
    "SELECT rowid, id, version, queue, at, json, created, keep_for, "
    "claims = 0 AND attempt = 0 AND error = '' AND errors = '' AND progress = '' "
    "AND dedupe_for = 0 AND alone = 0 AND priority = 0 AND key IS NULL AND dedupe IS NULL AND follow_up = '' "
    "FROM intervalq_tasks WHERE "
)
_NEW: Final = ("", 1, "", 0)
"""The last columns of a task that was never claimed."""
_CLAIM: Final = (
    "UPDATE intervalq_tasks SET version = version + 1, session = ?, until = ?, claims = claims + 1, "  # noqa: S608
    f"attempt = attempt + (? > alone), begun = ? > alone, modified = ?, ready = ? WHERE {_CHOSEN}"
)
_BEGUN: Final = (
    "UPDATE intervalq_tasks SET attempt = attempt + 1, begun = 1 "
    "WHERE id IN (SELECT value FROM json_each(?)) AND +session = ? AND NOT begun"
)


def do(table: SQLiteTable, command: Command[A], now: int) -> A:
    """Do a command, all or nothing, within a transaction that has begun.

    Raises:
        DependencyError, InboxFull: raised by the rules.
        InvalidTask: a text or number in it can't be stored.
    """
    table.rows("SAVEPOINT intervalq")
    table.forget()  # its cached keys may be outdated by the fast path of the previous command
    try:
        answer: Any = _work(table, command, now) if isinstance(command, Work) else None
        if answer is None:
            answer = apply(table, command, now)
            table.flush()
    except BaseException as error:
        table.forget()
        if table.in_transaction:  # for example, a full disk ends the transaction
            table.rows("ROLLBACK TO intervalq")
            table.rows("RELEASE intervalq")
        if isinstance(error, (UnicodeEncodeError, OverflowError)):
            raise InvalidTask(f"a text or number of this command can't be stored: {error}") from error
        raise
    table.rows("RELEASE intervalq")
    return answer  # type: ignore[no-any-return]  # as the type of the command says


def _work(table: SQLiteTable, command: Work, now: int) -> Worked | None:
    """Settle simple tasks that are done, and claim the next ones; None: the rules have to do it."""
    if command.most is not None or any("\0" in id_ for id_ in command.begun):
        return None
    session = table.session(command.session)
    if not _settled(table, command, session, now):
        return None
    if session is None:
        return Worked(alive=False)
    if command.begun:
        table.changed(_BEGUN, json.dumps(command.begun), command.session)
    if not (command.queues and command.limit):
        return Worked()
    until = None if command.lease is None else now + command.lease
    found = _found(table, command, now)
    if found:
        _check(found)
        values = command.session, until, command.begins, command.begins, now, until
        table.changed(_CLAIM, *values, json.dumps([one[0] for one in found]))
    wait = None
    if len(found) < command.limit:
        soon = [at for at in (table.next_ready(queue, now) for queue in command.queues) if at is not None]
        wait = min(soon) - now if soon else None
    return Worked(claimed=_claimed(table, command, found, now), wait=wait)


def _settled(table: SQLiteTable, command: Work, session: Session | None, now: int) -> bool:
    """Settle simple tasks that are done; False: nothing was done, and the rules have to do it."""
    done: dict[int, list[str]] = {}
    kept: list[Delete] = []
    for part in command.settled:
        if not isinstance(part, Delete) or "\0" in part.id:  # SQLite's JSON ends a text there
            return False
        if part.kept is None:
            done.setdefault(part.version, []).append(part.id)
        else:
            kept.append(part)
    left = len(command.settled)
    for version, ids in done.items():
        left -= table.changed(_SETTLE, json.dumps(ids), version, command.session)
    if kept and session is not None:
        left -= table.outcome_tables.settle(kept, session, now)
    if left:  # a claim was lost, or a task isn't a single row
        table.rows("ROLLBACK TO intervalq")
    return not left


def _found(table: SQLiteTable, command: Work, now: int) -> list[Any]:
    """The tasks to claim, in order."""
    if len(command.queues) == 1:
        (queue,) = command.queues
        skipped = table.skipped(queue, now, command.limit)
        if skipped is not None:
            return table.rows(_READ + _READY, queue, now, command.limit, skipped)
        numbers = table.ranked(queue, now, command.limit)
    else:
        numbers = _choose(table, command, now)
    found = {one[0]: one for one in table.rows(_READ + _CHOSEN, json.dumps(numbers))}
    return [found[number] for number in numbers]


def _claimed(table: SQLiteTable, command: Work, found: list[Any], now: int) -> tuple[Row, ...]:
    """The rows that were claimed now."""
    begun, until = command.begins > 0, None if command.lease is None else now + command.lease
    middle, end = (
        (None, 0, False, command.session, until, 1, int(begun), ""),
        (now, None, 0, begun, False, False, "", 0),
    )
    rows = [
        tuple.__new__(Row, (id_, version + 1, queue, at, json_text, *middle, created, *end, keep_for, *_NEW))
        for _, id_, version, queue, at, json_text, created, keep_for, _ in found
    ]
    others = table.find([one[1] for one in found if not one[-1]])
    return tuple([others.get(row.id, row) for row in rows] if others else rows)


def _check(found: list[Any]) -> None:
    """Refuse what `sound` refuses; checking by columns takes a sixth of its time."""
    _, id_, version, queue, at, json_text, created, keep_for, _ = zip(*found, strict=True)
    texts, numbers = (id_, queue, json_text), (version, at, created, keep_for)
    if any(set(map(type, column)) != {str} for column in texts) or any(
        set(map(type, column)) != {int} or min(column) < -FOREVER or max(column) >= FOREVER
        for column in numbers
    ):
        for one in found:
            sound(Row(*one[1:6])._replace(created=one[6], keep_for=one[7]))


def _choose(table: SQLiteTable, command: Work, now: int) -> list[int]:
    """Row numbers of ready tasks, distributed among the queues as in the rules."""
    limit, share = command.limit, -(-command.limit // len(command.queues))
    chosen: list[int] = []
    rest: list[int] = []
    for queue in random.sample(command.queues, len(command.queues)):
        skipped = table.skipped(queue, now, limit)
        if skipped is None:
            ready = table.ranked(queue, now, limit)
        else:
            ready = [number for (number,) in table.rows(_NUMBERS + _READY, queue, now, limit, skipped)]
        chosen += ready[:share]
        rest += ready[share:]
        if len(chosen) >= limit:
            break
    return (chosen + rest)[:limit]
