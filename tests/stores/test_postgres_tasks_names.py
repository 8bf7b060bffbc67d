"""Names of queues of plain tasks that were used once leave nothing behind, and no task is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

import anyio
import anyio.lowlevel
import psycopg
import pytest

from intervalq.errors import TransactionConflict
from intervalq.tasks.rules import SECOND, Beat, Begin, End, Finished, Select, Session, Work, Worked
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions
from stores.postgres_sessions import sql

url = postgres_sessions.url

LEFT: Final = "select (select count(*) from intervalq.heads), (select count(*) from intervalq.floors)"


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTaskStore]:
    async with aclosing(PostgresTaskStore(url)) as store:
        await store.apply(Begin(Session("s", expiry=1_000_000 * SECOND)))
        yield store


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


def _ranges(worked: Worked) -> tuple[Finished, ...]:
    return tuple(Finished(one) for one, _ in worked.ranges)


def _values(worked: Worked) -> list[str]:
    given = [json for _, tasks in worked.ranges for _, json in tasks]
    return given + [row.json for row in worked.claimed]


async def _claim(store: PostgresTaskStore, *queues: str, **more: Any) -> Worked:
    return await store.apply(Work("s", queues=queues, limit=100, **more))


async def _drain(store: PostgresTaskStore, queue: str) -> None:
    await store.put(queue, ["1", "2"])
    worked = await _claim(store, queue)
    assert len(_values(worked)) == 2
    await store.apply(Work("s", finished=_ranges(worked)))


# --- what is left -----------------------------------------------------------------------------------


async def test_nothing_is_left_of_names_that_were_used_once(url: str, store: PostgresTaskStore) -> None:
    for number in range(30):
        await _drain(store, f"name{number}")
    await store.apply(Beat("s"))
    assert sql(url, LEFT) == [(0, 0)]
    await _drain(store, "name7")  # a name that is used again is like a new one
    await store.apply(Beat("s"))
    assert sql(url, LEFT) == [(0, 0)]


async def test_nor_of_those_that_were_swept_while_somebody_worked(url: str, store: PostgresTaskStore) -> None:
    for number in range(8):
        await store.put("q", [str(number)])
    first = await store.apply(Work("s", queues=("q",), limit=1))
    for second in (10, 20, 30):
        await store.apply(Beat("s"), second * SECOND)
    rest = await _claim(store, "q")
    await store.apply(Work("s", finished=_ranges(rest)))
    for second in (40, 50, 60):
        await store.apply(Beat("s"), second * SECOND)
    assert sql(url, LEFT) == [(16, 16)]
    await store.apply(Work("s", finished=_ranges(first)))
    await store.apply(Beat("s"), 70 * SECOND)
    assert sql(url, LEFT) == [(0, 0)]


async def test_a_sweep_removes_some_and_the_next_ones_the_others(url: str, store: PostgresTaskStore) -> None:
    for number in range(250):
        await _drain(store, f"name{number}")
    left = []
    for second in (10, 20):
        await store.apply(Beat("s"), second * SECOND)
        left += [heads // 16 for heads, _ in sql(url, LEFT)]
    assert left == [50, 0]


async def test_a_beat_does_not_look_at_queues_where_nothing_moves(url: str, store: PostgresTaskStore) -> None:
    """This holds however many queues there are with waiting tasks."""
    for number in range(40):
        await store.put(f"name{number}", [str(n) for n in range(2)])
        await store.put(f"name{number}", [str(n) for n in range(2)])
        worked = await store.apply(Work("s", queues=(f"name{number}",), limit=1))
        await store.apply(Work("s", finished=_ranges(worked)))
    moved = "select count(*) from intervalq.heads where moved"
    assert sql(url, moved) != [(0,)]
    for second in (10, 20, 30):
        await store.apply(Beat("s"), second * SECOND)
    assert sql(url, moved) == [(0,)]
    swept = "select max(swept) from intervalq.floors"
    before = sql(url, swept)
    await store.apply(Beat("s"), 40 * SECOND)
    assert sql(url, swept) == before
    assert sql(url, "select count(*) from intervalq.heads") == [(40 * 16,)]


# --- races ------------------------------------------------------------------------------------------


async def test_nothing_is_removed_below_a_task_that_is_committed_late(
    url: str, store: PostgresTaskStore
) -> None:
    with psycopg.connect(url) as late:
        late.execute("select intervalq.put('q', '0')")
        await _drain(store, "q")
        for second in (10, 20):
            await store.apply(Beat("s"), second * SECOND)
        assert sql(url, LEFT) == [(16, 16)]
        late.commit()
    given: list[str] = []
    for second in (30, 40, 50):
        await store.apply(Beat("s"), second * SECOND)
        worked = await _claim(store, "q")
        given += _values(worked)
        await store.apply(Work("s", finished=_ranges(worked)))
    assert given == ["0"]


@pytest.mark.parametrize("step", ["claim", "finish"])
async def test_nothing_is_removed_under_one_who_claims_or_finishes(
    url: str, store: PostgresTaskStore, step: str
) -> None:
    await _drain(store, "q")
    await store.put("q", ["0"])
    if step == "finish":
        worked = await _claim(store, "q")
    async with store.transaction("read committed") as slow:
        if step == "claim":
            worked = await slow.apply(Work("s", queues=("q",), limit=9))
        else:
            await slow.apply(Work("s", finished=_ranges(worked)))
        for second in (10, 20):
            await store.apply(Beat("s"), second * SECOND)
        assert sql(url, LEFT) == [(16, 16)]
        assert _values(await _claim(store, "q")) == []
    assert _values(worked) == ["0"]
    assert _values(await _claim(store, "q")) == []
    if step == "claim":
        assert (await store.apply(Work("s", finished=_ranges(worked)))).lost_ranges == ()
    await store.apply(Beat("s"), 30 * SECOND)
    assert sql(url, LEFT) == [(0, 0)]


async def test_nothing_is_removed_while_somebody_has_a_range_of_another_part(
    url: str, store: PostgresTaskStore
) -> None:
    for number in range(8):
        await store.put("q", [str(number)])
    worked = await _claim(store, "q")
    held = worked.ranges[0][0]
    done = tuple(Finished(one) for one, _ in worked.ranges[1:])
    await store.apply(Work("s", finished=done))
    sql(url, "delete from intervalq.plain where part = %s", held.part)  # as if it were committed late
    for second in (10, 20, 30):
        await store.apply(Beat("s"), second * SECOND)
    assert sql(url, LEFT) == [(16, 16)]


async def test_a_task_that_comes_while_rows_are_removed_is_told_of(
    url: str, store: PostgresTaskStore
) -> None:
    await _drain(store, "q")
    with psycopg.connect(url) as beating:
        beating.execute("select intervalq.beat('s', null)")
        async with anyio.create_task_group() as group:
            group.start_soon(store.put, "q", ["3"])
            waits = "from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            await _until(lambda: sql(url, f"select 1 {waits} union all select 1 from intervalq.plain"))
            assert _values(await _claim(store, "q", idle=True)) == []
            beating.commit()
    assert sql(url, "select count(*) from intervalq.idle") == [(0,)]
    [row] = await store.apply(Select(session="s"))
    assert row.json == "3", "the idle session has it in hand"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_one_who_sees_the_past_gets_nothing_that_is_done(
    store: PostgresTaskStore, isolation: Any
) -> None:
    async def claim_of_the_past() -> None:
        async with store.transaction(isolation) as past:
            await (await past.connection.execute("select count(*) from intervalq.plain")).fetchall()
            await store.apply(Work("s", finished=_ranges(await _claim(store, "q"))))
            await store.apply(Beat("s"))
            await past.apply(Work("s", queues=("q",), limit=9))

    await store.put("q", ["0"])
    with pytest.raises(TransactionConflict):
        await claim_of_the_past()


async def test_many_who_use_few_names_get_each_task_once(url: str, store: PostgresTaskStore) -> None:
    """Rows come and go all the time: each worker finishes what it claims, and sweeps after each claim."""
    names = ("a", "b")
    there = Counter(str(number) for number in range(240))
    given: Counter[str] = Counter()
    clock = iter(range(10, 10**9))
    removed = asyncio.Event()

    async def puts(number: int) -> None:
        async with aclosing(PostgresTaskStore(url)) as own:
            for first in range(number, 240, 3):
                await own.put(names[first % 2], [str(first)])
                if first % 20 == number:
                    await _until(lambda: sql(url, LEFT)[0][0] < 32 or given.total() == 240)
                    removed.set()

    async def works(session: str) -> None:
        async with aclosing(PostgresTaskStore(url)) as own:
            await own.apply(Begin(Session(session, expiry=10**9 * SECOND)), 0)
            while given.total() < 240:
                worked = await own.apply(Work(session, queues=names, limit=3))
                given.update(_values(worked))
                assert (await own.apply(Work(session, finished=_ranges(worked)))).lost_ranges == ()
                await own.apply(Beat(session), next(clock) * SECOND)
            await own.apply(End(session))

    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(puts, number)
            group.start_soon(works, f"w{number}")
    assert given == there
    assert removed.is_set()
    for second in (1, 2, 3):
        await store.apply(Beat("s"), (10**8 + second) * SECOND)
    assert sql(url, LEFT) == [(0, 0)]
