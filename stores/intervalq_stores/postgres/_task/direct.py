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
from intervalq_stores.postgres._connection import Server, is_pooled
from intervalq_stores.postgres._listener import Listener
from intervalq_stores.postgres._pool import Lines
from intervalq_stores.postgres._task.statements import Asked, handed

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


class _SessionConnection:
    """The connection of one session, while somebody uses it."""

    def __init__(self, connection: Connection, listener: Listener | None) -> None:
        self.connection = connection
        self.listener = listener
        """None: a pooler is in between, so notifications and locks don't belong to this client."""
        self.looked: asyncio.Future[int] | None = None
        """Waits for the result of a heartbeat's check of guarded sessions: how many were removed."""
        self.users = 0


class Direct:
    """The direct connections of a store."""

    def __init__(self, server: Server, patience: float, ask: Callable[[Asked], Awaitable[Lines]]) -> None:
        self._server, self._patience, self._ask = server, patience, ask
        self._sessions: dict[str, _SessionConnection] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`."""
        async with self._connected(session) as own:
            listener = own.listener
            if listener is None:
                raise UnsupportedOperation(
                    self._server.url,
                    "wake-ups don't pass through a pooler: give the URL of the server itself",
                )

            async def woken() -> Worked | None:
                try:
                    return handed(await listener.heard())
                except self._server.driver.Error as error:
                    raise self._server.error(error) from error

            yield woken

    def looked(self, session: str, removed: int | None) -> None:
        """Note that a heartbeat of the session has checked the guarded sessions."""
        own = self._sessions.get(session)
        if removed is not None and own is not None and own.looked is not None and not own.looked.done():
            own.looked.set_result(removed)

    @asynccontextmanager
    async def guard(self, session: str) -> AsyncIterator[Callable[[float], Awaitable[Watched]]]:
        """See `Guarding.guard`."""
        async with self._connected(session) as own:
            listener, number = own.listener, None
            if listener is not None:
                [(number,)] = await self._server.within(listener.ask(_GUARDING, session), self._patience)

            async def watch(pause: float) -> Watched:
                own.looked = looked = asyncio.get_running_loop().create_future()
                with anyio.move_on_after(pause):
                    await looked
                if listener is None or number is None:
                    return Watched(removed=False, is_idle=True)
                if (error := listener.lost()) is not None:
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
                if listener is not None and number is not None:
                    with anyio.CancelScope(shield=True):
                        await self._leave(listener, number)

    async def _leave(self, listener: Listener, number: int) -> None:
        """Unregister the session, so that nobody takes its missing lock for a death."""
        with suppress(StoreError):  # then a session that is still alive is removed
            await self._server.within(listener.ask(_LEFT, number), self._patience)

    @asynccontextmanager
    async def _connected(self, session: str) -> AsyncIterator[_SessionConnection]:
        async with self._opening:
            own = self._sessions.get(session)
            if own is None or (own.listener is not None and own.listener.lost() is not None):
                own = self._sessions[session] = await self._server.within(self._open(session), self._patience)
            own.users += 1
        try:
            yield own
        finally:
            own.users -= 1
            if not own.users:
                if self._sessions.get(session) is own:
                    del self._sessions[session]
                if own.listener is not None:
                    own.listener.close()
                await own.connection.close()

    async def _open(self, session: str) -> _SessionConnection:
        connection = await self._server.open()
        try:
            if await is_pooled(connection):
                await connection.close()
                return _SessionConnection(connection, None)
            await connection.execute(_KEEPALIVE)
            listener = Listener(connection, self._server.driver.Error, _CHANNEL)
            await listener.listen(lambda text: text.partition(" ")[0] in (session, "*"))
        except BaseException:
            await connection.close()
            raise
        return _SessionConnection(connection, listener)
