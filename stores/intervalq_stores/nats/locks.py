"""Exclusive locks: a subject with at most one message, whose sender holds the lock until it expires."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from intervalq.store import stopwatch
from intervalq.tasks.store import Lock
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task.message import EXPECTED, PREFIX
from intervalq_stores.nats._task.stream import Stream

_LOOK: Final = 0.5
"""Seconds between two attempts of a waiter: nobody is notified when a lock expires."""


class NATSLock(Lock):
    """A lock that is held or wanted."""

    def __init__(self, stream: Stream, name: str, expiry: int) -> None:
        self._stream = stream
        self._subject = f"{PREFIX}.l.{encoded(name)}"
        self._freed = f"intervalq.free.{encoded(name)}"
        self._seconds = -(-expiry // 1_000_000)  # the server counts whole seconds
        self._owner = secrets.token_hex(8).encode()
        self._sequence = 0
        self.expires = 0
        self.fence = 0

    async def acquire(self) -> bool:
        """See `Lock.acquire`."""
        with self._stream.server.expected():
            got = await self._put(0)
            if not got:
                sequence = await self._mine()  # stored by a call whose answer was lost
                got = sequence > 0 and await self._put(sequence)
        if got:
            self.fence = self._sequence
        return got

    async def refresh(self) -> bool:
        """See `Lock.refresh`."""
        with self._stream.server.expected():
            return stopwatch() < self.expires and await self._put(self._sequence)

    async def release(self) -> None:
        """See `Lock.release`."""
        with self._stream.server.expected():
            sequence = await self._mine()
            if sequence and await self._stream.remove(sequence):
                connection = await self._stream.connection()
                await connection.publish(self._freed)

    async def _mine(self) -> int:
        sequence, message = await self._stream.last(self._subject)
        return sequence if message is not None and message.data == self._owner else 0

    async def _put(self, before: int) -> bool:
        await self._stream.connection()
        sent = stopwatch()
        headers = {"Nats-TTL": f"{self._seconds}s", EXPECTED: str(before)}
        try:
            part = batch.above(batch.Part(self._subject, self._owner, headers), before)
            self._sequence = await batch.store(self._stream.server, [part])
        except Conflict:
            return False
        self.expires = sent + self._seconds * 1_000_000
        return True

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Lock.waiting`."""
        release_heard = anyio.Event()

        async def freed() -> None:
            nonlocal release_heard
            with anyio.move_on_after(_LOOK):
                await release_heard.wait()
            release_heard = anyio.Event()

        with self._stream.server.expected():
            connection = await self._stream.connection()
        async with connection.subscribed(self._freed, lambda _: release_heard.set()):
            yield freed
