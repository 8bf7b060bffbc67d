from __future__ import annotations

import secrets
from contextlib import aclosing

import anyio
import anyio.lowlevel
import psycopg
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    Beat,
    Count,
    Delete,
    End,
    Finished,
    Insert,
    Modify,
    QueueStats,
    Select,
    Sessions,
    Work,
)
from intervalq.tasks.store import Following, Guarding, Ranging, SharingKeys, Transactional, Waking
from intervalq.testing import RangingTaskSuite, TaskSuite, TransactionalTaskSuite, WakingTaskSuite
from intervalq_stores.postgres._schema import statements
from intervalq_stores.postgres._task.statements import uuid_of
from intervalq_stores.postgres.tasks import SCHEMA, PostgresTaskStore
from stores import postgres_sessions
from stores.postgres_sessions import CANARY, begun, caught, claim, inserts, sql, until

url = postgres_sessions.url
store = postgres_sessions.store


class TestPostgresTaskStore(TaskSuite, TransactionalTaskSuite, WakingTaskSuite, RangingTaskSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestThroughPgBouncer(TaskSuite, TransactionalTaskSuite, RangingTaskSuite):
    steps = 12  # the SQL is the same as without a pooler
    left_out = (WakingTaskSuite,)  # no wake-up comes through a pooler
    tells_outcomes = False

    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url


def test_it_is_all_that_a_store_of_tasks_can_be(url: str) -> None:
    store = PostgresTaskStore(url)
    for protocol in (Transactional, Waking, Guarding, Ranging, SharingKeys, Following):
        assert isinstance(store, protocol)


# --- the schema -------------------------------------------------------------------------------------


async def test_many_make_the_schema_at_the_same_moment(url: str) -> None:
    async def begin(number: int) -> None:
        async with aclosing(PostgresTaskStore(url)) as store:
            await store.apply(inserts(f"t{number}"))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(begin, number)
    assert sql(url, "select number from intervalq.tasks_version") == [(SCHEMA,)]
    assert sql(url, "select count(*) from intervalq.tasks") == [(8,)]


async def test_a_newer_schema_is_refused_with_both_versions(url: str, store: PostgresTaskStore) -> None:
    sql(url, f"update intervalq.tasks_version set number = {SCHEMA + 1}")
    await store.aclose()
    with pytest.raises(errors.VersionMismatch, match=f"version {SCHEMA + 1}.* version {SCHEMA}: upgrade"):
        await store.apply(Count())
    assert "error" in dict(await store.advice())
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="newer"):
        connection.execute(statements("tasks").encode())


async def test_what_is_missing_in_the_schema_is_made_again(url: str, store: PostgresTaskStore) -> None:
    await store.apply(inserts("t"))
    sql(url, "drop function intervalq.stats")
    assert [stats.size for stats in await store.apply(Count())] == [1]
    sql(url, "drop schema intervalq cascade")
    assert await store.apply(Count()) == ()


async def test_statements_are_prepared_on_the_server_s_own_connections(url: str, pgbouncer_url: str) -> None:
    for server, prepared in ((url, {True}), (pgbouncer_url, {False})):
        async with aclosing(PostgresTaskStore(server)) as store:
            session = f"s-{secrets.token_hex(6)}"
            await begun(store, session)
            for _ in range(3):
                await claim(store, session)
            [connection] = store._pool.idle
            asked = (
                b"select count(*) > 0 from pg_prepared_statements where statement like '%intervalq.work(%'"
            )
            assert {row[0] async for row in await connection.execute(asked)} == prepared
            await store.apply(End(session))


async def test_a_newer_schema_is_refused_where_statements_were_prepared(
    url: str, store: PostgresTaskStore
) -> None:
    """The server's first error is that the called function returns rows of another type."""
    for _ in range(3):
        assert await store.apply(Sessions()) == ()
    sql(url, f"update intervalq.tasks_version set number = {SCHEMA + 1}")
    sql(url, "drop function intervalq.live_sessions")
    sql(url, "create function intervalq.live_sessions(out a int) language sql return 1")
    with pytest.raises(errors.VersionMismatch, match=f"version {SCHEMA + 1}"):
        await store.apply(Sessions())


