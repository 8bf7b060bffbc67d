"""Changes of one claimed task: finds, changes or moves it."""

from __future__ import annotations

from typing import Final, NamedTuple

from intervalq.errors import TransactionConflict, UnsupportedOperation
from intervalq.tasks.rules import Change, Delete, Row, changed
from intervalq_stores.nats._batch import Conflict
from intervalq_stores.nats._client import header
from intervalq_stores.nats._connection import Connection, NobodyThereError
from intervalq_stores.nats._task.commit import commit
from intervalq_stores.nats._task.delivery import Delivery
from intervalq_stores.nats._task.lines import Steps
from intervalq_stores.nats._task.message import (
    BY,
    home_of,
    rests,
)
from intervalq_stores.nats._task.stream import Stream

TRIES: Final = 50
"""How many times a step is tried if others interfere."""


class Found(NamedTuple):
    """A task that a change names, and its place."""

    row: Row
    subject: str
    sequence: int
    is_held: bool = False
    """Whether the caller has claimed it. It is unknown whether others have claimed a task."""


async def move(stream: Stream, delivery: Delivery, part: Delete | Change, connection: Connection) -> bool:
    """Settle a claim that needs more than an acknowledgement; returns whether the claim was still valid.

    Only by `connection` is it certain that the task is still the claimant's.
    """
    if isinstance(part, Change) and part.queue is not None:
        await stream.consumer(part.queue)
    me = f"{delivery.row.session} {delivery.sequence}"
    for _ in range(TRIES):
        line, delivery.line = delivery.line, None
        steps = Steps(stream, look=True, known=line)
        found = Found(delivery.row, delivery.subject, delivery.sequence, is_held=True)
        sent = delivery.sent
        try:
            if isinstance(part, Delete) or part.queue not in {None, delivery.row.queue}:
                await steps.remove(found.row, found.subject, found.sequence)
            if isinstance(part, Change):
                await change_of(stream, steps, found, part)
            delivery.sent = True
            await commit(stream, steps.parts(), me, connection)
        except NobodyThereError:
            delivery.sent = sent
            raise
        except Conflict:
            delivery.sent = sent  # this step did nothing
            last, message = await stream.last(delivery.subject)
            if last > delivery.sequence:
                await stream.removed([delivery.sequence])
            if last != delivery.sequence:
                return message is not None and header(message, BY) == me
        else:
            return True
    raise TransactionConflict(
        stream.server.url, "others changed tasks of the same key at each try: try again"
    )


async def change_of(stream: Stream, steps: Steps, found: Found, change: Change) -> tuple[str, Row]:
    """The change as part of a step: the queue, and the row after it. A task that moves was removed before."""
    now = stream.now()
    if change.keep:
        raise UnsupportedOperation(stream.server.url, "JetStream has no change that keeps the claim")
    before = found.row if rests(found.row) else found.row._replace(at=0)
    after = changed(before, change, now)
    after = after._replace(at=after.at if after.at > now else 0, waiting=found.row.waiting)
    if after.queue == found.row.queue:
        return await steps.change(found.subject, found.sequence, after), after
    after = after._replace(place=0, dedupe=None, dedupe_for=0)  # a dedupe key belongs to one queue
    if after.key is not None:
        return await steps.enter(after), after
    return steps.insert(after, instead_of=await steps.tombstone(home_of(after))), after
