"""Listens for outcomes that are awaited, with one subscription for all waiters of a store."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio

from intervalq.errors import StoreError
from intervalq_stores._waiters import Waiter, Waiters
from intervalq_stores.redis._client import Client
from intervalq_stores.redis._task_keys import WAKE

_PARTING: Final = 1.0
"""Seconds to unregister tasks that nobody waits for any more: those that are left are swept later."""


class Awaited:
    """The waiters for outcomes in a store."""

    def __init__(self, server: Client, ask: Callable[[str, list[str | bytes]], Awaitable[Any]]) -> None:
        self._server, self._ask = server, ask
        self._who = secrets.token_hex(8)
        self._waiters = Waiters()
        self._reading: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._error: StoreError | None = None

    @asynccontextmanager
    async def awaited(self, ids: Sequence[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`."""
        await self._listen()
        with self._waiters.waiting(ids) as waiter:
            try:
                await self._ask("await", [self._who, *ids])
                yield waiter.wait
            finally:
                await self._leave(waiter)

    async def aclose(self) -> None:
        """End the subscription; it begins again when it is needed."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    async def _listen(self) -> None:
        """Make sure that the subscription has begun."""
        if self._reading is None or self._reading.done():
            self._begun, self._error = asyncio.Event(), None
            self._reading = asyncio.create_task(self._read(self._begun))
        await self._begun.wait()
        if self._error is not None:
            raise self._error

    async def _read(self, begun: asyncio.Event) -> None:
        """Pass notifications on to the waiters, until something goes wrong."""
        try:
            async with self._server.messages(f"{WAKE}{self._who}") as heard:
                begun.set()
                while True:
                    for message in await heard():
                        with suppress(ValueError, TypeError, RecursionError):  # others may send wrong ones
                            self._waiters.notify(json.loads(message))
        except StoreError as error:
            self._error = error
        finally:
            begun.set()
            self._waiters.notify_all()

    async def _leave(self, waiter: Waiter) -> None:
        """Stop listening for tasks that have not ended; a waiter that was notified of all has none left."""
        if ids := self._waiters.alone(waiter):
            with anyio.move_on_after(_PARTING, shield=True), suppress(StoreError):
                await self._ask("leave", [self._who, *ids])