async def test_without_the_right_to_create_it_says_what_an_administrator_does(url: str) -> None:
    role = f"intervalq_{secrets.token_hex(6)}"
    sql(url, f"create role {role} login password '{CANARY}'")
    theirs = f"postgresql://{role}:{CANARY}@{url.rpartition('@')[2]}"
    try:
        async with aclosing(PostgresTaskStore(theirs)) as store:
            with pytest.raises(errors.Unauthorized, match=r"postgres.tasks\.sql"):
                await store.apply(Count())
            sql(url, statements("tasks"))
            assert isinstance(await caught(store.apply(Count())), errors.Unauthorized)
            head = statements("tasks").split("begin;")[0].splitlines()
            for grant in (line.strip("- ;") for line in head if line.startswith("--   grant ")):
                sql(url, grant.replace("some_role", role))
            await begun(store, "s", "other")
            await store.apply(inserts("t", "u", key="k", dedupe="d"))
            await store.apply(inserts(uuid_of("v")[:14] + "4" + uuid_of("v")[15:]))
            await store.put("q", ["1", "2"])
            work = Work("s", queues=("q",), limit=10, idle=True)
            worked = await store.apply(work)
            await store.apply(Work("s", finished=tuple(Finished(one) for one, _ in worked.ranges)))
            await store.apply(work)
            await store.apply(work)
            async with store.wakeups("s"), store.guard("s") as guard:
                assert not (await guard(0)).removed
            await store.apply(Beat("other"))
            await store.apply(End("s"))
            assert {row.id for row in await store.apply(Select())} >= {"t"}
    finally:
        sql(url, f"drop owned by {role}; drop role {role}")


# --- ids --------------------------------------------------------------------------------------------


async def test_client_and_server_make_the_same_uuid_of_an_id(url: str, store: PostgresTaskStore) -> None:
    uuids = ["0190a5c2-1111-7abc-8def-000000000000", "0190a5c2-1111-8abc-8def-000000000000"]
    for id_ in ("", "t", "ü", uuids[0], uuids[1], uuids[0].upper(), uuids[0] + "\n", "a" * 300):
        assert str(sql(url, "select intervalq._id(%s)", id_)[0][0]) == uuid_of(id_), id_
    assert uuid_of(uuids[0]) == uuids[0]
    assert uuid_of(uuids[1]) != uuids[1]  # a text that may be the hash of another id is hashed itself


async def test_texts_that_the_server_cannot_hold_are_refused(store: PostgresTaskStore) -> None:
    id_ = "0190a5c2-1111-7abc-8def-000000000000"
    for bad in ("a\0b", "a\ud800b"):
        for insert in (Insert(bad, "1", id_), Insert("q", "1", bad), Insert("q", "1", id_, error=bad)):
            assert isinstance(await caught(store.apply(Modify(inserts=(insert,)))), errors.StoreError)
        assert isinstance(await caught(store.apply(Work("s", queues=(bad,), limit=1))), errors.StoreError)
    assert isinstance(
        await caught(store.apply(Modify(deletes=(Delete(id_, 2**31),)))), errors.DependencyError
    )
    assert await store.apply(Select()) == ()


async def test_numbers_are_of_one_moment(url: str, store: PostgresTaskStore) -> None:
    """A task that is claimed while they are counted is ready or claimed in them, and not gone."""
    await begun(store, "new")
    await store.apply(inserts("a"))
    sql(
        url,
        "create or replace function intervalq._queues(names text[], prefixes text[], holders integer[])"
        "    returns setof text language plpgsql volatile as $$ begin"
        "        perform pg_advisory_xact_lock_shared(7); return query select unnest(names);"
        "    end $$",
    )
    found: list[object] = []
    async with aclosing(PostgresTaskStore(url)) as looking:

        async def count() -> None:
            found.extend(await looking.apply(Count(names=("q",))))

        async with anyio.create_task_group() as group:
            with psycopg.connect(url) as other:
                other.execute("select pg_advisory_xact_lock(7)")
                group.start_soon(count)
                await until(
                    lambda: sql(url, "select 1 from pg_locks where locktype = 'advisory' and not granted")
                )
                assert len(await claim(store, "new")) == 1
    assert found == [QueueStats("q", 1, ready=1)]
