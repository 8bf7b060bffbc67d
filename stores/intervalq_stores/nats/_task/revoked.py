"""Which claims others have ended: heard while it is done, or looked for where that isn't certain.

Whoever changes what others may have claimed, or stores it anew, publishes the revocation before the message
that completes the step. So who is connected to the stream's own server, or by way of it, hears of it before
any answer that the server gives after the step: who has heard of none needs not look. Requests to delete or
purge messages, or to delete a consumer, are heard in the same way: what they concern isn't acknowledged, but
replaced on condition that it is there.

With replicas, answers come from the leader by another way than what others publish, and an acknowledgement is
answered before the message is removed from the stream. So nothing is certain there but what was stored on
condition that nobody was faster. It is the same for a user who may not hear these subjects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from nats.aio.msg import Msg

from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict, Part
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.held import Held, by_queue
from intervalq_stores.nats._task.message import PREFIX, REVOCATIONS, STREAM, matches, revocations_of
from intervalq_stores.nats._task.stream import Stream
from intervalq_stores.nats._url import WITHIN

_MANY: Final = 10_000
"""So many revoked claims are remembered; of claims from before that it is looked."""

_PURGING: Final = round(WITHIN * 1e6)
"""Microseconds that a purge may take. What was claimed until then isn't certain."""

_MARGIN: Final = 60
"""Seconds more than twice the time that a claim may go without being renewed, for which one is kept."""


async def revoking(stream: Stream, tasks: Iterable[tuple[str, int]]) -> list[Part]:
    """What tells those who may have claimed some tasks, by queue and sequence, that they have lost them."""
    sequences: dict[str, list[int]] = {}
    for queue, sequence in tasks:
        sequences.setdefault(queue, []).append(sequence)
    parts: list[Part] = []
    for queue, some in sequences.items():
        wait = (await stream.consumer(queue))["ack_wait"] // 1_000_000_000
        parts.append(batch.revoked(queue, some, wait * 2 + _MARGIN))
    return parts


def may_have_expired(held: Held) -> bool:
    """Whether a claim was lost so long ago that what told of it may not be there any more."""
    return stopwatch() >= held.deadline + held.wait + (_MARGIN - 10) * SECOND


class Revocations:
    """What a session hears of them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._connection: Connection | None = None
        self._since: int | None = None  # all of them were heard that came after this, on `stopwatch`
        self._heard: set[int] = set()
        self._deleted: set[int] = set()
        self._purges: list[tuple[int, str, int]] = []  # when, of which subjects, and below which sequence
        self._before = 0  # the last that there was when it began to hear them
        self._doubled = False  # then some subjects had several messages

    async def listen(self, connection: Connection) -> None:
        """Hear them from now on, by this connection."""
        self._connection, self._since = connection, None
        self._heard.clear()
        self._deleted.clear()
        self._purges.clear()
        if self._stream.is_replicated:
            return
        async with self._stream.server.bounded():
            allowed = await connection.hear(
                {
                    f"{REVOCATIONS}.>": self._came,
                    f"$JS.API.STREAM.MSG.DELETE.{STREAM}": self._is_deleted,
                    f"$JS.API.STREAM.PURGE.{STREAM}": self._is_purged,
                    f"$JS.API.CONSUMER.DELETE.{STREAM}.*": self._is_unknown,
                }
            )
        state = await self._stream.state()
        self._before, self._doubled = state["last_seq"], state["messages"] > state.get("num_subjects", 0)
        self._since = stopwatch() if allowed else None

    async def of(self, mine: Sequence[Held]) -> list[Held]:
        """Those that others have changed without having claimed them."""
        found: list[Held] = []
        for some in by_queue([held for held in mine if not self.is_safe(held)]):
            revoked, _ = await self._stream.revoked(some[0].row.queue, [held.sequence for held in some])
            found += [held for held in some if held.sequence in revoked]
        return found

    async def is_revoked(self, held: Held) -> bool:
        """Whether others have changed it, whoever of several replicas answers.

        One that leads no more may not know of it. So what was read counts if it is the last there is, on the
        word of those who store a message on that condition.
        """
        if not self._stream.is_replicated:
            return bool(await self.of([held]))
        pattern = f"{revocations_of(held.row.queue)}.*"
        while True:
            top, _ = await self._stream.last(pattern)
            revoked, last = await self._stream.revoked(held.row.queue, [held.sequence])
            if revoked:
                return True
            with suppress(Conflict):
                if top == last or top <= held.sequence:
                    await batch.store(self._stream.server, [batch.seen(pattern, top)])
                    return False

    def is_safe(self, held: Held) -> bool:
        """Whether it would have been heard; what was heard may not have been stored in the end."""
        heard = self._since is not None and held.connection is self._connection and held.since >= self._since
        known = held.sequence in self._heard or held.sequence in self._deleted
        return heard and held.connection.is_open and not known

    def is_removed(self, held: Held, since: int) -> bool:
        """Whether a request was heard after `since`, on `stopwatch`, that may have removed its message."""
        return held.sequence in self._deleted or any(
            at >= since and held.sequence < below and matches(held.subject, pattern)
            for at, pattern, below in self._purges
        )

    def is_first(self, held: Held) -> bool:
        """Whether nobody else can have been handed it, or have changed it without being heard.

        So it is if this process of the server has stored it, which knows all of its deliveries.
        """
        return held.sequence > self._before and self.is_safe(held)

    def may_be_outdated(self, held: Held) -> bool:
        """Whether another message may have taken the place of what was handed out for the first time.

        A server that was killed may have forgotten that it had handed it out, and the revocation may have
        come before this session heard any.
        """
        if held.row.key is not None or self._since is None:
            return not self.is_first(held)
        return self._doubled and held.sequence <= self._before

    def _came(self, message: Msg) -> None:
        self._forget(self._heard)
        try:
            self._heard.update(json.loads(message.data))
        except (ValueError, TypeError):
            self._since = None

    def _is_deleted(self, message: Msg) -> None:
        self._forget(self._deleted)
        with suppress(ValueError, TypeError, KeyError):  # the server refuses it, too
            self._deleted.add(json.loads(message.data)["seq"])

    def _is_purged(self, message: Msg) -> None:
        said: object = {}  # as the server takes what isn't JSON: everything
        with suppress(ValueError):
            said = json.loads(message.data)
        if isinstance(said, list):
            return  # the server refuses it, as it does what has wrong types
        some = said if isinstance(said, dict) else {}
        pattern, below = some.get("filter") or ">", some.get("seq") or sys.maxsize
        if isinstance(pattern, str) and isinstance(below, int):
            self._doubt(pattern, below)

    def _is_unknown(self, message: Msg) -> None:
        """A consumer is deleted: another one hands out anew what is claimed."""
        self._doubt(f"{PREFIX}.w.{message.subject.rpartition('.')[2]}.>", sys.maxsize)

    def _doubt(self, pattern: str, below: int) -> None:
        now = stopwatch()
        self._since = None if self._since is None else max(self._since, now + _PURGING)
        self._purges = [purge for purge in self._purges if purge[0] > now - 2 * _PURGING]
        self._purges.append((now, pattern, below))

    def _forget(self, some: set[int]) -> None:
        """Keep them few: then nothing is certain of what was claimed before."""
        if len(some) > _MANY:
            some.clear()
            self._since = None if self._since is None else max(self._since, stopwatch())
