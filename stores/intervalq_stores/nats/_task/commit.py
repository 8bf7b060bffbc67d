"""Replaces messages by others, in such a way that finished tasks stay finished.

A killed server reads its files again. They record the removal of a message by an acknowledgement, by its
sequence, or by a rollup, but not by a limit of messages per subject: if the successor of such a message is
gone by then, the message is back. So the stream has no such limit. Of the messages with one subject the last
one counts, every message is stored with the sequence that its sender has seen (a compare-and-swap by the
server, over all messages of a step), and there are two ways to replace a message:

- Messages that consumers don't deliver (tasks that wait for a token, marks of dedupe keys, locks) are removed
  by their successor, a rollup: at once, and for good. The removal of a task is recorded by such a message,
  too (see `_task.lines` for how long), so that it can be part of a step with other changes.
- Messages that consumers deliver (tasks without a key, tokens) are not: by a rollup, the server would forget
  what other workers have pending. The successor is stored above the message and names it in `Iq-Over`;
  likewise, a task that gets a token names the place where it waited. Then these are removed by their
  sequences. The removal of a task is recorded by such a successor, too, which is removed after it.

A step is done when its messages are stored, all or none. The replaced messages are removed before the caller
has its answer, and before the new messages are replaced. If a process, server or connection dies in between:

- before the messages are stored: nothing was done, and the task is delivered again.
- before the old message is removed: it still exists, below its successor. Nobody can change it any more,
  because it isn't the last one. Whoever gets the successor removes it: for a task without a key before
  working on it, for a token before the token ends. A token is worked on only if it is the last message of its
  subject, so the tasks of a key keep their order. This needs no query if this process of the server has
  stored the token and delivers it for the first time, and no revocation was received: then nothing can be
  above it. A task without a key may run once more, and its acknowledgement is `ClaimLost`: no caller was
  told before that it had ended. But if the server was killed in between, it delivers both as if for the first
  time. So messages that existed when a session began, while some subjects had several messages, are also
  worked on only if they are the last of their subjects.
- before the message that records the removal of a task is removed: it is delivered, and removed then.

If the answer is lost, the step is tried again. If an acknowledgement finds no message, an earlier one was
received, unless a revocation of its claim is stored: others get a task only after one. A step that finds
another message on top sees in `Iq-By` whether it is its own.

A task without a key is acknowledged by the server's own means, which don't tell whether the message existed.
So whoever changes a task that others may have claimed, or stores it again because its holder is lost, stores
a revocation in the same step; and whoever acknowledges looks for revocations afterwards, or knows that there
was none (`_task.revoked`). A task without a revocation was not changed before, and can't be changed after.
Revocations expire; claims that live longer look for them when they are renewed. A late acknowledgement is a
conditional step, and so is one of a task that somebody may have deleted or purged in the meantime. With
replicas, all of them are: there the leader of the consumer answers an acknowledgement which the leader of the
stream has yet to carry out, so others can still store the task again. And reads may be outdated there,
because a former leader may answer. So nothing is removed or reported as done because a message is missing,
but only because of a message that is seen above it, or by a conditional message.

A killed server also forgets its last deliveries, and delivers these messages to others. The claims of those
moments are given up when the session reconnects to another process of the server. So a step that settles a
claim uses the connection for which that was checked, and fails if there is another one by now. If the same
session gets such a message again, it first stores it again: with the old sequence, pending settlements of the
claim that was given up would settle the new one, and the next task of the key would begin beside it. And a
worker begins nothing while its connection is down, or after a claim's time is over: others may have done it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from nats.aio.msg import Msg

from intervalq.errors import StoreUnavailable
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Part
from intervalq_stores.nats._connection import Connection, NobodyThereError
from intervalq_stores.nats._task.message import BY, delivered, is_token, line_at, over_of
from intervalq_stores.nats._task.stream import Stream


async def commit(
    stream: Stream, parts: Sequence[Part], by: str = "", connection: Connection | None = None
) -> int:
    """Store messages, all or none, and remove those that they replace; returns the sequence of the last one.

    Args:
        stream: the stream to store them in.
        parts: the messages.
        by: a mark of the sender, by which it can recognize its messages later.
        connection: the only connection to use, because claims have been checked for it.

    Raises:
        Conflict: something has changed; nothing was stored.
        NobodyThereError: nothing was stored.
        StoreError.
    """
    if by:
        parts = [part._replace(headers=part.headers | {BY: by}) if part.over else part for part in parts]
    last = await batch.store(stream.server, parts, connection)
    try:
        await stream.removed([sequence for part in parts for sequence in part.over])
    except NobodyThereError as error:
        raise StoreUnavailable(
            error.store,
            "the step is stored, but the stream has no leader to complete it at the moment: it is retried",
        ) from error
    ends = {last - len(parts) + number: part.subject for number, part in enumerate(parts, 1) if part.ends}
    if ends:
        (await stream.connection()).later(_end(stream, ends))
    return last


async def _end(stream: Stream, ends: dict[int, str]) -> None:
    """Remove tombstones of tasks; for a key, remove the tombstone of its last task at the end."""
    await stream.removed([sequence for sequence, subject in ends.items() if not is_token(subject)])
    await stream.removed([sequence for sequence, subject in ends.items() if is_token(subject)])


async def clear(stream: Stream, message: Msg) -> None:
    """Remove the tombstone of a task, after the messages that it replaced, if they still exist."""
    await stream.removed(over_of(message))
    sequence, subject = delivered(message).sequence, message.subject
    if is_token(subject):
        _, _, gone = await stream.line(line_at(subject))
        await stream.removed([other for other in gone.values() if other < sequence])
    await stream.removed([sequence])


async def leftover(stream: Stream, part: Part) -> None:
    """Remove messages that could not be replaced, if others have already taken their place."""
    last, _ = await stream.last(part.subject)
    await stream.removed([sequence for sequence in part.over if sequence < last])


async def outdated(stream: Stream, messages: Mapping[int, str], over: Sequence[int]) -> set[int]:
    """Those of the delivered messages that others have replaced.

    Args:
        stream: their stream.
        messages: the subjects of the delivered messages, by sequence.
        over: the messages that they replaced themselves, which are removed first.
    """
    if not over and not messages:
        return set()
    _, lasts = await asyncio.gather(stream.removed(over), stream.lasts([*messages.values()]))
    found = {sequence for sequence, subject in messages.items() if lasts.get(subject, 0) != sequence}
    await stream.removed([sequence for sequence in found if sequence < lasts.get(messages[sequence], 0)])
    return found
