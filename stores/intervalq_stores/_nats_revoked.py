"""Which claims others have revoked: heard while it is stored, or looked for where that isn't certain.

Whoever changes what others may have claimed publishes the revocation before the message that completes the
step. So who is connected to the stream's own server, or by way of it, hears of it before any answer that the
server gives after the step: who has heard of none needs not look. With replicas, answers come from the leader
by another way than what others publish, so there it is looked for each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from nats.aio.msg import Msg

from intervalq.store import stopwatch
from intervalq_stores._nats_held import Held, by_queue
from intervalq_stores._nats_link import Link
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import REVOCATIONS

_MANY: Final = 10_000
"""So many revoked claims are remembered; of claims from before that it is looked."""


class Revocations:
    """What a session hears of them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._link: Link | None = None
        self._since: int | None = None  # all of them were heard that came after this, on `stopwatch`
        self._heard: set[int] = set()

    async def listen(self, link: Link) -> None:
        """Hear them from now on, by this connection."""
        self._link, self._since = link, None
        self._heard.clear()
        if self._stream.is_replicated:
            return
        async with self._stream.wire.bounded():
            if await link.hear(f"{REVOCATIONS}.>", self._came):
                self._since = stopwatch()

    async def of(self, mine: Sequence[Held]) -> list[Held]:
        """Those that others have changed without having claimed them."""
        found: list[Held] = []
        for some in by_queue([held for held in mine if not self._is_safe(held)]):
            revoked = await self._stream.revoked(some[0].row.queue, [held.sequence for held in some])
            found += [held for held in some if held.sequence in revoked]
        return found

    def _is_safe(self, held: Held) -> bool:
        """Whether it would have been heard; what was heard may not have been stored in the end."""
        heard = self._since is not None and held.link is self._link and held.since >= self._since
        return heard and held.link.is_open and held.sequence not in self._heard

    def _came(self, message: Msg) -> None:
        if len(self._heard) > _MANY:
            self._heard.clear()
            self._since = None if self._since is None else stopwatch()
        try:
            self._heard.update(json.loads(message.data))
        except (ValueError, TypeError):
            self._since = None
