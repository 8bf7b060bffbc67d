"""Connections to the server itself, one a session: they hear wake-ups, and their locks say who lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from intervalq.errors import StoreError, UnsupportedOperation
from intervalq.tasks.rules import Worked
from intervalq.tasks.store import Watched
from intervalq_stores._postgres_commands import Asked, Lines, handed
from intervalq_stores._postgres_wire import Ear, Wire, is_pooled

if TYPE_CHECKING:
    from intervalq_stores._postgres_wire import Connection

_CHANNEL: Final = "intervalq_tasks"
_GUARDING: Final = b"select intervalq.guarding(%s)"
# A machine that has vanished is to be noticed by the server, too, whose own settings are two hours: the lock
# that it holds says that its session lives. For a process that only hangs, its system answers.
_KEEPALIVE: Final = b"""
    set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 2;
    set tcp_user_timeout = 15000
"""
_LEFT: Final = b"select intervalq.unguarded(%s)"
_GUARDED: Final = b"select intervalq.guarded(%s, null)"


class _Line:
    """The connection of one session, for as long as somebody uses it."""

    def __init__(self, connection: Connection, ear: Ear | None) -> None:
        self.connection = connection
        self.ear = ear
        """None: a pooler is between. What a connection hears and holds there is not its user's."""
        self.users = 0


class Direct:
    """The direct connections of a store."""

    def __init__(self, wire: Wire, patience: float, ask: Callable[[Asked], Awaitable[Lines]]) -> None:
        self._wire, self._patience, self._ask = wire, patience, ask
        self._lines: dict[str, _Line] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`."""
        async with self._line(session) as line:
            ear = line.ear
            if ear is None:
                raise UnsupportedOperation(
                    self._wire.url, "no wake-up comes through a connection pooler: give the server's own URL"
                )

            async def woken() -> Worked | None:
                try:
                    return handed(await ear.heard())
                except self._wire.driver.Error as error:
                    raise self._wire.error(error) from error

            yield woken

    @asynccontextmanager
    async def guard(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Watched]]]:
        """See `Guarding.guard`."""
        async with self._line(session) as line:
            ear, number = line.ear, None
            if ear is not None:
                [(number,)] = await self._wire.within(ear.ask(_GUARDING, session), self._patience)

            async def watch() -> Watched:
                if ear is None or number is None:
                    return Watched(removed=False, is_idle=True)
                if (error := ear.lost()) is not None:
                    raise self._wire.error(error) from error
                asked = Asked(_GUARDED, (number,), lambda lines: lines)
                [(removed,)] = await self._wire.within(self._ask(asked), self._patience)
                return Watched(removed=removed > 0, is_idle=removed < 0)

            try:
                yield watch
            finally:
                if ear is not None and number is not None:
                    with anyio.CancelScope(shield=True):
                        await self._leave(ear, number)

    async def _leave(self, ear: Ear, number: int) -> None:
        """Nobody shall take the lack of our lock for a death."""
        with suppress(StoreError):  # then they take it for one, and a session that lives on is removed
            await self._wire.within(ear.ask(_LEFT, number), self._patience)

    @asynccontextmanager
    async def _line(self, session: str) -> AsyncIterator[_Line]:
        async with self._opening:
            line = self._lines.get(session)
            if line is None or (line.ear is not None and line.ear.lost() is not None):
                line = self._lines[session] = await self._wire.within(self._open(session), self._patience)
            line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            if not line.users:
                if self._lines.get(session) is line:
                    del self._lines[session]
                if line.ear is not None:
                    line.ear.close()
                await line.connection.close()

    async def _open(self, session: str) -> _Line:
        connection = await self._wire.open()
        try:
            if await is_pooled(connection):
                await connection.close()
                return _Line(connection, None)
            await connection.execute(_KEEPALIVE)
            ear = Ear(connection, self._wire.driver.Error, _CHANNEL)
            await ear.listen(lambda said: said.partition(" ")[0] in (session, "*"))
        except BaseException:
            await connection.close()
            raise
        return _Line(connection, ear)
