"""Tasks that are stored again in their own places: to be handed out as if for the first time.

A worker that dies leaves many at once: who meets one of them asks for all of them, and stores them together.
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
"""How many are asked for at once, of which those that nobody held before are given back."""

_AT_ONCE: Final = batch.MOST // 2
"""How many are stored at once, each of another queue at most, with what tells that queue of them."""


async def with_others(puller: Puller, pulled: Pulled) -> None:
    """If what was handed out was so before, add all else that is to be handed out again."""
    messages = pulled.messages
    while messages and delivered(messages[-1]).times > 1 and len(messages) < batch.MOST:
        more = await puller.now(min(_SOME, batch.MOST - len(messages)))
        if not more.messages:
            break
        messages += more.messages


def again(row: Row, subject: str, sequence: int, now: int) -> Part:
    """The task in its own place."""
    at = row.at if row.at > now else 0
    return batch.instead(subject, sequence, row.json.encode(), headers_of(row._replace(at=at)))


def lost(row: Row, now: int, *, begun: bool = False) -> Row:
    """A task that was handed out before, so that its holder is lost; as it is to be stored.

    The server knows what it has handed out, not what was begun. So the first time costs no attempt; from then
    on the task runs alone, and is handed out for nothing else, so that each further time is one.

    One that rested was handed out, too, if only to be told that it is too early: that can't be told apart
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
    """Store tasks again: each that is still as it was. Who had claimed it before has lost it."""
    for start in range(0, len(parts), _AT_ONCE):
        some = parts[start : start + _AT_ONCE]
        try:
            await _restored(stream, some)
        except Conflict:  # one of them is another's by now: each by itself
            for part in some:
                try:
                    await _restored(stream, [part])
                except Conflict:
                    await leftover(stream, part)


async def _restored(stream: Stream, parts: Sequence[Part]) -> None:
    before = [(queue_of(part.subject), sequence) for part in parts for sequence in part.over]
    await commit(stream, [*await revoking(stream, before), *parts])


async def stray(stream: Stream, message: Msg) -> None:
    """Give back what nobody has seen."""
    _, sequence, stored = delivered(message)
    if is_gone(message):
        await clear(stream, message)
    else:
        row = row_of(message, message.subject, sequence, stored, stream.server.url)
        await stream.removed(over_of(message))
        await restore(stream, [again(row, message.subject, sequence, stream.now())])
