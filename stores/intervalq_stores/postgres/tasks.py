"""`postgresql://`: tasks in rows of a schema, their rules in PL/pgSQL beside them (tasks.sql)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast

import anyio

from intervalq.errors import StoreError, TransactionConflict
from intervalq.tasks.rules import Beat, Command, Count, Modify, Outcomes, Row, Select, Worked
from intervalq.tasks.store import Isolation, Watched
from intervalq_stores.postgres._advice import advice
from intervalq_stores.postgres._awaited import Awaited
from intervalq_stores.postgres._connection import NO_SCHEMA, ROLLED_BACK, Server, is_pooled, sqlstate
from intervalq_stores.postgres._direct import Direct
from intervalq_stores.postgres._schema import Schema
from intervalq_stores.postgres._task_heads import Heads
from intervalq_stores.postgres._task_pages import page
from intervalq_stores.postgres._task_statements import Asked, Lines, ask, put, quick

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection

A = TypeVar("A")
T = TypeVar("T")

SCHEMA: Final = 8
"""The version of the tasks in schema `intervalq`; tasks.sql says when to increment it."""

_VERSION: Final = b"select number from intervalq.tasks_version"
_FEED: Final = b"select intervalq.feed(null)"
_PATIENCE: Final = 5.0  # seconds that a call may take in all; above the lock's limit in tasks.sql
_LOOKING: Final = 60.0  # seconds that a query of a million tasks may take
_TURNS: Final = 6
_MOMENTS: Final = 7  # a quarter of a second in all
_KEPT: Final = 8  # connections of transactions
_AT_ONCE: Final = 2  # commands; the server would not do more of them in the same time
_EXISTS: Final = "23505"
_VANISHED: Final = NO_SCHEMA | {"0A000"}  # or a function that a prepared statement calls was recreated


class PostgresTaskStore:
    """One statement per command, on any connection. It works through PgBouncer in transaction mode, too."""

    keeps_outcomes: Final = True
    shares_keys: Final = True
    follows_up: Final = True
    tells_of_others: Final = True

    def __init__(self, url: str) -> None:
        schema = Schema(
            "tasks", SCHEMA, "intervalq.tasks_version", _VERSION, "the tasks of schema intervalq have"
        )
        self._server = Server(url, schema)
        self.url = self._server.url
        self._heads = Heads()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._idle: list[Connection] = []
        self._lent: list[Connection] = []  # to transactions, whose users may have changed any setting
        self._known = False
        self._direct = Direct(self._server, _PATIENCE, self._ask)
        self._awaited = Awaited(self._server, _PATIENCE, self._ask)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`."""
        try:
            return await self._apply(command, now)
        except UnicodeEncodeError as error:
            raise self._error(error) from error

    async def _apply(self, command: Command[A], now: int | None) -> A:
        patience = _LOOKING if isinstance(command, Select | Outcomes | Count) else _PATIENCE
        if (asked := quick(command, now)) is not None:
            with suppress(_ExistsError):  # the slow path reports which
                return cast("A", asked.read(await self._within(self._ask(asked), patience)))
        asked = ask(command, now, self._heads)
        lines = await self._within(self._ask(asked), patience)
        if isinstance(command, Beat):
            self._direct.looked(command.session, lines[0][0][3])
        for turn in range(_MOMENTS):
            if not asked.again(lines):
                break
            await anyio.sleep(0.002 * 2**turn)
            lines = await self._within(self._ask(asked), patience)
        return cast("A", asked.read(lines))

    async def put(self, queue: str, jsons: Sequence[str]) -> None:
        """See `Ranging.put`."""
        if not jsons:
            return
        try:
            await self._within(self._ask(put(queue, jsons)))
        except UnicodeEncodeError as error:
            raise self._error(error) from error

    @asynccontextmanager
    async def transaction(self, isolation: Isolation) -> AsyncIterator[_Transaction]:
        """See `Transactional.transaction`."""
        connection = self._lent.pop() if self._lent else await self._within(self._server.open())
        mine = _Transaction(self, connection)
        try:
            await self._within(connection.execute(_BEGIN[isolation]))
            yield mine
            await self._within(_commit(connection, self.url))
        except Exception as error:
            await connection.close()
            if _code(error) in ROLLED_BACK and not isinstance(error, TransactionConflict):
                raise self._conflict(error) from error
            raise
        except BaseException:
            await connection.close()
            raise
        if len(self._lent) < _KEPT:
            self._lent.append(connection)
        else:
            await connection.close()
        if mine.modified and isolation != "read committed":
            await self._within(self._ask(Asked(_FEED, (), _nothing)))

    async def apply_on(self, connection: Connection, command: Command[A]) -> A:
        """See `Transactional.apply_on`; the connection is an AsyncConnection of psycopg."""
        if not self._known:
            await self._within(self._ask(Asked(b"select", (), _nothing)))
        try:
            asked = ask(command, None, self._heads)
            lines = await self._within(_rows(connection, asked), explain=self._error_within)
        except UnicodeEncodeError as error:
            raise self._error(error) from error
        return cast("A", asked.read(lines))

    async def page(self, queue: str | None, cursor: str, limit: int) -> tuple[list[Row], str]:
        """Tasks of a queue (None: of all) after `cursor` (empty: the start), and the next cursor, or ''."""
        asked = page(queue, cursor, limit)
        rows, cursor = asked.read(await self._within(self._ask(asked), _LOOKING))
        return rows, cursor

    def wakeups(self, session: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`. Behind a pooler there are none."""
        return self._direct.wakeups(session)

    def awaited(self, ids: Sequence[str]) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`. Behind a pooler nobody is notified."""
        return self._awaited.awaited(ids)

    def guard(self, session: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[Watched]]]:
        """See `Guarding.guard`. Behind a pooler nobody is watched."""
        return self._direct.guard(session)

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of "ok", "warning" or "error", and a sentence."""
        connection = await self._within(self._server.connect())
        try:
            return await self._within(advice(connection, self._server))
        finally:
            await connection.close()

    async def aclose(self) -> None:
        """See `TaskStore.aclose`."""
        await self._awaited.aclose()
        idle, self._idle = [*self._idle, *self._lent], []
        self._lent = []
        for connection in idle:
            await connection.close()

    # --- connections --------------------------------------------------------------------------------

    async def _within(
        self,
        call: Awaitable[T],
        patience: float = _PATIENCE,
        explain: Callable[[Exception], StoreError] | None = None,
    ) -> T:
        return await self._server.within(call, patience, explain or self._error)

    async def _ask(self, asked: Asked) -> Lines:
        """The rows of a statement. It is repeated only if it was certainly not done."""
        async with self._turns:
            return await self._server.retried(
                lambda whole: self._ask_once(asked, whole=whole), _TURNS, _VANISHED
            )

    async def _ask_once(self, asked: Asked, *, whole: bool) -> Lines:
        # Taken out while in use, so that after any failure nobody else reads its answer.
        connection = self._idle.pop() if self._idle and whole else await self._open(whole=whole)
        self._known = True
        try:
            rows = await _rows(connection, asked)
        except self._server.driver.Error as error:
            if sqlstate(error) != _EXISTS:
                await connection.close()
                raise
            self._idle.append(connection)
            raise _ExistsError from error
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return rows

    async def _open(self, *, whole: bool) -> Connection:
        connection = await self._server.open(whole=whole)
        try:
            if not await is_pooled(connection):  # a pooler may send each statement to another connection
                connection.prepare_threshold = 1
        except BaseException:
            await connection.close()
            raise
        return connection

    def _error(self, error: Exception) -> StoreError:
        return self._server.error_of_values(error, "2**31")

    def _error_within(self, error: Exception) -> StoreError:
        return self._conflict(error) if sqlstate(error) in ROLLED_BACK else self._error(error)

    def _conflict(self, error: Exception) -> TransactionConflict:
        return TransactionConflict(
            self.url,
            f"{self._server.message(error)} ({_code(error)}); nothing was done: begin the transaction again",
        )


class _Transaction:
    """See `Transaction`."""

    def __init__(self, store: PostgresTaskStore, connection: Connection) -> None:
        self.connection = connection
        self.modified = False
        self._store = store

    async def apply(self, command: Command[A]) -> A:
        """See `Transaction.apply`."""
        _check_transaction(self.connection, self._store.url)
        self.modified |= type(command) is Modify
        return await self._store.apply_on(self.connection, command)


class _ExistsError(Exception):
    """An id of a simple insert exists."""


_BEGIN: Final[dict[Isolation, bytes]] = {
    "read committed": b"begin isolation level read committed",
    "repeatable read": b"begin isolation level repeatable read",
    "serializable": b"begin isolation level serializable",
}


async def _rows(connection: Connection, asked: Asked) -> Lines:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an optional part

    # With our own settings, whatever the connection's user has set.
    async with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
        await cursor.execute(asked.sql, asked.values)
        return await cursor.fetchall()


def _check_transaction(connection: Connection, url: str) -> None:
    """Check that the user has not ended it; otherwise each later statement would be committed separately."""
    if not connection.pgconn.transaction_status:  # idle
        raise StoreError(
            url,
            "the transaction was ended by a statement in it: leave out commit and rollback, leaving its "
            "context does that",
        )


async def _commit(connection: Connection, url: str) -> None:
    _check_transaction(connection, url)
    cursor = await connection.execute(b"commit")
    if cursor.statusmessage != "COMMIT":
        raise StoreError(
            url,
            "a statement of this transaction had failed, so the server rolled all of it back: don't catch "
            "errors of statements inside the transaction's context",
        )


def _code(error: BaseException | None) -> str:
    """The server's code of an error, or of the error that caused it."""
    while error is not None:
        if isinstance(error, Exception) and (code := sqlstate(error)):
            return code
        error = error.__cause__
    return ""


def _nothing(lines: Lines) -> None:
    del lines
