"""Connections that are kept between statements; a statement is repeated if it was certainly not done."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio

from intervalq_stores.postgres._connection import NO_SCHEMA, ROLLED_BACK, is_pooled

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection, Server

T = TypeVar("T")
Lines: TypeAlias = list[tuple[Any, ...]]

_TURNS: Final = 6
_RECREATED: Final = "0A000"  # a function that a prepared statement calls


class Pool:
    """The connections of a store to its server."""

    def __init__(self, server: Server, size: int, *, prepares: bool = False) -> None:
        """Open no connection yet.

        Args:
            server: the server, and the part of the schema that its connections need.
            size: how many unused connections to keep.
            prepares: whether the server keeps the plans of statements, unless a pooler is in between.
        """
        self._server, self._size, self._prepares = server, size, prepares
        self._vanished = NO_SCHEMA | {_RECREATED} if prepares else NO_SCHEMA
        self.idle: list[Connection] = []

    async def rows(self, sql: bytes, *values: object) -> Lines:
        """The rows of a statement."""

        async def ask(connection: Connection) -> Lines:
            return await (await connection.execute(sql, values, binary=True)).fetchall()

        return await self.run(ask)

    async def run(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """The result of `ask`, which executes one statement.

        If the schema vanished during the connection, it is created again, once.
        """
        turn, whole = 1, True
        while True:
            try:
                return await self._try(ask, whole=whole)
            except self._server.driver.Error as error:
                gone = error.sqlstate in self._vanished and whole
                if turn == _TURNS or not (gone or error.sqlstate in ROLLED_BACK):
                    raise
                whole = not gone
            await anyio.sleep(random.uniform(0, 0.01 * 2**turn))  # noqa: S311 - no secret
            turn += 1

    async def _try(self, ask: Callable[[Connection], Awaitable[T]], *, whole: bool) -> T:
        connection = await self.take(whole=whole)
        try:
            result = await ask(connection)
        except BaseException:
            await connection.close()
            raise
        await self.put(connection)
        return result

    async def take(self, *, whole: bool = True) -> Connection:
        """A connection that nobody else uses, so that after a failure nobody else reads its answer.

        `whole` is False after an error that says that the schema vanished: then the connection is a new one.
        """
        if self.idle and whole:
            return self.idle.pop()
        connection = await self._server.open(whole=whole)
        if self._prepares:
            try:
                if not await is_pooled(connection):  # a pooler may send each statement to another connection
                    connection.prepare_threshold = 1
            except BaseException:
                await connection.close()
                raise
        return connection

    async def put(self, connection: Connection) -> None:
        """Keep a connection whose statements have been answered, or close it."""
        if len(self.idle) < self._size:
            self.idle.append(connection)
        else:
            await connection.close()

    async def aclose(self) -> None:
        """Close the unused connections; new ones are opened when they are needed."""
        idle, self.idle = self.idle, []
        for connection in idle:
            await connection.close()
