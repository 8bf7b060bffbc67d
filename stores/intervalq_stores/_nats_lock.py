"""Exclusive locks: a subject that holds one message, whoever stored it has the lock until it expires."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from intervalq.store import stopwatch
from intervalq.tasks.store import Lock
from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Conflict
from intervalq_stores._nats_names import encoded
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import EXPECTED, PREFIX

_LOOK: Final = 0.5
"""Seconds between two tries of one who waits: a lock that expires tells nobody."""


class NATSLock(Lock):
    """A lock that is held, or is to be."""

    def __init__(self, stream: Stream, name: str, expiry: int) -> None:
        self._stream = stream
        self._subject = f"{PREFIX}.l.{encoded(name)}"
        self._freed = f"intervalq.free.{encoded(name)}"
        self._seconds = -(-expiry // 1_000_000)  # the server counts whole ones
        self._owner = secrets.token_hex(8)
        self._sequence = 0
        self.expires = 0

    async def acquire(self) -> bool:
        """See `Lock.acquire`."""
        return await self._put(0)

    async def refresh(self) -> bool:
        """See `Lock.refresh`."""
        return stopwatch() < self.expires and await self._put(self._sequence)

    async def release(self) -> None:
        """See `Lock.release`."""
        await self._stream.remove(self._sequence)
        link = await self._stream.link()
        await link.publish(self._freed)

    async def _put(self, before: int) -> bool:
        await self._stream.link()
        sent = stopwatch()
        headers = {"Nats-TTL": f"{self._seconds}s", "Nats-Rollup": "sub", EXPECTED: str(before)}
        try:
            self._sequence = await batch.store(
                self._stream.wire, [batch.Part(self._subject, self._owner.encode(), headers)]
            )
        except Conflict:
            return False
        self.expires = sent + self._seconds * 1_000_000
        return True

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """See `Lock.waiting`."""
        freed = anyio.Event()
        link = await self._stream.link()
        async with link.subscribed(self._freed, lambda _: freed.set()):
            yield
            with anyio.move_on_after(_LOOK):
                await freed.wait()
