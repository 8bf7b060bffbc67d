"""Direct connections to the server: they get wake-ups, and their locks show which sessions are alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from intervalq.errors import StoreError, UnsupportedOperation
from intervalq.tasks.rules import Worked
from intervalq.tasks.store import Watched
from intervalq_stores.postgres._connection import Ear, Server, is_pooled
from intervalq_stores.postgres._task_statements import Asked, Lines, handed

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection

_CHANNEL: Final = "intervalq_tasks"
_GUARDING: Final = b"select intervalq.guarding(%s)"
# The server must notice a vanished machine, too, because a lock shows that its session is alive, and the
# server's own settings are two hours. For a process that only hangs, its operating system answers.
_KEEPALIVE: Final = b"""
    set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 2;
    set tcp_user_timeout = 15000
"""
_LEFT: Final = b"select intervalq.unguarded(%s)"
_GUARDED: Final = b"select intervalq.guarded(%s, null)"


class _Line:
    """The connection of one session, while somebody uses it."""

    def __init__(self, connection: Connection, ear: Ear | None) -> None:
        self.connection = connection
        self.ear = ear
        """None: a pooler is in between, so notifications and locks don't belong to this client."""
        self.looked: asyncio.Future[int] | None = None
        """Waits for the result of a heartbeat's check of guarded sessions: how many were removed."""
        self.users = 0


class Direct:
    """The direct connections of a store."""

    def __init__(self, server: Server, patience: float, ask: Callable[[Asked], Awaitable[Lines]]) -> None:
        self._server, self._patience, self._ask = server, patience, ask
        self._lines: dict[str, _Line] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`."""
        async with self._line(session) as line:
            ear = line.ear
            if ear is None:
                raise UnsupportedOperation(
                    self._server.url,
                    "wake-ups don't pass through a pooler: give the URL of the server itself",
                )

            async def woken() -> Worked | None:
                try:
                    return handed(await ear.heard())
                except self._server.driver.Error as error:
                    raise self._server.error(error) from error

            yield woken

    def looked(self, session: str, removed: int | None) -> None:
        """Note that a heartbeat of the session has checked the guarded sessions."""
        line = self._lines.get(session)
        if removed is not None and line is not None and line.looked is not None and not line.looked.done():
            line.looked.set_result(removed)

    @asynccontextmanager
    async def guard(self, session: str) -> AsyncIterator[Callable[[float], Awaitable[Watched]]]:
        """See `Guarding.guard`."""
        async with self._line(session) as line:
            ear, number = line.ear, None
            if ear is not None:
                [(number,)] = await self._server.within(ear.ask(_GUARDING, session), self._patience)

            async def watch(pause: float) -> Watched:
                line.looked = looked = asyncio.get_running_loop().create_future()
                with anyio.move_on_after(pause):
                    await looked
                if ear is None or number is None:
                    return Watched(removed=False, is_idle=True)
                if (error := ear.lost()) is not None:
                    raise self._server.error(error) from error
                if looked.done() and not looked.cancelled():
                    removed = looked.result()
                else:
                    asked = Asked(_GUARDED, (number,), lambda lines: lines)
                    [(removed,)] = await self._server.within(self._ask(asked), self._patience)
                return Watched(removed=removed > 0, is_idle=removed < 0)

            try:
                yield watch
            finally:
                if ear is not None and number is not None:
                    with anyio.CancelScope(shield=True):
                        await self._leave(ear, number)

    async def _leave(self, ear: Ear, number: int) -> None:
        """Unregister the session, so that nobody takes its missing lock for a death."""
        with suppress(StoreError):  # then a session that is still alive is removed
            await self._server.within(ear.ask(_LEFT, number), self._patience)

    @asynccontextmanager
    async def _line(self, session: str) -> AsyncIterator[_Line]:
        async with self._opening:
            line = self._lines.get(session)
            if line is None or (line.ear is not None and line.ear.lost() is not None):
                line = self._lines[session] = await self._server.within(self._open(session), self._patience)
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
        connection = await self._server.open()
        try:
            if await is_pooled(connection):
                await connection.close()
                return _Line(connection, None)
            await connection.execute(_KEEPALIVE)
            ear = Ear(connection, self._server.driver.Error, _CHANNEL)
            await ear.listen(lambda text: text.partition(" ")[0] in (session, "*"))
        except BaseException:
            await connection.close()
            raise
        return _Line(connection, ear)
