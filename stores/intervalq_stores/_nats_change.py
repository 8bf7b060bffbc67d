"""Changes of several tasks, all or nothing: an atomic batch of JetStream, tried again where others were faster."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

import anyio

from intervalq.errors import DependencyError, TransactionConflict, UnsupportedOperation
from intervalq.tasks._transitions import changed
from intervalq.tasks.rules import Change, Delete, Depend, Insert, Modified, Modify, Row
from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Conflict
from intervalq_stores._nats_claims import Claims, Held
from intervalq_stores._nats_lines import Steps
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import is_gone, mark_of, subject_of

_TRIES: Final = 50


class Found(NamedTuple):
    """A task that a change names, where it is."""

    row: Row
    subject: str
    sequence: int


async def modify(stream: Stream, claims: Claims | None, command: Modify) -> Modified:
    """Do what a `Modify` says.

    Raises:
        DependencyError, InboxFull: nothing was done.
        TransactionConflict: others were faster each time.
        UnsupportedOperation: it is too much for one batch of the server.
    """
    for queue in {insert.queue for insert in command.inserts} | {change.queue for change in command.changes}:
        if queue is not None:
            await stream.consumer(queue)
    known: dict[str, int] = {}  # tombstones in the place of inserts
    existing: dict[str, str] = {}
    for attempt in range(_TRIES):
        found = await _named(stream, claims, command)
        try:
            done = await _once(stream, command, found, known, existing, look=attempt > 0)
        except Conflict:
            await _look(stream, command, known, existing)
            await anyio.sleep(random.uniform(0, 0.001 * attempt))  # noqa: S311 - no secret
            continue
        for part in (*command.changes, *command.deletes):
            if claims is not None:
                claims.held.pop(part.id, None)
        return done
    raise TransactionConflict(stream.wire.url, "others changed the same tasks each time: try again")


async def move(stream: Stream, held: Held, part: Delete | Change) -> bool:
    """Do what takes more than an acknowledgement with a claimed task; whether it was still the claimant's."""
    if isinstance(part, Change) and part.queue is not None:
        await stream.consumer(part.queue)
    for _ in range(_TRIES):
        steps = Steps(stream, look=True)
        found = Found(held.row, held.subject, held.sequence)
        if isinstance(part, Delete):
            await steps.remove(*found)
        else:
            await _change(stream, steps, found, part)
        try:
            await batch.store(stream.wire, steps.parts)
        except Conflict:
            message = await stream.at(held.sequence)
            if message is None or is_gone(message):
                return False
        else:
            return True
    raise TransactionConflict(
        stream.wire.url, "others changed the tasks of the same key each time: try again"
    )


async def _once(
    stream: Stream,
    command: Modify,
    found: dict[str, Found],
    known: dict[str, int],
    existing: dict[str, str],
    *,
    look: bool,
) -> Modified:
    steps = Steps(stream, look=look)
    now = stream.now()
    for delete in command.deletes:
        await steps.remove(*found[delete.id])
    changes = [(await _change(stream, steps, found[change.id], change)) for change in command.changes]
    inserts: list[tuple[int, Row]] = []
    for insert in command.inserts:
        if insert.id not in existing:
            row = _row(insert, now)
            if insert.dedupe is not None:
                steps.mark(row)
            if row.key is not None:
                index = await steps.enter(row, inbox=insert.inbox, replace=insert.replace)
            else:
                index = steps.insert(row, instead_of=known.get(insert.id))
            inserts.append((index, row))
    for depend in command.depends:
        steps.parts.append(batch.seen(found[depend.id].subject, found[depend.id].sequence))
    if len(steps.parts) > batch.MOST:
        raise UnsupportedOperation(
            stream.wire.url, f"a change of {len(steps.parts)} messages: JetStream stores {batch.MOST} at once"
        )
    first = 0
    if len(steps.parts) == 1 and len(command.deletes) == 1:
        if not await stream.remove(found[command.deletes[0].id].sequence):
            raise Conflict
    elif steps.parts:
        first = await batch.store(stream.wire, steps.parts) - len(steps.parts) + 1
    at_once = lambda row: row._replace(created=row.created or now, modified=now, at=row.at or now)  # noqa: E731 - short
    return Modified(
        inserted=tuple(at_once(row._replace(version=first + index)) for index, row in inserts),
        changed=tuple(at_once(row._replace(version=first + index)) for index, row in changes),
        existing=tuple(
            (insert.id, existing[insert.id]) for insert in command.inserts if insert.id in existing
        ),
    )


