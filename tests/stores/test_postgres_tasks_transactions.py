"""Tasks on Postgres: transactions, plain tasks, faults and advice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import pytest
import trio

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Change,
    Count,
    Delete,
    End,
    Finished,
    Modify,
    Select,
    Work,
)
from intervalq_stores.postgres import tasks as postgres_tasks
from intervalq_stores.postgres._task.statements import uuid_of
from intervalq_stores.postgres.tasks import PostgresTaskStore
from servers import free_port
from stores import postgres_sessions
from stores.postgres_sessions import (
    CANARY,
    ME,
    begun,
    caught,
    claim,
    inserts,
    sql,
    until,
    with_options,
)

# --- transactions -----------------------------------------------------------------------------------

url = postgres_sessions.url
store = postgres_sessions.store


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_next_of_a_key_is_fed_even_by_one_who_cannot_see_it(
    store: PostgresTaskStore, isolation: Any
) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", key="k"))
    [row] = await claim(store, "s")
    async with store.transaction(isolation) as mine:
        await mine.connection.execute("select 1")  # its snapshot
        await store.apply(inserts("b", key="k"))
        await mine.apply(Modify("s", deletes=(Delete(row.id, row.version),)))
    assert [row.id for row in await claim(store, "s")] == ["b"]


async def test_one_who_joins_a_line_that_it_cannot_see_the_end_of_is_fed(store: PostgresTaskStore) -> None:
    """The first has gone since its snapshot, so that nobody else would make the second one claimable."""
    await begun(store, "s")
    await store.apply(inserts("a", key="k"))
    [row] = await claim(store, "s")
    async with store.transaction("repeatable read") as mine:
        await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
        await store.apply(Work("s", (Delete(row.id, row.version),)))
        await mine.apply(inserts("b", key="k"))
    assert [row.id for row in await claim(store, "s")] == ["b"]


async def test_two_firsts_of_a_key_are_a_conflict(store: PostgresTaskStore) -> None:
    async def insert_both() -> None:
        async with store.transaction("repeatable read") as mine:
            await mine.connection.execute("select 1")
            await store.apply(inserts("a", key="k"))
            await mine.apply(inserts("b", key="k"))

    assert isinstance(await caught(insert_both()), errors.TransactionConflict)
    assert [row.id for row in await store.apply(Select())] == ["a"]


async def test_a_transaction_that_has_failed_is_not_taken_for_committed(store: PostgresTaskStore) -> None:
    async def careless() -> None:
        async with store.transaction("read committed") as mine:
            await mine.apply(inserts("a"))
            with pytest.raises(psycopg.Error):
                await mine.connection.execute("select 1 / 0")

    assert "rolled" in str(await caught(careless()))
    assert await store.apply(Select()) == ()


@pytest.mark.parametrize("ended", [b"commit", b"rollback"])
async def test_a_transaction_that_its_user_has_ended_takes_no_command(
    store: PostgresTaskStore, ended: bytes
) -> None:
    """Otherwise the user's own writes would be kept, whoever has the claim by then."""
    kinds: list[str] = []
    for command in (inserts("a"), None):

        async def hasty(command: Modify | None = command) -> None:
            async with store.transaction("read committed") as mine:
                await mine.connection.execute(ended)
                if command is not None:
                    await mine.apply(command)

        kinds.append(str(await caught(hasty())))
    assert ["ended by a statement in it" in kind for kind in kinds] == [True, True]
    assert await store.apply(Select()) == ()


async def test_who_refuses_a_command_does_not_end_the_transaction(store: PostgresTaskStore) -> None:
    await store.apply(inserts("a"))
    async with store.transaction("read committed") as mine:
        for _ in range(2):
            assert isinstance(await caught(mine.apply(inserts("b", "a"))), errors.DependencyError)
        await mine.apply(inserts("c"))
    assert {row.id for row in await store.apply(Select())} == {"a", "c"}


async def test_a_connection_is_kept_after_a_transaction_and_dropped_after_a_failure(
    store: PostgresTaskStore,
) -> None:
    async def once(insert: Modify) -> int:
        async with store.transaction("read committed") as mine:
            await mine.apply(insert)
            return mine.connection.info.backend_pid

    first = await once(inserts("a"))
    assert await once(inserts("b")) == first
    assert isinstance(await caught(once(inserts("b"))), errors.DependencyError)
    assert await once(inserts("c")) != first


