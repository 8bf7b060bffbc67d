"""Which claims others have revoked: heard while it is stored, or looked for where that isn't certain.

Whoever changes what others may have claimed, or stores it anew, publishes the revocation before the message
that completes the step. So who is connected to the stream's own server, or by way of it, hears of it before
any answer that the server gives after the step: who has heard of none needs not look. With replicas, answers
come from the leader by another way than what others publish, so there it is looked for each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from nats.aio.msg import Msg

from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND
from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Part
from intervalq_stores._nats_held import Held, by_queue
from intervalq_stores._nats_link import Link
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import REVOCATIONS

_MANY: Final = 10_000
"""So many revoked claims are remembered; of claims from before that it is looked."""

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
        self._link: Link | None = None
        self._since: int | None = None  # all of them were heard that came after this, on `stopwatch`
        self._heard: set[int] = set()
        self._before = 0  # the last that there was when it began to hear them
        self._doubled = False  # then some subjects had several messages

    async def listen(self, link: Link) -> None:
        """Hear them from now on, by this connection."""
        self._link, self._since = link, None
        self._heard.clear()
        if self._stream.is_replicated:
            return
        async with self._stream.wire.bounded():
            allowed = await link.hear(f"{REVOCATIONS}.>", self._came)
        state = await self._stream.state()
        self._before, self._doubled = state["last_seq"], state["messages"] > state.get("num_subjects", 0)
        self._since = stopwatch() if allowed else None

    async def of(self, mine: Sequence[Held]) -> list[Held]:
        """Those that others have changed without having claimed them."""
        found: list[Held] = []
        for some in by_queue([held for held in mine if not self.is_safe(held)]):
            revoked = await self._stream.revoked(some[0].row.queue, [held.sequence for held in some])
            found += [held for held in some if held.sequence in revoked]
        return found

    def is_safe(self, held: Held) -> bool:
        """Whether it would have been heard; what was heard may not have been stored in the end."""
        heard = self._since is not None and held.link is self._link and held.since >= self._since
        return heard and held.link.is_open and held.sequence not in self._heard

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
        if held.row.key is not None:
            return not self.is_first(held)
        return self._doubled and held.sequence <= self._before

    def _came(self, message: Msg) -> None:
        if len(self._heard) > _MANY:
            self._heard.clear()
            self._since = None if self._since is None else stopwatch()
        try:
            self._heard.update(json.loads(message.data))
        except (ValueError, TypeError):
            self._since = None