async def _change(stream: Stream, steps: Steps, found: Found, change: Change) -> tuple[int, Row]:
    """The change as parts of a step: which of them, and the row after it."""
    now = stream.now()
    if change.keep:
        raise UnsupportedOperation(stream.wire.url, "a change that keeps the claim: JetStream has none")
    after = changed(found.row, change, now)
    is_later = (change.at is not None or change.delay is not None) and after.at > now
    after = after._replace(at=after.at if is_later else 0, waiting=found.row.waiting)
    if after.queue == found.row.queue:
        return steps.change(found.subject, found.sequence, after), after
    await steps.remove(*found)
    after = after._replace(dedupe=None, dedupe_for=0)  # a dedupe key is one of its queue
    index = await steps.enter(after) if after.key is not None else steps.insert(after)
    return index, after


async def _named(stream: Stream, claims: Claims | None, command: Modify) -> dict[str, Found]:
    """The tasks that are named, each at its version.

    Raises:
        DependencyError: some aren't there.
    """
    found: dict[str, Found] = {}
    missing: dict[type, list[str]] = {Change: [], Delete: [], Depend: []}
    for part in (*command.changes, *command.deletes, *command.depends):
        one = await _find(stream, claims, part, force=command.force)
        if one is None:
            missing[type(part)].append(part.id)
        else:
            found[part.id] = one
    if any(missing.values()):
        raise DependencyError(
            changes=tuple(missing[Change]), deletes=tuple(missing[Delete]), depends=tuple(missing[Depend])
        )
    return found


async def _find(
    stream: Stream, claims: Claims | None, part: Change | Delete | Depend, *, force: bool
) -> Found | None:
    held = claims.held.get(part.id) if claims is not None else None
    if held is not None and (force or held.row.version == part.version):
        return Found(held.row, held.subject, held.sequence)
    sequence = part.version
    if force:
        rows = await stream.with_ids([part.id])
        if not rows:
            return None
        sequence = rows[0].version
    message = await stream.at(sequence) if sequence > 0 else None
    if message is None or is_gone(message):
        return None
    row = stream.row(message)
    return Found(row, (message.headers or {})["Nats-Subject"], sequence) if row.id == part.id else None


async def _look(stream: Stream, command: Modify, known: dict[str, int], existing: dict[str, str]) -> None:
    """Find out what is in the way of inserts.

    Raises:
        DependencyError: tasks of these ids.
    """
    collisions: list[str] = []
    for insert in command.inserts:
        if insert.id in existing:
            continue
        if insert.dedupe is not None:
            _, mark = await stream.last(mark_of(insert.queue, insert.dedupe))
            if mark is not None:
                existing[insert.id] = mark.data.decode()
                continue
        if insert.key is not None:
            rows = await stream.with_ids([insert.id], insert.queue)
            there = bool(rows)
        else:
            sequence, message = await stream.last(subject_of(insert.queue, insert.id))
            there = message is not None and not is_gone(message)
            known.pop(insert.id, None)
            if message is not None and not there:
                known[insert.id] = sequence
        if there and insert.skip:
            existing[insert.id] = insert.id
        elif there:
            collisions.append(insert.id)
    if collisions:
        raise DependencyError(inserts=tuple(collisions))


def _row(insert: Insert, now: int) -> Row:
    at = now + insert.delay if insert.at is None else insert.at
    return Row(
        id=insert.id,
        version=0,
        queue=insert.queue,
        at=at if at > now else 0,
        json=insert.json,
        key=insert.key,
        attempt=insert.attempt,
        error=insert.error,
        dedupe=insert.dedupe,
        dedupe_for=insert.dedupe_for,
    )
