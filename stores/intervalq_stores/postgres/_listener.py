"""A connection that receives notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection


class Listener:
    """Listens for notifications on a connection that does nothing else."""

    def __init__(self, connection: Connection, error: type[Exception], channel: str) -> None:
        self._connection, self._error, self._channel = connection, error, channel
        self._loop, self._socket = asyncio.get_running_loop(), connection.fileno()
        self._heard, self._lost = asyncio.Event(), list[Exception]()
        self._asking = asyncio.Lock()
        self._mine: Callable[[str], bool] = lambda _: True
        self.on_loss: Callable[[], None] = lambda: None
        """Called when the connection is lost."""
        self._texts: list[str] = []

    def _hear(self) -> None:
        try:
            self._connection.pgconn.consume_input()
            while notice := self._connection.pgconn.notifies():
                self._note(notice.extra.decode(errors="replace"))
        except self._error as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self.close()
        self._lost.append(error)
        self._heard.set()
        self.on_loss()

    def _note(self, message: str) -> None:
        if self._mine(message):
            self._texts.append(message)
            self._heard.set()

    async def listen(self, mine: Callable[[str], bool] = lambda _: True) -> None:
        """Begin to listen for notifications whose text satisfies `mine`."""
        self._mine = mine
        self._connection.add_notify_handler(lambda notice: self._note(notice.payload))
        await self._connection.execute(f"listen {self._channel}".encode())
        # Not by the driver's generator, which loses notifications that arrive while its caller is cancelled.
        self._loop.add_reader(self._socket, self._hear)

    async def ask(self, sql: bytes, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement, one at a time; notifications that arrive meanwhile are passed on.

        After one that failed or was abandoned, the connection counts as lost: its answer may still come.
        """
        async with self._asking:
            self._loop.remove_reader(self._socket)
            try:
                rows = await (await self._connection.execute(sql, values)).fetchall()
            except BaseException as error:
                self._lose(
                    error if isinstance(error, self._error) else self._error("a statement was given up")
                )
                raise
            self._loop.add_reader(self._socket, self._hear)
            self._hear()
            return rows

    async def heard(self) -> list[str]:
        """Wait for notifications since the last call, and return them; or raise the driver's error."""
        await self._heard.wait()
        if self._lost:
            raise self._lost[0]
        self._heard.clear()
        texts, self._texts = self._texts, []
        return texts

    def lost(self) -> Exception | None:
        """The driver's error, if the connection is lost."""
        return self._lost[0] if self._lost else None

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._socket)