async def test_anybody_can_insert_by_sql(url: str, store: PostgresTaskStore) -> None:
    await begun(store, "s")
    assert sql(url, "select intervalq.enqueue('q', '{\"a\": 1}', id => 'mine', key => 'k')") == [("mine",)]
    [(made,)] = sql(url, "select intervalq.enqueue('q', 'null', dedupe_key => 'd', delay => '1 hour')")
    assert sql(url, "select intervalq.enqueue('q', '2', dedupe_key => 'd')") == [(made,)]
    assert uuid_of(made) == made
    rows = {row.id: row for row in await store.apply(Select())}
    assert (rows["mine"].json, rows["mine"].key, rows[made].dedupe) == ('{"a": 1}', "k", "d")
    assert rows[made].at - rows[made].created == 3600 * SECOND
    [(first,)] = sql(url, "select intervalq.enqueue('q', '3', priority => -9, delay => '1 hour')")
    assert [row.priority for row in await store.apply(Select(ids=(first,)))] == [-9]
    [(last,)] = sql(url, "select intervalq.enqueue('s', '4', key => 'k', concurrency_per_key => 2)")
    assert [row.per_key for row in await store.apply(Select(ids=(last,)))] == [2]
    for bad, reported in (
        ("'q', '1', concurrency_per_key => 2", "needs a key"),
        ("'q', '1', key => 'k', concurrency_per_key => 2, replace => true", "combined with replace"),
        ("'q', '1', key => 'k', concurrency_per_key => 0", "from 1 to 1000"),
        ("'q', '1', id => 'mine'", "exists"),
        ("'q', '1', key => 'k', inbox => 0", "full"),
        ("'q', '1', priority => 10", "from -9 to 9"),
    ):
        with pytest.raises(psycopg.Error, match=reported):
            sql(url, f"select intervalq.enqueue({bad})")
    sql(url, "create table cars (name text)")
    sql(
        url,
        "create function paint() returns trigger language plpgsql as $$ begin"
        " perform intervalq.enqueue('q', to_jsonb(new), id => new.name); return new; end $$;"
        " create trigger paint after insert on cars for each row execute function paint()",
    )
    async with store.wakeups("s") as woken:
        assert [row.id for row in await claim(store, "s", 5)] == ["mine"]
        assert await claim(store, "s", idle=True) == ()
        sql(url, "insert into cars values ('beetle')")
        await woken()
    [row] = await claim(store, "s")
    assert (row.id, row.json) == ("beetle", '{"name": "beetle"}')


# --- plain tasks ------------------------------------------------------------------------------------


async def _numbers(store: PostgresTaskStore, now: int | None = None) -> list[int]:
    """The numbers that a session gets which finishes all plain tasks one by one; ordinary tasks are left."""
    worked = await store.apply(Work("s", queues=("q",), limit=100), now)
    done = tuple(Finished(one) for one, _ in worked.ranges)
    assert (await store.apply(Work("s", finished=done), now)).lost_ranges == ()
    return [
        *(int(json) for _, tasks in worked.ranges for _, json in tasks),
        *(int(r.json) for r in worked.claimed),
    ]


@pytest.mark.parametrize("when", ["before the claim is finished", "after it"])
async def test_plain_tasks_that_are_committed_late_are_not_lost(
    url: str, store: PostgresTaskStore, when: str
) -> None:
    await begun(store, "s")
    for number in range(100, 164):  # in every part
        await store.put("q", [str(number)])
    with psycopg.connect(url) as late:
        for number in range(32):
            late.execute(f"select intervalq.put('q', '{number}')".encode())
        for number in range(164, 228):
            await store.put("q", [str(number)])
        worked = await store.apply(Work("s", queues=("q",), limit=1000))
        await store.apply(Beat("s"), 10 * SECOND)
        done = tuple(Finished(one) for one, _ in worked.ranges)
        if when == "after it":
            assert (await store.apply(Work("s", finished=done))).lost_ranges == ()
        await store.apply(Beat("s"), 20 * SECOND)
        late.commit()
    if when != "after it":
        await store.apply(Beat("s"), 30 * SECOND)
        assert (await store.apply(Work("s", finished=done))).lost_ranges == ()
    given = [int(json) for _, tasks in worked.ranges for _, json in tasks]
    assert sorted(given) == list(range(100, 228))
    for second in range(40, 44):
        await store.apply(Beat("s"), second * SECOND)
    rows = [row for row in await store.apply(Select(queue="q")) if row.created]  # now ordinary
    found: list[int] = []
    while more := await _numbers(store):
        found += more
    assert sorted(found) == list(range(32))
    assert {row.attempt for row in rows} <= {0}
    assert [(stats.size, stats.claimed) for stats in await store.apply(Count())] in (
        [],
        [(len(rows), len(rows))],
    )


