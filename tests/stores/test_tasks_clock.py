"""A store's clock is set back by an hour: ready tasks stay ready, and delayed ones wait no longer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from faults.fake_clock import FakeClock
from intervalq.errors import DependencyError
from intervalq.tasks.rules import (
    DAY,
    SECOND,
    Beat,
    Begin,
    Change,
    Delete,
    End,
    Insert,
    Kept,
    Modify,
    Outcomes,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import TaskStore
from intervalq_stores.memory.tasks import MemoryTaskStore
from intervalq_stores.postgres.tasks import PostgresTaskStore
from intervalq_stores.redis.tasks import RedisTaskStore
from intervalq_stores.sqlite import tasks as sqlite_tasks
from intervalq_stores.sqlite.tasks import SQLiteTaskStore
from servers import Server

HOUR: Final = 3600
MINUTE: Final = 60

MoveClock = Callable[[int], Awaitable[object]]
"""Lets this many seconds (or a negative number) pass on the store's clock."""


@pytest.fixture
def memory() -> tuple[TaskStore, MoveClock]:
    now = [time.time_ns() // 1000]

    async def move_clock(seconds: int) -> None:
        now[0] += seconds * SECOND

    return MemoryTaskStore(clock=lambda: now[0]), move_clock


@pytest.fixture
async def sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TaskStore, MoveClock]]:
    now = [time.time_ns() // 1000]

    async def move_clock(seconds: int) -> None:
        now[0] += seconds * SECOND

    monkeypatch.setattr(sqlite_tasks, "wall_clock", lambda: now[0])
    async with aclosing(SQLiteTaskStore(f"sqlite://{tmp_path}/tasks.db")) as store:
        yield store, move_clock


CLOCK: Final = """
    create table clock (ahead bigint not null);
    insert into clock values (0);
    create or replace function intervalq._now(given bigint) returns bigint language sql volatile
    return coalesce(given, (
        select (extract(epoch from clock_timestamp()) * 1000000)::bigint + c.ahead from public.clock c
    ));
"""


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[tuple[TaskStore, MoveClock]]:
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}".encode())
        async with aclosing(PostgresTaskStore(url)) as store:
            await store.apply(Work(""))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(CLOCK.encode())

                async def move_clock(seconds: int) -> None:
                    connection.execute(b"update clock set ahead = ahead + %s", [seconds * SECOND])

                yield store, move_clock
        server.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    clock = FakeClock()
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    yield clock
    clock.close()


@pytest.fixture
async def redis(
    clock: FakeClock, own_redis: Callable[..., Server]
) -> AsyncIterator[tuple[TaskStore, MoveClock]]:
    ahead = [0]

    async def move_clock(seconds: int) -> None:
        ahead[0] += seconds
        clock.set(ahead[0])

    async with aclosing(RedisTaskStore(own_redis().url)) as store:
        yield store, move_clock


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def opened(request: pytest.FixtureRequest) -> tuple[TaskStore, MoveClock]:
    opened: tuple[TaskStore, MoveClock] = request.getfixturevalue(request.param)
    return opened


async def _insert(store: TaskStore, *ids: str, delay: int = 0) -> None:
    await store.apply(Modify(inserts=tuple(Insert("q", "1", id_, delay=delay) for id_ in ids)))


async def _claimed(store: TaskStore, session: str = "s", lease: int | None = None) -> list[Row]:
    work = Work(session, queues=("q",), limit=50, lease=lease, begins=1)
    return sorted((await store.apply(work)).claimed)


async def _ids(store: TaskStore) -> list[str]:
    """The ids of the ready tasks, which this claims."""
    return [row.id for row in await _claimed(store)]


@pytest.mark.parametrize("steps", [1, 3])
async def test_what_was_ready_is_ready_and_what_waits_waits_as_long(
    opened: tuple[TaskStore, MoveClock], steps: int
) -> None:
    """This includes tasks inserted or given back then, and holds for one large step or some small ones."""
    store, move_clock = opened
    await store.apply(Begin(Session("s", expiry=10 * HOUR * SECOND)))
    assert await _ids(store) == []
    await _insert(store, "e1", delay=30 * MINUTE * SECOND)
    await move_clock(70 * MINUTE)
    await _insert(store, "a1", "a2", "a3")
    await _insert(store, "d1", delay=10 * MINUTE * SECOND)
    await move_clock(5 * MINUTE)
    await store.apply(Beat("s"))
    await _insert(store, "b1")
    for _ in range(steps):
        await move_clock(-HOUR)
        await store.apply(Beat("s"))
    await move_clock(steps)  # the store knows to the second what the clock read before
    await _insert(store, "c1")
    await _insert(store, "d2", delay=20 * MINUTE * SECOND)
    rows = await _claimed(store)
    assert [row.id for row in rows] == ["a1", "a2", "a3", "b1", "c1", "e1"]
    assert await _ids(store) == []
    back = Work("s", tuple(Delete(row.id, row.version) for row in rows[1:]))
    assert (await store.apply(back)).lost == ()
    await store.apply(Modify("s", deletes=(Delete(rows[0].id, rows[0].version),)))
    await move_clock(6 * MINUTE)
    assert await _ids(store) == ["d1"]
    await move_clock(15 * MINUTE)
    assert await _ids(store) == ["d2"]
    await move_clock(HOUR)
    assert await _ids(store) == []


