"""An insert claims its task for an idle session, and sends it with the notice; and when it must not."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import anyio
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from intervalq.errors import StoreUnavailable
from intervalq.tasks.rules import SECOND, Begin, Delete, Insert, Modify, Row, Select, Session, Work
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions

url = postgres_sessions.url

LONG: Final = 8_000


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTaskStore]:
    async with aclosing(PostgresTaskStore(url)) as store:
        await store.apply(Begin(Session("s", expiry=3600 * SECOND)))
        yield store


def _inserts(*jsons: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", json, str(uuid.uuid4()), **more) for json in jsons))


async def _idle(store: PostgresTaskStore, limit: int = 1, **more: Any) -> None:
    work = Work("s", queues=("other", "q"), limit=limit, idle=True, **more)
    assert (await store.apply(work)).claimed == ()


async def _rows(store: PostgresTaskStore) -> tuple[Row, ...]:
    return await store.apply(Select(queue="q"))


async def test_the_notice_of_an_insert_brings_the_task(store: PostgresTaskStore) -> None:
    async with store.wakeups("s") as woken:
        for lease in (None, 9 * SECOND):
            await _idle(store, lease=lease)
            await store.apply(_inserts('"ü \\u001f \\""'))
            handed = await woken()
            assert handed is not None
            assert handed.claimed == await _rows(store)
            [row] = handed.claimed
            assert (row.session, row.version, row.claims, row.json) == ("s", 1, 1, '"ü \\u001f \\""')
            assert (row.until is None) == (lease is None)
            assert (row.begun, row.attempt) == (False, 0)
            assert (await store.apply(Work("s", (Delete(row.id, row.version),)))).lost == ()


async def test_plain_tasks_are_handed_as_ordinary_ones(store: PostgresTaskStore) -> None:
    """The session gets as many as it wants; the rest stays plain."""
    async with store.wakeups("s") as woken:
        await _idle(store, 2)
        await store.put("q", ["1", "2", "3"])
        handed = await woken()
        assert handed is not None
        assert set(handed.claimed) == {row for row in await _rows(store) if row.session == "s"}
        assert [(row.json, row.claims) for row in handed.claimed] == [("1", 1), ("2", 1)]
        worked = await store.apply(Work("s", queues=("q",), limit=5))
        assert [[json for _, json in tasks] for _, tasks in worked.ranges] == [["3"]]


async def test_a_session_that_was_removed_is_handed_nothing(store: PostgresTaskStore, url: str) -> None:
    """It may have declared itself idle at the moment at which it was removed."""
    await store.apply(Begin(Session("t", expiry=3600 * SECOND)))
    async with store.wakeups("s") as woken:
        await store.apply(Work("t", queues=("q",), limit=1, idle=True))
        await _idle(store)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("update intervalq.sessions set gone = pg_current_xact_id() where id = 't'")
        await store.apply(_inserts("1"))
        with anyio.fail_after(30):
            handed = await woken()
        assert handed is not None
        assert [row.session for row in handed.claimed] == ["s"]


async def test_so_many_as_it_wants_and_not_what_was_there_before(store: PostgresTaskStore) -> None:
    async with store.wakeups("s") as woken:
        await _idle(store, 2)
        await store.apply(_inserts("1", "2", "3"))
        handed = await woken()
        assert handed is not None
        assert len(handed.claimed) == 2
        assert sorted(row.session or "" for row in await _rows(store)) == ["", "s", "s"]


@pytest.mark.parametrize("why", ["too long", "a limit of its consumer", "a transaction"])
async def test_else_it_is_only_told(store: PostgresTaskStore, why: str) -> None:
    """In a transaction, others would wait until its end for a task that they could have claimed."""
    async with store.wakeups("s") as woken:
        await _idle(store, most=9 if "limit" in why else None)
        if why == "a transaction":
            async with store.transaction("read committed") as transaction:
                await transaction.apply(_inserts("1"))
        else:
            await store.apply(_inserts(f'"{"x" * LONG}"' if why == "too long" else "1"))
        assert await woken() is None
    assert {row.session for row in await _rows(store)} == {None}


async def test_two_who_are_idle_get_one_each(store: PostgresTaskStore) -> None:
    await store.apply(Begin(Session("t", expiry=3600 * SECOND)))
    async with store.wakeups("s") as one, store.wakeups("t") as other:
        for session in ("s", "t"):
            await store.apply(Work(session, queues=("q",), limit=1, idle=True))
        for json in ("1", "2"):
            await store.apply(_inserts(json))
        for woken, session in ((one, "s"), (other, "t")):
            handed = await woken()
            assert handed is not None
            assert [row.session for row in handed.claimed] == [session]


async def test_who_hears_nothing_any_more_is_told(store: PostgresTaskStore, url: str) -> None:
    """A guard that was cancelled while the server worked on it has left its answer on the connection."""
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as locking:
        locking.execute("lock table intervalq.sessions")
        waits = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%guarding%'"
        async with store.wakeups("s") as woken:
            async with anyio.create_task_group() as group:

                async def guard() -> None:
                    async with store.guard("s"):
                        pytest.fail("it stands for the session, whose row is locked")

                group.start_soon(guard)
                with anyio.fail_after(30):
                    while other.execute(waits).fetchone() is None:
                        await checkpoint()
                group.cancel_scope.cancel()
            locking.rollback()
            with pytest.raises(StoreUnavailable), anyio.fail_after(30):
                await woken()
        async with store.wakeups("s") as woken, store.guard("s"):
            await _idle(store)
            await store.apply(_inserts("1"))
            with anyio.fail_after(30):
                handed = await woken()
            assert handed is not None
            assert [row.json for row in handed.claimed] == ["1"]
