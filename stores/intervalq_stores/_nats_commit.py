"""How a message takes the place of another, so that what has ended stays ended.

A server that is killed reads its files again. They say that a message was removed if that was done by an
acknowledgement, by its sequence, or by a rollup; they don't if a limit of messages a subject did it. If what
replaced such a message is gone by then, the message is back. So the stream has no such limit. Of the messages
with one subject the last counts, whoever stores one says which it has seen (a compare and swap by the server,
over all messages of a step), and there are two ways to take the place of a message:

- What consumers don't hand out (tasks that wait for a token, marks of dedupe keys, locks) is removed by the
  message that takes its place, a rollup: at once, and for good. That a task was removed is said by such a
  message for a second, so that it can be said in one step with other changes.
- What consumers hand out (tasks without a key, tokens) is not: by a rollup the server forgets what other
  workers have pending. Its successor is stored above it, and names it in `Iq-Over`. Then it is removed by its
  sequence. That a task was removed is said by such a successor, too, which is removed after it.

A step is done when its messages are stored, all or none. What they took the place of is removed before the
caller is told. If a process, a server or a connection dies between:

- before the messages are stored: nothing was done, and the task is handed out again.
- before the old message is removed: it is there, below its successor. Nobody can change it any more, for it
  isn't the last. Who is handed out the successor removes it, and only then works on that. A token is worked
  on only if it is the last of its subject, so the tasks of a key keep their order. A task without a key may
  run once more, and its acknowledgement is `ClaimLost`: nobody was told before that it had ended.
- before the message is removed that says that a task was: it is handed out, and removed then.

If the answer is lost, the step is tried again. An acknowledgement that finds no message was heard before, if
nothing has taken the place of that. A step that finds another message on top sees in `Iq-By` whether it is
its own.

The acknowledgement of a task without a key is the server's own, which doesn't tell whether the message was
there. So whoever changes what others may have claimed stores a revocation in the same step, and whoever
acknowledges looks for revocations afterwards, or has heard of none (`_nats_revoked`): what they don't find
was not changed before, and can't be after. Revocations expire; claims that live longer look for them when
they are renewed.

A server that is killed also forgets what it handed out last, and hands it to others. The claims of those
moments are given up when the connection is made anew to another process of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nats.aio.msg import Msg

from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Part
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import BY, TOKEN, delivered, over_of


async def commit(stream: Stream, parts: Sequence[Part], by: str = "") -> int:
    """Store messages, all or none, and remove what they took the place of; gives the sequence of the last.

    Raises:
        Conflict: something isn't as it was seen; nothing was stored.
        StoreError.
    """
    if by:
        parts = [part._replace(headers=part.headers | {BY: by}) if part.over else part for part in parts]
    last = await batch.store(stream.wire, parts)
    await stream.removed([part.over for part in parts if part.over])
    ends = [last - len(parts) + number for number, part in enumerate(parts, 1) if part.ends]
    if ends:
        (await stream.link()).later(stream.removed(ends))
    return last


async def clear(stream: Stream, message: Msg) -> None:
    """Remove what says that a task was removed; and the task first, if it is there still."""
    await stream.removed(over_of(message))
    await stream.removed([delivered(message).sequence])


async def leftover(stream: Stream, part: Part) -> None:
    """What could not be replaced is removed if another message has taken its place already."""
    last, _ = await stream.last(part.subject)
    if last != part.over:
        await stream.removed([part.over])


async def outdated(stream: Stream, messages: Sequence[Msg], others: Sequence[Msg] = ()) -> set[int]:
    """Of what was handed out and is to be worked on, what another message has taken the place of.

    What these took the place of themselves is removed first, and so it is of `others`, which are to be stored
    anew. Only of tokens it is looked whether they are the last of their subjects.
    """
    over = [sequence for message in (*messages, *others) for sequence in over_of(message)]
    if not over and not any(one.subject.endswith(TOKEN) for one in messages):
        return set()
    tokens = {delivered(one).sequence: one.subject for one in messages if one.subject.endswith(TOKEN)}
    _, lasts = await asyncio.gather(stream.removed(over), stream.lasts([*tokens.values()]))
    found = {sequence for sequence, subject in tokens.items() if lasts.get(subject, 0) != sequence}
    await stream.removed([*found])
    return found
