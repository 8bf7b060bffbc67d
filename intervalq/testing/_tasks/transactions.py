"""Part of the suite of task stores: the user's own statements and a command in one transaction."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from intervalq.errors import DependencyError, TransactionConflict
from intervalq.tasks.rules import Change, Count, Delete, Modify, Select, Work
from intervalq.tasks.store import Isolation, TaskStore, Transactional
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import (
    PATIENCE,
    Names,
    TaskSuiteBase,
    at_once,
    claim,
    insert,
    on_its_own,
    put,
)

ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)


async def done(answer: Any) -> Any:  # noqa: ANN401 - its driver's
    """The result of a driver's function, asynchronous or not."""
    return await answer if inspect.isawaitable(answer) else answer


async def run(connection: Any, statement: str) -> None:  # noqa: ANN401 - its driver's
    """Execute a statement."""
    await done(connection.execute(statement))


async def ask(connection: Any, statement: str) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Execute a statement and return its rows."""
    cursor: Any = await done(connection.execute(statement))
    return [tuple(row) for row in await done(cursor.fetchall())]


def _add(table: str, number: int) -> str:
    return f"INSERT INTO {table} VALUES ({number})"  # noqa: S608 - our own name


def _count(table: str) -> str:
    return f"UPDATE {table} SET n = n + 1"  # noqa: S608


class Error(Exception):
    """An error in the user's own work."""


