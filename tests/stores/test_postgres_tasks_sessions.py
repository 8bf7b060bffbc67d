"""Tasks on Postgres: sessions, guards, and which sessions are woken."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing

import anyio
import anyio.lowlevel
import psycopg
import pytest

from intervalq import errors
from intervalq.errors import UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import (
    Beat,
    Change,
    Delete,
    End,
    Modify,
    Row,
    Select,
    Sessions,
    Work,
)
from intervalq.tasks.store import Watched
from intervalq_stores.postgres.tasks import PostgresTaskStore
from servers import Server
from stores import postgres_sessions
from stores.postgres_sessions import ME, begun, caught, claim, inserts, sql, until, with_options

url = postgres_sessions.url
store = postgres_sessions.store


async def _once(watch: Callable[[float], Awaitable[Watched]]) -> Watched:
    return await watch(3600)


async def _for_ever(watch: Callable[[float], Awaitable[object]]) -> None:
    while True:
        await watch(0)
        await anyio.lowlevel.checkpoint()


# --- sessions ---------------------------------------------------------------------------------------


async def test_a_beat_waits_for_nobody_and_frees_what_was_locked_later(
    url: str, store: PostgresTaskStore
) -> None:
    await begun(store, "lost", expiry=1)
    await begun(store, "s")
    await store.apply(inserts("a", "b"))
    assert len(await claim(store, "lost", 2)) == 2
    with psycopg.connect(with_options(url, "lock_timeout=1")) as other:
        other.execute("select from intervalq.tasks where own = 'a' for update")
        assert (await store.apply(Beat("s"))).lapsed == ("lost",)
        assert {row.id: row.session is None for row in await store.apply(Select())} == {"a": False, "b": True}
    assert (await store.apply(Beat("s"))).lapsed == ()
    assert {row.id: (row.version, row.error) for row in await store.apply(Select())} == dict.fromkeys(
        "ab", (2, "host:7 was lost")
    )
    assert sql(url, "select id from intervalq.sessions order by id") == [("s",)]


async def test_claims_made_while_their_session_is_removed_are_freed(
    url: str, store: PostgresTaskStore
) -> None:
    await begun(store, "lost", expiry=1)
    await begun(store, "s")
    await store.apply(inserts("a"))
    async with store.transaction("read committed") as slow:
        assert len((await slow.apply(Work("lost", queues=("q",), limit=1, begins=1))).claimed) == 1
        assert (await store.apply(Beat("s"))).lapsed == ("lost",)
        await store.apply(Beat("s"))
        assert sql(url, "select count(*) from intervalq.sessions") == [(2,)]
    await store.apply(Beat("s"))
    assert [(row.session, row.attempt) for row in await store.apply(Select())] == [(None, 1)]
    assert sql(url, "select count(*) from intervalq.sessions") == [(1,)]


@pytest.mark.parametrize("kind", ["ordinary", "plain", "idle"])
async def test_claims_made_after_their_session_was_deleted_are_freed(
    kind: str, url: str, store: PostgresTaskStore
) -> None:
    """The row of a session without claims is deleted while a claim of it waits and has written nothing."""
    await begun(store, "lost", expiry=1)
    await begun(store, "s")
    if kind == "ordinary":
        await store.apply(inserts("a"))
    elif kind == "plain":
        await store.put("q", ['"a"'])
    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_lock(intervalq._lock('c', ''))")  # of the consumer without a name
        work = Work("lost", queues=("q",), limit=1, begins=1, most=4, idle=True)
        [(now,)] = sql(url, "select intervalq._now(null)")  # or it would record the clock, which is a write
        claiming = asyncio.ensure_future(store.apply(work, now))
        await until(lambda: sql(url, "select pid from pg_locks where locktype = 'advisory' and not granted"))
        assert (await store.apply(Beat("s"))).lapsed == ("lost",)
        await store.apply(Beat("s"))
        assert sql(url, "select id from intervalq.sessions") == [("s",)]
    worked = await claiming
    assert len(worked.claimed) + len(worked.ranges) == (kind != "idle")
    await store.apply(Beat("s"))
    for table in ("tasks", "ranges", "idle"):
        assert sql(url, f"select session from intervalq.{table} where session is not null") == []
    assert [row.attempt for row in await claim(store, "s")] == [1] * (kind != "idle")


async def test_a_claim_is_settled_at_its_version_only(store: PostgresTaskStore) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", "b"))
    rows = await claim(store, "s", 2)
    await store.apply(Modify("s", changes=(Change("a", 1, keep=True),)))
    settled = tuple(Delete(row.id, row.version) for row in rows)
    assert (await store.apply(Work("s", settled=settled))).lost == ("a",)
    assert [(row.id, row.version) for row in await store.apply(Select())] == [("a", 2)]


async def test_a_dead_process_is_seen_by_the_next_of_the_ring(url: str, store: PostgresTaskStore) -> None:
    names = ["a", "b", "c", "d"]
    await begun(store, *names)
    await store.apply(inserts("t"))
    assert len(await claim(store, "c")) == 1
    async with AsyncExitStack() as guards:
        watches = {name: await guards.enter_async_context(store.guard(name)) for name in names}
        seen = [await watches[name](0) for name in names]
        assert seen == [Watched(removed=False, is_idle=name != "b") for name in names]
        for name in "bc":
            line = store._direct._sessions[name].connection.info.backend_pid
            assert sql(url, "select pg_terminate_backend(%s, 5000)", line) == [(True,)]
        assert not (await watches["d"](0)).removed
        assert (await watches["a"](0)).removed
        assert [session.id for session in await store.apply(Sessions())] == ["a", "d"]
        [row] = await store.apply(Select())
        assert (row.session, row.version, row.error) == (None, 2, "host:7 was lost")
        assert not (await watches["a"](0)).removed
        assert type(await caught(_for_ever(watches["b"]))) is errors.StoreUnavailable
    assert [session.id for session in await store.apply(Sessions())] == ["a", "d"]


async def test_a_watch_ends_its_pause_with_a_beat_that_has_looked(store: PostgresTaskStore) -> None:
    """Otherwise a neighbour that has begun to work is checked as rarely as an idle one."""
    await begun(store, "a", "b")
    await store.apply(inserts("t"))
    async with store.guard("a") as watch, store.guard("b"), asyncio.TaskGroup() as group:
        watching = group.create_task(_once(watch))
        await anyio.lowlevel.checkpoint()
        assert len(await claim(store, "b")) == 1
        await store.apply(Beat("b"))
        assert not watching.done()
        await store.apply(Beat("a"))
        assert await watching == Watched(removed=False, is_idle=False)


async def test_a_guard_that_leaves_and_one_that_never_was_are_not_taken_for_dead(
    store: PostgresTaskStore,
) -> None:
    await begun(store, "a", "b", "c")
    async with store.guard("a") as watch:
        async with store.guard("b"), store.wakeups("b"):
            assert not (await watch(0)).removed
        assert not (await watch(0)).removed
        assert len(await store.apply(Sessions())) == 3


async def test_after_a_restart_nobody_is_judged_by_a_lock_of_before(
    own_postgres: Callable[..., Server],
) -> None:
    server = own_postgres()
    async with aclosing(PostgresTaskStore(server.url)) as store:
        await begun(store, "a", "b")
        async with store.guard("a"), store.guard("b"):
            server.stop()
            server.start()
            await store.aclose()
        async with store.guard("a") as watch:
            assert not (await watch(0)).removed
            async with store.guard("b"):
                assert not (await watch(0)).removed
            assert len(await store.apply(Sessions())) == 2


async def test_behind_a_pooler_nobody_wakes_or_is_judged(pgbouncer_url: str) -> None:
    session = f"s-{secrets.token_hex(6)}"
    async with aclosing(PostgresTaskStore(pgbouncer_url)) as store:
        await begun(store, session)
        async with store.guard(session) as guard:
            assert not (await guard(0)).removed
            with pytest.raises(UnsupportedOperation, match="pooler"):
                async with store.wakeups(session):
                    pass
        await store.apply(End(session))
    with psycopg.connect(pgbouncer_url, prepare_threshold=None) as shared:
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert shared.execute(held.encode()).fetchone() == (0,)


async def test_behind_a_pooler_nobody_is_given_what_they_would_not_hear_of(
    pgbouncer_url: str,
) -> None:
    """A task claimed by an insert for an idle session whose notices are lost would never run."""
    queue = f"q-{secrets.token_hex(6)}"
    async with Tasks(pgbouncer_url) as working, Tasks(pgbouncer_url) as other:
        ran, seen = anyio.create_memory_object_stream[int](8)

        @working.worker(queue)
        async def work(task: Claim) -> None:
            await ran.send(task.value)

        async with anyio.create_task_group() as group:
            group.start_soon(working.run)
            with anyio.fail_after(60):
                for number in range(8):
                    await other.insert(queue, number)
                    assert await seen.receive() == number
            working.stop()
        ran.close()
        seen.close()


# --- waking -----------------------------------------------------------------------------------------


async def test_no_insert_is_missed_by_one_who_becomes_idle_in_that_moment(
    url: str, store: PostgresTaskStore
) -> None:
    """The insert is not committed yet when the idle session looks, and doesn't see that session either."""
    await begun(store, "s")
    waits = f"select 1 {ME} and wait_event = 'PgSleep'"
    looks: list[tuple[Row, ...]] = []

    async def look() -> None:
        looks.append(await claim(store, "s", idle=True))

    for turn in range(1, 51):
        with psycopg.connect(url) as inserting:
            inserting.execute("select intervalq.enqueue('q', '1')")
            async with anyio.create_task_group() as group:
                group.start_soon(look)
                await until(lambda: sql(url, waits) or len(looks) == turn)  # noqa: B023 - in this turn only
                inserting.commit()
        if looks[-1]:
            break
        assert await claim(store, "s")  # on a busy machine, it had waited long enough before the commit
    assert len(looks[-1]) == 1


async def test_a_lost_connection_is_told_to_who_waits_on_it(url: str, store: PostgresTaskStore) -> None:
    await begun(store, "s")
    async with store.wakeups("s") as woken:
        line = store._direct._sessions["s"].connection.info.backend_pid
        sql(url, "select pg_terminate_backend(%s, 5000)", line)
        assert type(await caught(woken())) is errors.StoreUnavailable
        async with store.wakeups("s") as again:  # by a new one
            await store.apply(Work("s", queues=("q",), limit=1, idle=True))
            await store.apply(inserts("t"))
            await again()
