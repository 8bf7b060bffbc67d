"""Stores tasks of dead workers again in their places, so that they are delivered as if for the first time.

A dead worker leaves many at once: whoever gets one of them requests all of them, and stores them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nats.aio.msg import Msg

from intervalq.tasks.rules import Row, rest
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict, Part
from intervalq_stores.nats._task.commit import clear, commit, leftover
from intervalq_stores.nats._task.message import (
    delivered,
    headers_of,
    is_gone,
    over_of,
    queue_of,
    rests,
    row_of,
)
from intervalq_stores.nats._task.pull import Pulled, Puller
from intervalq_stores.nats._task.revoked import revoking
from intervalq_stores.nats._task.stream import Stream

_SOME: Final = 50
"""How many messages are requested at once; those that nobody held before are given back."""

_AT_ONCE: Final = batch.MAX_MESSAGES // 2
"""How many tasks are stored at once; in the worst case, each needs a revocation for a queue of its own."""


async def with_others(puller: Puller, pulled: Pulled) -> None:
    """Add all pending redeliveries if any of the delivered messages is a redelivery."""
    messages = pulled.messages
    while messages and delivered(messages[-1]).times > 1 and len(messages) < batch.MAX_MESSAGES:
        more = await puller.now(min(_SOME, batch.MAX_MESSAGES - len(messages)))
        if not more.messages:
            break
        messages += more.messages


def again(row: Row, subject: str, sequence: int, now: int) -> Part:
    """The task in its own place."""
    at = row.at if row.at > now else 0
    return batch.instead(subject, sequence, row.json.encode(), headers_of(row._replace(at=at)))


def lost(row: Row, now: int, *, begun: bool = False) -> Row:
    """A redelivered task, whose holder is lost, in the form in which to store it again.

    The server knows what it has delivered, not what was begun. So the first loss costs no attempt; from then
    on the task runs alone, and is delivered only to be run, so each further loss is an attempt.

    A delayed task was delivered, too, and refused because it was too early. That can't be distinguished
    from a worker that died, so it isn't counted as an attempt.
    """
    if rests(row):
        return row
    attempt = row.attempt + (begun or row.alone)
    return row._replace(
        at=now + rest(row._replace(attempt=attempt)) if attempt > 1 else now,
        attempt=attempt,
        claims=row.claims + 1,
        error="a worker was lost" if begun or row.alone else row.error,
        alone=row.alone or not begun,
    )


async def restore(stream: Stream, parts: Sequence[Part]) -> None:
    """Store tasks again, unless they have changed. Their former claimants have lost them."""
    for start in range(0, len(parts), _AT_ONCE):
        some = parts[start : start + _AT_ONCE]
        try:
            await _restored(stream, some)
        except Conflict:  # one of them is another's by now, so store them one by one
            for part in some:
                try:
                    await _restored(stream, [part])
                except Conflict:
                    await leftover(stream, part)


async def _restored(stream: Stream, parts: Sequence[Part]) -> None:
    before = [(queue_of(part.subject), sequence) for part in parts for sequence in part.over]
    await commit(stream, [*await revoking(stream, before), *parts])


async def stray(stream: Stream, message: Msg) -> None:
    """Give back unused deliveries."""
    _, sequence, stored = delivered(message)
    if is_gone(message):
        await clear(stream, message)
    else:
        row = row_of(message, message.subject, sequence, stored, stream.server.url)
        await stream.removed(over_of(message))
        await restore(stream, [again(row, message.subject, sequence, stream.now())])