class TransactionalTaskSuite(TaskSuiteBase):
    """A command in the user's transaction: both take effect, or neither."""

    async def connect(self, store_url: str) -> Any:  # noqa: ANN401 - its driver's
        """A connection of the user's own; override it for a driver that isn't known here."""
        if store_url.startswith("sqlite:"):
            import sqlite3  # noqa: PLC0415 - not in every Python

            return sqlite3.connect(Path(unquote(urlsplit(store_url).path)), timeout=PATIENCE)
        import psycopg  # noqa: PLC0415 - an optional part

        return await psycopg.AsyncConnection.connect(store_url, prepare_threshold=None)

    @pytest.fixture
    def transactional(self, store: TaskStore) -> Transactional:
        """The store, which declares this ability."""
        assert isinstance(store, Transactional), "this store has no transactions"
        return store

    @pytest.fixture
    def results(self, portal: BlockingPortal, transactional: Transactional, names: Names) -> Any:  # noqa: ANN401 - a generator
        """A table of the user's, in the same database."""
        table = names.fresh().replace("-", "_")

        async def execute(statement: str) -> None:
            async with transactional.transaction("read committed") as transaction:
                await run(transaction.connection, statement)

        portal.call(execute, f"CREATE TABLE {table} (n BIGINT)")
        yield table
        portal.call(execute, f"DROP TABLE {table}")

    async def _rows(self, store: Transactional, table: str) -> list[int]:
        async with store.transaction("read committed") as transaction:
            return sorted(n for (n,) in await ask(transaction.connection, f"SELECT n FROM {table}"))  # noqa: S608 - ours

    @pytest.mark.parametrize("isolation", ISOLATIONS)
    @in_portal
    async def test_a_result_and_the_end_of_its_task_are_kept_together(
        self,
        store: TaskStore,
        transactional: Transactional,
        *,
        names: Names,
        results: str,
        store_url: str,
        isolation: Isolation,
    ) -> None:
        """Other connections see both changes, or neither."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue))
        (row,) = await claim(store, session, queue)
        async with transactional.transaction(isolation) as transaction:
            await run(transaction.connection, _add(results, 1))
            await transaction.apply(Modify(session, deletes=(Delete(row.id, row.version),)))
            await transaction.apply(Modify(inserts=(insert(queue, "next"),)))
            assert await transaction.apply(Select(ids=(row.id,))) == ()
            assert await on_its_own(store_url, lambda other: other.apply(Select(queue=queue))) == (row,)
        (after,) = await store.apply(Select(queue=queue))
        assert after.json == '"next"'
        assert await self._rows(transactional, results) == [1]

    @pytest.mark.parametrize("isolation", ISOLATIONS)
    @in_portal
    async def test_an_error_rolls_back_both(
        self,
        store: TaskStore,
        transactional: Transactional,
        *,
        names: Names,
        results: str,
        isolation: Isolation,
    ) -> None:
        """The user's error, a refused command, and a cancellation roll back; the store still works."""
        queue, session, other = names.queue(), await names.begun(store), await names.begun(store)
        await put(store, insert(queue))
        (row,) = await claim(store, session, queue)
        delete = Modify(session, deletes=(Delete(row.id, row.version),))
        with pytest.raises(Error):  # noqa: PT012 - it passes the end of the context
            async with transactional.transaction(isolation) as transaction:
                await run(transaction.connection, _add(results, 2))
                await transaction.apply(delete)
                raise Error
        assert await store.apply(Select(queue=queue)) == (row,)
        for refused in (
            Modify(session, deletes=(Delete(row.id, row.version + 1),)),
            Modify(other, deletes=(Delete(row.id, row.version),)),
            Modify(changes=(Change(row.id, row.version),)),
        ):
            with pytest.raises(DependencyError):  # noqa: PT012
                async with transactional.transaction(isolation) as transaction:
                    await run(transaction.connection, _add(results, 3))
                    await transaction.apply(Modify(inserts=(insert(queue),)))
                    await transaction.apply(refused)
        with anyio.CancelScope() as scope:
            async with transactional.transaction(isolation) as transaction:
                await run(transaction.connection, _add(results, 4))
                await transaction.apply(delete)
                scope.cancel()
                await anyio.sleep_forever()
        assert await store.apply(Select(queue=queue)) == (row,)
        assert await self._rows(transactional, results) == []
        assert (await store.apply(Work(session, delete.deletes))).lost == ()

    @in_portal
    async def test_a_refused_command_that_is_caught_lets_the_transaction_go_on(
        self,
        store: TaskStore,
        transactional: Transactional,
        *,
        names: Names,
        results: str,
    ) -> None:
        """Earlier statements are kept, unless the database can't: then nothing is, and an error says so."""
        queue = names.queue()
        kept = True
        try:
            async with transactional.transaction("read committed") as transaction:
                await transaction.apply(Modify(inserts=(insert(queue),)))
                with pytest.raises(DependencyError):
                    await transaction.apply(Modify(inserts=(insert(queue),), deletes=(Delete("gone", 0),)))
                await run(transaction.connection, _add(results, 5))
        except Exception:  # noqa: BLE001 - whatever the driver calls it
            kept = False
        assert len(await store.apply(Select(queue=queue))) == kept
        assert await self._rows(transactional, results) == [5] * kept

    @pytest.mark.parametrize("isolation", ISOLATIONS)
    @in_portal
    async def test_many_at_once_count_exactly(
        self,
        store: TaskStore,
        transactional: Transactional,
        *,
        names: Names,
        results: str,
        store_url: str,
        isolation: Isolation,
    ) -> None:
        """Each task adds one to the user's counter as it ends; conflicts are retried."""
        queue = names.queue()
        await put(store, *(insert(queue) for _ in range(12)))
        async with transactional.transaction("read committed") as transaction:
            await run(transaction.connection, _add(results, 0))

        async def commit(mine: TaskStore, session: str, id_: str, version: int) -> None:
            assert isinstance(mine, Transactional)
            while True:
                try:
                    async with mine.transaction(isolation) as transaction:
                        await run(transaction.connection, _count(results))
                        delete = Delete(id_, version)
                        await transaction.apply(Modify(session, deletes=(delete,)))
                        return
                except TransactionConflict:
                    continue
                except Exception as error:
                    if getattr(error, "sqlstate", None) not in ("40001", "40P01"):
                        raise  # a conflict of the user's own statement: the user has to retry

        async def work(mine: TaskStore) -> None:
            session = await names.begun(mine)
            while rows := await claim(mine, session, queue):
                await commit(mine, session, rows[0].id, rows[0].version)

        await at_once([lambda: on_its_own(store_url, work) for _ in range(4)])
        assert await self._rows(transactional, results) == [12]
        assert await store.apply(Count(names=(queue,))) == ()

    @in_portal
    async def test_a_command_can_be_part_of_the_users_own_transaction(
        self,
        store: TaskStore,
        transactional: Transactional,
        *,
        names: Names,
        results: str,
        store_url: str,
    ) -> None:
        """Insert on the user's own connection: committed with it, and rolled back with it."""
        queue, session = names.queue(), await names.begun(store)
        part = insert(queue, {"mine": 1})
        connection = await self.connect(store_url)
        try:
            for number, end in enumerate((connection.rollback, connection.commit)):
                await run(connection, _add(results, number))
                modified = await transactional.apply_on(connection, Modify(inserts=(part,)))
                assert [row.id for row in modified.inserted] == [part.id]
                assert await store.apply(Select(queue=queue)) == ()
                await done(end())
            (row,) = await claim(store, session, queue)
            assert (row.id, row.json) == (part.id, modified.inserted[0].json)
            await run(connection, _add(results, 2))
            delete = Modify(deletes=(Delete(row.id, row.version),))
            with pytest.raises(DependencyError) as caught:
                await transactional.apply_on(connection, delete)
            assert caught.value.claims == (row.id,)
            await done(connection.rollback())
            await transactional.apply_on(connection, Modify(session, deletes=delete.deletes))
            await done(connection.commit())
            assert await store.apply(Select(queue=queue)) == ()
        finally:
            await done(connection.close())
        assert await self._rows(transactional, results) == [1]