async def test_what_is_given_back_after_it_is_ready_again(opened: tuple[TaskStore, MoveClock]) -> None:
    store, move_clock = opened
    for session in ("s", "other"):
        await store.apply(Begin(Session(session, expiry=10 * HOUR * SECOND)))
    await _insert(store, "a1", "a2")
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    await store.apply(Beat("s"))
    await move_clock(1)
    rows = await _claimed(store, "other")
    assert [row.id for row in rows] == ["a1", "a2"]
    await store.apply(End("other"))
    assert await _ids(store) == ["a1", "a2"]


async def test_claims_and_sessions_end_neither_early_nor_late(opened: tuple[TaskStore, MoveClock]) -> None:
    store, move_clock = opened
    for session in ("s", "dead", "alive"):
        await store.apply(Begin(Session(session, f"host-{session}", 7, expiry=30 * SECOND)))
    await _insert(store, "leased")
    await _claimed(store, "alive", 300 * SECOND)
    await _insert(store, "held")
    assert [row.id for row in await _claimed(store, "dead")] == ["held"]
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    for _ in range(2):
        for session in ("s", "alive"):
            assert (await store.apply(Beat(session))).lapsed == ()
        assert await _ids(store) == []
        await move_clock(10)
    await store.apply(Beat("alive"))
    await move_clock(20)
    assert (await store.apply(Beat("s"))).lapsed == ("dead",)
    await store.apply(Beat("alive"))
    await move_clock(2)
    assert await _ids(store) == ["held"]
    for _ in range(12):
        await move_clock(20)
        for session in ("s", "alive"):
            assert (await store.apply(Beat(session))).lapsed == ()
        assert await _ids(store) == []
    await move_clock(60)
    assert await _ids(store) == ["leased"]


async def test_a_lease_that_has_ended_is_nobodys(opened: tuple[TaskStore, MoveClock]) -> None:
    """Others may then change the task, whether or not any session has looked for tasks."""
    store, move_clock = opened
    await store.apply(Begin(Session("s", expiry=10 * HOUR * SECOND)))
    await _insert(store, "leased")
    (row,) = await _claimed(store, "s", 300 * SECOND)
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    await store.apply(Beat("s"))
    removal = Modify(deletes=(Delete(row.id, row.version),))
    await move_clock(280)
    await store.apply(Beat("s"))
    with pytest.raises(DependencyError):
        await store.apply(removal)
    await move_clock(30)
    await store.apply(Beat("s"))
    await store.apply(removal)


@pytest.mark.parametrize("replace", [False, True])
async def test_a_lease_that_ended_before_the_step_is_nobodys(
    opened: tuple[TaskStore, MoveClock], replace: bool
) -> None:
    """Its time ends only once, also for a task that replaces others of its key."""
    store, move_clock = opened
    await store.apply(Begin(Session("s", expiry=10 * HOUR * SECOND)))
    await store.apply(Modify(inserts=(Insert("q", "1", "leased", key="k"),)))
    (row,) = await _claimed(store, "s", 300 * SECOND)
    await move_clock(310)
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    await store.apply(Beat("s"))
    await move_clock(1)
    if replace:
        new = Insert("q", "2", "new", key="k", inbox=1, replace=True)
        await store.apply(Modify(inserts=(new,)))
        assert await _ids(store) == ["new"]
    else:
        change = Change(row.id, row.version, json="3")
        await store.apply(Modify(changes=(change,)))
        assert [each.json for each in await _claimed(store)] == ["3"]


