"""How a message takes the place of another, so that what has ended stays ended.

A server that is killed reads its files again. They say that a message was removed if that was done by an
acknowledgement, by its sequence, or by a rollup; they don't if a limit of messages a subject did it. If what
replaced such a message is gone by then, the message is back. So the stream has no such limit. Of the messages
with one subject the last counts, whoever stores one says which it has seen (a compare and swap by the server,
over all messages of a step), and there are two ways to take the place of a message:

- What consumers don't hand out (tasks that wait for a token, marks of dedupe keys, locks) is removed by the
  message that takes its place, a rollup: at once, and for good. That a task was removed is said by such a
  message, too (see `_task.lines` for how long), so that it can be said in one step with other changes.
- What consumers hand out (tasks without a key, tokens) is not: by a rollup the server forgets what other
  workers have pending. Its successor is stored above it, and names it in `Iq-Over`, and so does a task that
  gets a token name the place where it waited. Then these are removed by their sequences. That a task was
  removed is said by such a successor, too, which is removed after it.

A step is done when its messages are stored, all or none. What they took the place of is removed before the
caller is told, and before anything takes the place of them. If a process, a server or a connection dies
between:

- before the messages are stored: nothing was done, and the task is handed out again.
- before the old message is removed: it is there, below its successor. Nobody can change it any more, for it
  isn't the last. Who is handed the successor removes it: of a task without a key before working on that, of
  a token before that ends. A token is worked on only if it is the last of its subject, so the tasks of a key
  keep their order. That needs no look if this process of the server has stored it, and hands it out for the
  first time, and nobody was heard to revoke it: then nothing can be above it. A task without a key may run
  once more, and its acknowledgement is `ClaimLost`: nobody was told before that it had ended. But if the
  server was killed between, it hands out both as if for the first time. So what was there when a session
  began, while some subjects had several messages, is worked on only if it is the last of its subject, too.
- before the message is removed that says that a task was: it is handed out, and removed then.

If the answer is lost, the step is tried again. An acknowledgement that finds no message was heard before, if
no revocation of its claim is stored: others get a task only after one. A step that finds another message on
top sees in `Iq-By` whether it is its own.

The acknowledgement of a task without a key is the server's own, which doesn't tell whether the message was
there. So whoever changes what others may have claimed, or stores it anew because its holder is lost, stores
a revocation in the same step, and whoever acknowledges looks for revocations afterwards, or has heard of none
(`_task.revoked`): what they don't find was not changed before, and can't be after. Revocations expire; claims
that live longer look for them when they are renewed. What is acknowledged late is a step like others, and so
is what somebody may have deleted or purged meanwhile. With replicas everything is: there the leader of the
consumer answers an acknowledgement which the leader of the stream has yet to carry out, so that others can
still store the task anew. And what is read there may be old, since a node that leads no more may answer: so
nothing is removed, or told as done, for what isn't there any more, but for what is seen above it, or stored
on condition.

A server that is killed also forgets what it handed out last, and hands it to others. The claims of those
moments are given up when the connection is made anew to another process of the server. So a step that settles
a claim goes by the connection for which that was checked, and fails if there is another one by now. What
the same session is handed of such a message is stored anew first: at the old sequence, what is still to be
said of the claim that was given up would settle the new one, and the next of the key begin beside it. And a
worker begins with nothing while its connection is gone, or after a claim's time: others may have done it.
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
    """Store messages, all or none, and remove what they took the place of; gives the sequence of the last.

    Args:
        stream: where to.
        parts: the messages.
        by: who does it, if that is to be found out later.
        connection: store them by this connection only: claims have been checked for it.

    Raises:
        Conflict: something isn't as it was seen; nothing was stored.
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
            "the step is stored, but the stream has no leader just now that ends it: it is tried again",
        ) from error
    ends = {last - len(parts) + number: part.subject for number, part in enumerate(parts, 1) if part.ends}
    if ends:
        (await stream.connection()).later(_end(stream, ends))
    return last


async def _end(stream: Stream, ends: dict[int, str]) -> None:
    """Remove what says that tasks were: of a key last what says that all of it were."""
    await stream.removed([sequence for sequence, subject in ends.items() if not is_token(subject)])
    await stream.removed([sequence for sequence, subject in ends.items() if is_token(subject)])


async def clear(stream: Stream, message: Msg) -> None:
    """Remove what says that a task was removed; and before that what it took the place of, if it is there."""
    await stream.removed(over_of(message))
    sequence, subject = delivered(message).sequence, message.subject
    if is_token(subject):
        _, _, gone = await stream.line(line_at(subject))
        await stream.removed([other for other in gone.values() if other < sequence])
    await stream.removed([sequence])


async def leftover(stream: Stream, part: Part) -> None:
    """What could not be replaced is removed if another message has taken its place already."""
    last, _ = await stream.last(part.subject)
    await stream.removed([sequence for sequence in part.over if sequence < last])


async def outdated(stream: Stream, messages: Mapping[int, str], over: Sequence[int]) -> set[int]:
    """Of what was handed out and is to be worked on, what another message has taken the place of.

    Args:
        stream: where it is stored.
        messages: the subjects of what is looked at, by sequence.
        over: what such messages took the place of themselves, which is removed first.
    """
    if not over and not messages:
        return set()
    _, lasts = await asyncio.gather(stream.removed(over), stream.lasts([*messages.values()]))
    found = {sequence for sequence, subject in messages.items() if lasts.get(subject, 0) != sequence}
    await stream.removed([sequence for sequence in found if sequence < lasts.get(messages[sequence], 0)])
    return found
