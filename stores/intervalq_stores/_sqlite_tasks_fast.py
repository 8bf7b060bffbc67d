"""One command on the tables of SQLite; the most frequent kind of work in few statements."""

from __future__ import annotations

import json
import random
from typing import Any, Final, TypeVar

from intervalq.errors import InvalidTask
from intervalq.tasks.rules import Command, Delete, Row, Work, Worked, apply, sound
from intervalq_stores._sqlite_tasks_table import SQLiteTable

A = TypeVar("A")

_SETTLE: Final = (
    "DELETE FROM intervalq_tasks WHERE id IN (SELECT value FROM json_each(?)) "
    "AND version = ? AND +session = ? AND key IS NULL AND dedupe IS NULL"  # +: by ids, not by its index
)
_READY: Final = (
    "SELECT rowid FROM intervalq_tasks WHERE queue = ? AND ready <= ? ORDER BY ready LIMIT ? OFFSET ?"
)
# Each column of an answer costs, row by row: of a task that is claimed for the first time few aren't known,
# and the last of these is null. (In a RETURNING, SQLite 3.40 says of each column that it is not null.)
_CLAIM: Final = (
    "UPDATE intervalq_tasks SET version = version + 1, session = ?, until = ?, claims = claims + 1, "
    "attempt = attempt + (? > alone), begun = ? > alone, modified = ?, ready = ? WHERE rowid IN ({}) "
    "RETURNING id, version, queue, at, json, created, iif(claims = 1 AND attempt = begun AND error = '' "
    "AND NOT dedupe_for AND NOT alone, coalesce(key, dedupe), '')"
)
_BEGUN: Final = (
    "UPDATE intervalq_tasks SET attempt = attempt + 1, begun = 1 "
    "WHERE id IN (SELECT value FROM json_each(?)) AND +session = ? AND NOT begun"
)
_CLAIM_OF_ONE: Final = _CLAIM.format(_READY)
_CLAIM_CHOSEN: Final = _CLAIM.format("SELECT value FROM json_each(?)")


def do(table: SQLiteTable, command: Command[A], now: int) -> A:
    """Do a command, all of it or nothing, within a transaction that has begun.

    Raises:
        DependencyError, InboxFull: by the rules.
        InvalidTask: a text or number of it can't be kept.
    """
    table.rows("SAVEPOINT intervalq")
    table.forget()  # what it knows of lines, which the fast path of the command before has passed by
    try:
        answer: Any = _work(table, command, now) if isinstance(command, Work) else None
        if answer is None:
            answer = apply(table, command, now)
            table.flush()
    except BaseException as error:
        table.forget()
        if table.in_transaction:  # a full disk, for one, ends the transaction
            table.rows("ROLLBACK TO intervalq")
            table.rows("RELEASE intervalq")
        if isinstance(error, (UnicodeEncodeError, OverflowError)):
            raise InvalidTask(f"a text or number of this command can't be kept: {error}") from error
        raise
    table.rows("RELEASE intervalq")
    return answer  # type: ignore[no-any-return]  # as the type of the command says


def _work(table: SQLiteTable, command: Work, now: int) -> Worked | None:
    """Settle plain tasks that were done, and claim the next; None: this is for the rules."""
    if command.most is not None or any("\0" in id_ for id_ in command.begun):
        return None
    done: dict[int, list[str]] = {}
    for part in command.settled:
        if not isinstance(part, Delete) or "\0" in part.id:  # SQLite's JSON ends a text there
            return None
        done.setdefault(part.version, []).append(part.id)
    gone = 0
    for version, ids in done.items():
        gone += table.changed(_SETTLE, json.dumps(ids), version, command.session)
    if gone < len(command.settled):  # one was lost, or is more than a row
        table.rows("ROLLBACK TO intervalq")
        return None
    if table.session(command.session) is None:
        return Worked(alive=False)
    if command.begun:
        table.changed(_BEGUN, json.dumps(command.begun), command.session)
    if not (command.queues and command.limit):
        return Worked()
    until = None if command.lease is None else now + command.lease
    values = command.session, until, command.begins, command.begins, now, until
    if len(command.queues) == 1:
        (queue,) = command.queues
        skipped = table.skipped(queue, now, command.limit)
        found = table.rows(_CLAIM_OF_ONE, *values, queue, now, command.limit, skipped)
    else:
        found = table.rows(_CLAIM_CHOSEN, *values, json.dumps(_choose(table, command, now)))
    wait = None
    if len(found) < command.limit:
        soon = [at for at in (table.next_ready(queue, now) for queue in command.queues) if at is not None]
        wait = min(soon) - now if soon else None
    return Worked(claimed=_claimed(table, command, found, now), wait=wait)


def _claimed(table: SQLiteTable, command: Work, found: list[Any], now: int) -> tuple[Row, ...]:
    """The rows that were claimed now."""
    begun, until = command.begins > 0, None if command.lease is None else now + command.lease
    known = None, 0, False, command.session, until, 1, int(begun), ""
    rows = [
        sound(tuple.__new__(Row, (*of_it, *known, created, now, None, 0, begun, False)))
        for *of_it, created, _ in found
    ]
    others = table.find([one[0] for one in found if one[-1] is not None])
    return tuple([others.get(row.id, row) for row in rows] if others else rows)


def _choose(table: SQLiteTable, command: Work, now: int) -> list[int]:
    """Row numbers of ready tasks, shared out among the queues as the rules do it."""
    limit, share = command.limit, -(-command.limit // len(command.queues))
    chosen: list[int] = []
    rest: list[int] = []
    for queue in random.sample(command.queues, len(command.queues)):
        skipped = table.skipped(queue, now, limit)
        ready = [number for (number,) in table.rows(_READY, queue, now, limit, skipped)]
        chosen += ready[:share]
        rest += ready[share:]
        if len(chosen) >= limit:
            break
    return (chosen + rest)[:limit]