@pytest.mark.parametrize("way", ["change", "settle", "end"])
async def test_what_is_changed_or_given_back_waits_no_longer(
    opened: tuple[TaskStore, MoveClock], way: str
) -> None:
    """Tasks claimed or inserted before the step are ready if they are given back or changed after it."""
    store, move_clock = opened
    for session in ("s", "other"):
        await store.apply(Begin(Session(session, expiry=10 * HOUR * SECOND)))
    await _insert(store, "a")
    await _insert(store, "later", delay=20 * MINUTE * SECOND)
    rows = await _claimed(store, "other") if way in ("settle", "end") else []
    named = {row.id: row for row in (rows or [*await store.apply(Select("q"))])}
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    await store.apply(Beat("s"))
    await move_clock(1)
    change = Change("a", named["a"].version, json="2")
    if way == "end":
        await store.apply(End("other"))
    elif way == "settle":
        assert (await store.apply(Work("other", (change,)))).lost == ()
    else:
        await store.apply(Modify("s", changes=(change, Change("later", named["later"].version))))
    assert await _ids(store) == ["a"]
    await move_clock(19 * MINUTE)
    assert await _ids(store) == []
    await move_clock(2 * MINUTE)
    assert await _ids(store) == ["later"]


async def test_a_dedupe_key_is_free_again_when_it_would_have_been(
    opened: tuple[TaskStore, MoveClock],
) -> None:
    store, move_clock = opened
    await store.apply(Begin(Session("s", expiry=10 * HOUR * SECOND)))

    async def insert(id_: str) -> int:
        part = Insert("q", "1", id_, dedupe="once", dedupe_for=300 * SECOND)
        return len((await store.apply(Modify(inserts=(part,)))).inserted)

    assert await insert("1") == 1
    (row,) = await _claimed(store)
    await store.apply(Work("s", (Delete(row.id, row.version),)))
    await store.apply(Beat("s"))
    await move_clock(-HOUR)
    await store.apply(Beat("s"))
    assert await insert("2") == 0
    await move_clock(290)
    assert await insert("3") == 0
    await move_clock(15)
    assert await insert("4") == 1


async def test_the_last_outcome_is_the_one_written_last(opened: tuple[TaskStore, MoveClock]) -> None:
    """Whatever the clock read then, and on whichever day each of them expires."""
    store, move_clock = opened
    await store.apply(Begin(Session("s", expiry=10 * HOUR * SECOND)))

    async def left(days: int, *ends: Change | Delete) -> None:
        await store.apply(Modify(inserts=(Insert("q", "1", "a", keep_for=days * DAY),)))
        for end in ends:
            (row,) = await _claimed(store)
            assert (await store.apply(Work("s", (end,)))).lost == ()
            if isinstance(end, Change):
                await store.apply(Modify(changes=(Change("a", row.version + 1, queue="q", attempt=0),)))
            await store.apply(Beat("s"))
            await move_clock(-HOUR // 2)
            await store.apply(Beat("s"))
            await move_clock(1)

    await left(9, Change("a", 1, queue="q.dead", attempt=1, error="no"), Delete("a", 4, Kept(0, "1")))
    await left(1, Delete("a", 1, Kept(0, "2")))
    written = [("failed", ""), ("done", "1"), ("done", "2")]
    for asked, expected in (
        (Outcomes(ids=("a",)), written),
        (Outcomes(queue="q"), written[::-1]),
        (Outcomes(), written[::-1]),
        (Outcomes(queue="q", state="done", limit=1), written[2:]),
        (Outcomes(queue="other"), []),
    ):
        assert [(one.state, one.result) for one in await store.apply(asked)] == expected


async def test_a_user_s_transaction_after_the_step_holds_up_no_beat(empty_postgres_url: str) -> None:
    """A user who inserts in a transaction may be the first to see the step, and may take long."""
    async with aclosing(PostgresTaskStore(empty_postgres_url)) as store:
        await store.apply(Begin(Session("s", expiry=HOUR * SECOND)))
        await store.apply(Beat("s"))
        with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
            admin.execute("update intervalq.clock set last_now = last_now + 3600000000")
            admin.execute("update intervalq.beats set beaten = beaten + 3600000000")
        async with await psycopg.AsyncConnection.connect(empty_postgres_url) as mine:
            await mine.execute("select 1")
            await store.apply_on(mine, Modify(inserts=(Insert("q", "1", "a"),)))
            assert (await store.apply(Beat("s"))).alive


async def test_what_is_delayed_while_a_command_is_on_its_way_is_not_taken_for_older(
    empty_postgres_url: str,
) -> None:
    """It was written after the time that the command has read, and after the step."""
    async with aclosing(PostgresTaskStore(empty_postgres_url)) as store:
        await store.apply(Begin(Session("s", expiry=HOUR * SECOND)))
        await store.apply(Modify(inserts=(Insert("q", "1", "a", delay=HOUR * SECOND // 2),)))
        with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
            admin.execute("update intervalq.clock set since = last_now, behind = 3600000000")
            admin.execute("update intervalq.tasks set modified = modified + 500000")
        assert (await store.apply(Work("s", queues=("q",), limit=1))).claimed == ()