async def test_sessions_begin_with_parts_of_their_own_and_leave_none(
    url: str, store: PostgresTaskStore
) -> None:
    await begun(store, "a", "b")
    for number in range(400):
        await store.put("q", [str(number)])
    parts: dict[str, list[int]] = {}
    for session in ("a", "b"):
        worked = await store.apply(Work(session, queues=("q",), limit=100))
        parts[session] = [one.part for one, _ in worked.ranges]
    assert max(parts["a"]) < 8 <= min(parts["b"])
    left = 200
    while left:
        worked = await store.apply(Work("a", queues=("q",), limit=100))
        assert worked.ranges
        left -= sum(len(tasks) for _, tasks in worked.ranges)
    assert left == 0


# --- faults and advice ------------------------------------------------------------------------------


async def test_what_the_server_says_becomes_the_errors_of_a_store(url: str, store: PostgresTaskStore) -> None:
    await store.apply(inserts("a"))
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks for update")
        async with aclosing(PostgresTaskStore(with_options(url, "statement_timeout=50"))) as slow:
            change = Modify(changes=(Change("a", 0),))
            assert type(await caught(slow.apply(change))) is errors.StoreTimeout
        async with aclosing(
            PostgresTaskStore(with_options(url, "default_transaction_read_only=on"))
        ) as replica:
            assert type(await caught(replica.apply(inserts("b")))) is errors.StoreReadOnly
    nobody = PostgresTaskStore(f"postgresql://somebody:{CANARY}@127.0.0.1:{free_port()}/db")
    error = await caught(nobody.apply(Count()))
    assert type(error) is errors.StoreUnavailable
    assert CANARY not in f"{nobody!r} {nobody.url} {error}"


async def test_a_command_that_is_cancelled_leaves_nothing_to_the_next_one(
    url: str, store: PostgresTaskStore
) -> None:
    await store.apply(inserts("a"))
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks for update")
        task = asyncio.create_task(store.apply(Modify(changes=(Change("a", 0),))))
        await until(lambda: sql(url, f"select 1 {ME} and wait_event_type = 'Lock'"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [row.id for row in await store.apply(Select())] == ["a"]


def test_trio_is_refused_by_name(url: str) -> None:
    with pytest.raises(errors.BackendUnsupported, match="asyncio"):
        trio.run(PostgresTaskStore(url).apply, Count())


async def test_advice_names_what_is_wrong(
    url: str, pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(at: str) -> str:
        async with aclosing(PostgresTaskStore(at)) as store:
            return " ".join(reported for level, reported in await store.advice() if level != "ok")

    assert await wrong(url) == ""
    assert "synchronous_commit is off" in await wrong(with_options(url, "synchronous_commit=off"))
    assert "pooler" in await wrong(pgbouncer_url)
    monkeypatch.setattr("intervalq_stores.postgres._advice.OLD", -1.0)
    assert "has been open" in await wrong(url)


async def test_an_end_frees_what_was_locked_for_a_moment_only(
    url: str, store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_tasks, "_MOMENTS", 13)  # a slow machine's moment
    await begun(store, "s")
    await store.apply(inserts("a", "b"))
    assert len(await claim(store, "s", 2)) == 2
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks where own = 'a' for update")
        async with anyio.create_task_group() as group:
            group.start_soon(store.apply, End("s"))
            await until(lambda: sql(url, "select 1 from intervalq.tasks where session is null"))
            other.rollback()
    assert [(row.session, row.attempt) for row in await store.apply(Select())] == [(None, 0)] * 2
