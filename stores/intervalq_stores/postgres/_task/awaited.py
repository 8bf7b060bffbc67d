"""Listens for outcomes that are awaited, with one connection for all waiters of a store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from intervalq.errors import StoreError, UnsupportedOperation
from intervalq.tasks.store import Joined
from intervalq_stores._waiters import Waiter, Waiters
from intervalq_stores.postgres._connection import Server, is_pooled
from intervalq_stores.postgres._listener import Listener
from intervalq_stores.postgres._pool import Lines
from intervalq_stores.postgres._task.statements import Asked, uuid_of

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection

_CHANNEL: Final = "intervalq_ended"
_AWAIT: Final = b"select intervalq.await_outcomes(%s, %s::uuid[], null)"
_LEAVE: Final = b"select intervalq.leave_outcomes(%s, %s::uuid[])"
_PARTING: Final = 1.0  # seconds for that: rows that are left are swept later
_ANYBODY: Final = "*"  # notified by transactions that can't see the waiters


class Awaited:
    """The waiters for outcomes in a store."""

    def __init__(self, server: Server, patience: float, ask: Callable[[Asked], Awaitable[Lines]]) -> None:
        self._server, self._patience, self._ask = server, patience, ask
        self._who = secrets.token_hex(8)
        self._waiters = Waiters()
        self._coming, self._leaving = Joined(self._say(_AWAIT)), Joined(self._say(_LEAVE))
        self._parting: set[asyncio.Task[None]] = set()
        """These outlive their callers: each row that stayed would slow down the ends of other tasks."""
        self._opening = asyncio.Lock()
        self._listening: tuple[Connection, Listener] | None = None
        self._is_pooled = False

    @asynccontextmanager
    async def awaited(self, ids: Sequence[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`."""
        await self._server.within(self._listen(), self._patience)
        uuids = [uuid_of(id_) for id_ in ids]
        with self._waiters.waiting(uuids) as waiter:
            try:
                await self._coming.ask(uuids)
                yield waiter.wait
            finally:
                await self._leave(waiter)

    async def aclose(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        if self._parting:
            await asyncio.wait(self._parting, timeout=_PARTING)
        await self._disconnect()

    async def _disconnect(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            connection, listener = listening
            listener.close()
            await connection.close()

    async def _listen(self) -> None:
        async with self._opening:
            if self._listening is not None and self._listening[1].lost() is not None:
                await self._disconnect()
            if self._listening is None and not self._is_pooled:
                self._listening = await self._open()
        if self._is_pooled:
            raise UnsupportedOperation(
                self._server.url, "notices don't pass through a pooler: give the URL of the server itself"
            )

    async def _open(self) -> tuple[Connection, Listener] | None:
        connection = await self._server.open()
        try:
            if await is_pooled(connection):
                self._is_pooled = True
                await connection.close()
                return None
            listener = Listener(connection, self._server.driver.Error, _CHANNEL)
            listener.on_loss = self._waiters.notify_all
            await listener.listen(self._heard)
        except BaseException:
            await connection.close()
            raise
        return connection, listener

    def _heard(self, text: str) -> bool:
        who, *uuids = text.split(" ")
        if who in (self._who, _ANYBODY):
            self._waiters.notify(uuids)
        return False

    async def _leave(self, waiter: Waiter) -> None:
        """Stop listening for tasks that have not ended; a waiter that was notified of all has none left."""
        if uuids := self._waiters.alone(waiter):
            parting = asyncio.create_task(self._part(uuids))
            self._parting.add(parting)
            parting.add_done_callback(self._parting.discard)
            with anyio.move_on_after(_PARTING, shield=True):
                await asyncio.wait([parting])

    async def _part(self, uuids: Sequence[str]) -> None:
        with suppress(StoreError):
            await self._leaving.ask(uuids)

    def _say(self, statement: bytes) -> Callable[[Sequence[str]], Awaitable[None]]:
        async def say(uuids: Sequence[str]) -> None:
            await self._server.within(
                self._ask(Asked(statement, (self._who, list(uuids)), _nothing)), self._patience
            )

        return say


def _nothing(lines: Lines) -> None:
    del lines
