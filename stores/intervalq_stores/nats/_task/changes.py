"""Changes of several tasks, all or nothing: an atomic batch, repeated if other writers were faster."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import anyio

from intervalq.errors import DependencyError, TransactionConflict, UnsupportedOperation
from intervalq.tasks.rules import Change, Delete, Depend, Insert, Modified, Modify, Row
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict, Part
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.claims import Claims
from intervalq_stores.nats._task.commit import commit
from intervalq_stores.nats._task.lines import Steps
from intervalq_stores.nats._task.message import (
    home_of,
    is_handed_out,
    is_token,
    mark_of,
    subject_of,
)
from intervalq_stores.nats._task.revoked import revoking
from intervalq_stores.nats._task.settle import TRIES, Found, change_of
from intervalq_stores.nats._task.stream import Stream

_CANCELLED: Final = 100
"""How many tasks to cancel in one step."""


async def modify(stream: Stream, claims: Claims | None, command: Modify) -> Modified:
    """Do a `Modify`.

    Raises:
        DependencyError, InboxFull: nothing was done.
        TransactionConflict: others were faster at each try.
        UnsupportedOperation: it is too large for one batch of the server, or has a priority.
    """
    if any(insert.priority for insert in command.inserts) or any(
        change.priority is not None for change in command.changes
    ):
        raise UnsupportedOperation(
            stream.server.url,
            "tasks have no priorities here, because a stream has one order, and nothing was done: omit "
            "priority=, and use a queue of its own for what is urgent",
        )
    for queue in {insert.queue for insert in command.inserts} | {change.queue for change in command.changes}:
        if queue is not None:
            await stream.consumer(queue)
    known: dict[str, int] = {}  # tombstones that inserts replace
    existing: dict[str, str] = {}
    for attempt in range(TRIES):
        connection = await (stream if claims is None else claims.holdings).connection()
        found = await _named(stream, claims, command)
        try:
            done = await _once(
                stream, command, found, known, existing, connection=connection, look=attempt > 0
            )
        except Conflict:
            if claims is not None:
                await claims.holdings.heed()
            await _look(stream, command, known, existing)
            await anyio.sleep(random.uniform(0, 0.001 * attempt))  # noqa: S311 - no secret
            continue
        for id_ in [part.id for part in command.changes] + [part.id for part in command.deletes]:
            if claims is not None:
                claims.holdings.drop(id_)
        return done
    raise TransactionConflict(stream.server.url, "others changed the same tasks at each try: try again")


async def cancel(stream: Stream, ids: Sequence[str]) -> tuple[str, ...]:
    """Remove tasks with these ids, claimed or not; returns the ids of those that existed.

    Claimants hear of that by revocations.
    """
    removed: set[str] = set()
    for number in range(0, len(ids), _CANCELLED):
        left: Sequence[str] = ids[number : number + _CANCELLED]
        for _ in range(TRIES):
            rows = await stream.with_ids(left)
            several = {row.id: row for row in rows}  # one at a time, if several queues have the id
            if not several:
                break
            deletes = tuple(Delete(row.id, row.version) for row in several.values())
            try:
                await modify(stream, None, Modify(deletes=deletes))
            except DependencyError:  # some were settled or changed meanwhile: look again
                continue
            removed.update(several)
            left = [row.id for row in rows if several[row.id] is not row]
        else:
            raise TransactionConflict(stream.server.url, "others changed the tasks at each try: try again")
    return tuple(id_ for id_ in ids if id_ in removed)


async def _once(
    stream: Stream,
    command: Modify,
    found: dict[str, Found],
    known: dict[str, int],
    existing: dict[str, str],
    *,
    connection: Connection,
    look: bool,
) -> Modified:
    steps = Steps(stream, look=look)
    now = stream.now()
    going = [found[part.id] for part in command.deletes]
    staying: list[tuple[Found, Change]] = []
    moving: list[tuple[Found, Change]] = []
    for change in command.changes:
        one = found[change.id]
        (staying if change.queue in {None, one.row.queue} else moving).append((one, change))
    changes = {one.row.id: await change_of(stream, steps, one, change) for one, change in staying}
    # Waiting tasks are removed before those with a token, so that they don't get it.
    for one in sorted((*going, *(one for one, _ in moving)), key=lambda one: not one.row.waiting):
        await steps.remove(one.row, one.subject, one.sequence)
    changes |= {one.row.id: await change_of(stream, steps, one, change) for one, change in moving}
    new = [insert for insert in command.inserts if insert.id not in existing]
    inserts = [await _insert(steps, insert, now, known.get(insert.id) or None) for insert in new]
    for depend in command.depends:
        steps.depend(found[depend.id].subject, found[depend.id].sequence)

    parts = steps.parts()
    if len(parts) > batch.MAX_MESSAGES:
        raise UnsupportedOperation(
            stream.server.url,
            f"the change has {len(parts)} messages; JetStream stores {batch.MAX_MESSAGES} at once",
        )
    revocations = await _revocations(stream, [*going, *(one for one, _ in (*staying, *moving))])
    fits = len(parts) + len(revocations) <= batch.MAX_MESSAGES
    whole = [*revocations, *parts] if fits else parts  # before what completes the step: see `_task.revoked`
    for part in () if fits else revocations:
        await batch.store(stream.server, [part])
    first = await commit(stream, whole, connection=connection) - len(parts) + 1 if whole else 0
    order = {part.subject: first + number for number, part in enumerate(parts)}

    def after(subject: str, row: Row) -> Row:
        subject = steps.home(row, subject)
        version = order[subject]
        waits = row.key is not None and not is_token(subject)
        return row._replace(
            version=version,
            place=0 if row.key is None else 1 if not waits else row.place or version + 1,
            waiting=waits,
            created=row.created or now,
            modified=max(now, row.modified),  # the server's own time is more exact
            at=row.at or now,
        )

    return Modified(
        inserted=tuple(after(*insert) for insert in inserts),
        changed=tuple(after(*changes[change.id]) for change in command.changes),
        existing=tuple((one.id, existing[one.id]) for one in command.inserts if one.id in existing),
    )


async def _insert(steps: Steps, insert: Insert, now: int, instead_of: int | None) -> tuple[str, Row]:
    row = _row(insert, now)
    steps.mark(row)
    if row.key is not None:
        return await steps.enter(row, inbox=insert.inbox, replace=insert.replace), row
    return steps.insert(row, instead_of=instead_of), row


async def _revocations(stream: Stream, changed: Sequence[Found]) -> list[Part]:
    """The revocations for sessions that may have claimed some of these tasks."""
    others = [one for one in changed if not one.is_held and is_handed_out(one.subject)]
    return await revoking(stream, [(one.row.queue, one.sequence) for one in others])


async def _named(stream: Stream, claims: Claims | None, command: Modify) -> dict[str, Found]:
    """The named tasks, each at its version.

    Raises:
        DependencyError: some don't exist.
    """
    found: dict[str, Found] = {}
    missing: dict[type, list[str]] = {Change: [], Delete: [], Depend: []}
    named: tuple[Change | Delete | Depend, ...] = (*command.changes, *command.deletes, *command.depends)
    for part in named:
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
    delivery = claims.holdings.deliveries.get(part.id) if claims is not None else None
    if claims is not None and delivery is not None and (force or delivery.row.version == part.version):
        await claims.holdings.clear([delivery])
        return Found(delivery.row, delivery.subject, delivery.sequence, is_held=True)
    row = await stream.task(part.version)
    if row is not None and row.id == part.id:
        return Found(row, home_of(row), row.version)
    there = await stream.with_ids([part.id]) if force else []
    # If several queues have this id, it is ambiguous.
    row = await stream.task(there[0].version) if len(there) == 1 else None
    return Found(row, home_of(row), row.version) if row is not None else None


async def _look(stream: Stream, command: Modify, known: dict[str, int], existing: dict[str, str]) -> None:
    """Find the tasks that conflict with inserts.

    Raises:
        DependencyError: there are tasks with these ids.
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
            there, known[insert.id] = await stream.tombstone(subject_of(insert.queue, insert.id))
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
