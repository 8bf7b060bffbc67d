"""`postgresql://`: tasks in rows of a schema, their rules in PL/pgSQL beside them (tasks.sql)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import anyio

from intervalq.errors import StoreError, TransactionConflict
from intervalq.tasks.rules import Beat, Command, Count, Modify, Outcomes, Row, Select, Worked
from intervalq.tasks.store import Isolation, Watched
from intervalq_stores.postgres._advice import TASKS, advice
from intervalq_stores.postgres._connection import ROLLED_BACK, Server, sqlstate
from intervalq_stores.postgres._pool import Lines, Pool
from intervalq_stores.postgres._schema import Schema
from intervalq_stores.postgres._task.awaited import Awaited
from intervalq_stores.postgres._task.direct import Direct
from intervalq_stores.postgres._task.heads import Heads
from intervalq_stores.postgres._task.pages import page
from intervalq_stores.postgres._task.statements import Asked, ask, put, quick

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
_MOMENTS: Final = 7  # a quarter of a second in all
_KEPT: Final = 8  # connections of transactions
_AT_ONCE: Final = 2  # commands; the server would not do more of them in the same time
_EXISTS: Final = "23505"


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
        self._pool = Pool(self._server, _AT_ONCE, prepares=True)
        self._lent = Pool(self._server, _KEPT)  # to transactions, whose users may have changed any setting
        self._known = False
        self._direct = Direct(self._server, _PATIENCE, self._ask)
        self._awaited = Awaited(self._server, _PATIENCE, self._ask)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`."""
        try:
            with self._server.expected():
                return await self._apply(command, now)
        except UnicodeEncodeError as error:
            raise self._error(error) from error

    async def _apply(self, command: Command[A], now: int | None) -> A:
        patience = _LOOKING if isinstance(command, Select | Outcomes | Count) else _PATIENCE
        if (asked := quick(command, now)) is not None:
            lines = await self._within(self._run(partial(_lines_unless_exists, asked)), patience)
            if lines is not None:  # otherwise the slow path reports which id exists
                return cast("A", asked.read(lines))
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
        connection = await self._within(self._lent.take())
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
        await self._lent.put(connection)
        if mine.modified and isolation != "read committed":
            await self._within(self._ask(Asked(_FEED, (), _nothing)))

    async def apply_on(self, connection: Connection, command: Command[A]) -> A:
        """See `Transactional.apply_on`; the connection is an AsyncConnection of psycopg."""
        if not self._known:
            await self._within(self._ask(Asked(b"select", (), _nothing)))
        try:
            asked = ask(command, None, self._heads)
            lines = await self._within(_lines(connection, asked), explain=self._error_within)
        except UnicodeEncodeError as error:
            raise self._error(error) from error
        with self._server.expected():
            return cast("A", asked.read(lines))

    async def page(self, queue: str | None, cursor: str, limit: int) -> tuple[list[Row], str]:
        """Tasks of a queue (None: of all) after `cursor` (empty: the start), and the next cursor, or ''."""
        asked = page(queue, cursor, limit)
        with self._server.expected():
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
            return await self._within(advice(connection, self._server, TASKS))
        finally:
            await connection.close()

    async def aclose(self) -> None:
        """See `TaskStore.aclose`."""
        await self._awaited.aclose()
        await self._pool.aclose()
        await self._lent.aclose()

    # --- connections --------------------------------------------------------------------------------

    async def _within(
        self,
        call: Awaitable[T],
        patience: float = _PATIENCE,
        explain: Callable[[Exception], StoreError] | None = None,
    ) -> T:
        return await self._server.within(call, patience, explain or self._error)

    async def _ask(self, asked: Asked) -> Lines:
        """The lines of a statement. It is repeated only if it was certainly not done."""
        return await self._run(lambda connection: _lines(connection, asked))

    async def _run(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._turns:
            result = await self._pool.run(ask)
        self._known = True
        return result

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


_BEGIN: Final[dict[Isolation, bytes]] = {
    "read committed": b"begin isolation level read committed",
    "repeatable read": b"begin isolation level repeatable read",
    "serializable": b"begin isolation level serializable",
}


async def _lines(connection: Connection, asked: Asked) -> Lines:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an optional part

    # With our own settings, whatever the connection's user has set.
    async with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
        await cursor.execute(asked.sql, asked.values)
        return await cursor.fetchall()


async def _lines_unless_exists(asked: Asked, connection: Connection) -> Lines | None:
    """The lines; None: an id of a simple insert exists."""
    try:
        return await _lines(connection, asked)
    except connection.Error as error:
        if sqlstate(error) != _EXISTS:
            raise
        return None


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
