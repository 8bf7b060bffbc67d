"""Priorities over all claims that a store made: their order, and that none waits for ever, by brute force."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import anyio
import pytest

from intervalq import errors
from intervalq.tasks import Snooze, Tasks
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Delete,
    End,
    Insert,
    Modify,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import TaskStore, open_task_store
from intervalq_stores.memory import _task_table

MINUTE: Final = 60 * SECOND
START: Final = 1_000_000_000 * SECOND


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "memory":
        return f"memory://{secrets.token_hex(6)}"
    if name == "sqlite":
        return f"sqlite://{request.getfixturevalue('tmp_path')}/tasks.db"
    url: str = request.getfixturevalue(f"{name}_url")
    return url


class Known(NamedTuple):
    """A task as its producer knows it."""

    ready: int
    priority: int
    since: int
    """How many claims there were before it was inserted."""


def judge(claims: Sequence[tuple[int, Sequence[Row]]], known: dict[str, Known]) -> list[str]:
    """What is wrong with the claims of a queue, each the instant and the tasks in order."""
    wrong: list[str] = []
    left = dict(known)
    for number, (now, rows) in enumerate(claims):
        for row in rows:
            mine = left.pop(row.id)
            if mine.ready > now:
                wrong.append(f"{row.id} was claimed before its time")
            for id_, other in left.items():
                steps = mine.priority - other.priority
                there = other.ready <= now and other.since <= number
                if there and steps and mine.ready > other.ready + steps * MINUTE:
                    wrong.append(f"{row.id} overtook {id_}, {mine} {other}")
    return wrong


async def run(store: TaskStore, seed: int, limits: Sequence[int]) -> list[str]:
    """Insert tasks at random times, claim all of them, and judge the claims."""
    chance = random.Random(seed)
    word = secrets.token_hex(6)
    queue, session = f"{word}-q", f"{word}-s"
    await store.apply(Begin(Session(session, expiry=3600 * SECOND * 1000)), START)
    known: dict[str, Known] = {}
    claims: list[tuple[int, Sequence[Row]]] = []
    now = START
    for _ in range(30):
        inserts: list[Insert] = []
        for _ in range(chance.randint(0, 8)):
            id_ = f"{word}-{len(known)}"
            ready = now + chance.choice((0, 0, -1, MINUTE // 2, 3 * MINUTE, 30 * MINUTE))
            priority = chance.choice((-9, -1, 0, 0, 1, 5, 9))
            known[id_] = Known(ready, priority, len(claims))
            inserts.append(Insert(queue, "1", id_, at=ready, priority=priority))
        await store.apply(Modify(inserts=tuple(inserts)), now)
        work = Work(session, queues=(queue,), limit=chance.choice(limits))
        claims.append((now, (await store.apply(work, now)).claimed))
        now += chance.choice((0, 1, MINUTE // 3, 2 * MINUTE))
    while sum(len(rows) for _, rows in claims) < len(known):
        now += 2 * MINUTE
        work = Work(session, queues=(queue,), limit=chance.choice(limits))
        claims.append((now, (await store.apply(work, now)).claimed))
        assert now < START + 500 * MINUTE, "some are never claimed"
    deletes = tuple(Delete(row.id, row.version) for _, rows in claims for row in rows)
    for first in range(0, len(deletes), 500):
        await store.apply(Work(session, deletes[first : first + 500]), now)
    await store.apply(End(session), now)
    return judge(claims, known)


@pytest.mark.parametrize("limits", [(1, 1, 2), (3, 20), (100,)])
async def test_all_claims_are_in_order(url: str, limits: Sequence[int]) -> None:
    async with aclosing(open_task_store(url)) as store:
        for seed in range(8):
            assert await run(store, seed, limits) == []


async def test_a_low_task_waits_for_those_of_eighteen_minutes_and_no_more(url: str) -> None:
    """Urgent tasks come for ever, faster than they are claimed."""
    queue, session = secrets.token_hex(6), secrets.token_hex(6)
    async with aclosing(open_task_store(url)) as store:
        await store.apply(Begin(Session(session, expiry=10**15)), START)
        await store.apply(Modify(inserts=(Insert(queue, "1", f"{queue}-low", at=START, priority=-9),)), START)
        order: list[str] = []
        for minute in range(30):
            now = START + minute * MINUTE
            inserts = tuple(Insert(queue, "1", f"{queue}-{minute}-{n}", at=now, priority=9) for n in range(3))
            await store.apply(Modify(inserts=inserts), now)
            work = Work(session, queues=(queue,), limit=2)
            rows = (await store.apply(work, now)).claimed
            order += [row.id for row in rows]
        for _ in range(60):
            rows = (await store.apply(work, now)).claimed
            order += [row.id for row in rows]
        before = order[: order.index(f"{queue}-low")]
        assert {int(id_.split("-")[1]) for id_ in before} <= set(range(19))
        assert len(before) >= 3 * 18
        rows = await store.apply(Select(queue=queue), now)
        await store.apply(Modify(deletes=tuple(Delete(row.id, row.version) for row in rows), force=True), now)
        await store.apply(End(session), now)


async def test_a_task_keeps_its_priority_whatever_happens_to_it(url: str) -> None:
    queue, session, other = (secrets.token_hex(6) for _ in range(3))
    async with aclosing(open_task_store(url)) as store:
        now = START

        async def claimed(where: str) -> Row:
            work = Work(session, queues=(where,), limit=1, begins=2)
            (row,) = (await store.apply(work, now)).claimed
            return row

        await store.apply(Begin(Session(session, expiry=SECOND)), now)
        inserts = (
            Insert(queue, "1", f"{queue}-a", at=now),
            Insert(queue, "1", f"{queue}-b", priority=3, at=now),
        )
        made = (await store.apply(Modify(inserts=inserts), now)).inserted
        assert [row.priority for row in made] == [0, 3]
        steps: tuple[Callable[[Row], Change], ...] = (
            lambda row: Change(row.id, row.version),
            lambda row: Change(row.id, row.version, delay=0, attempt=1, error="no"),
            lambda row: Change(row.id, row.version, delay=0, error="x" * 9, progress='{"p":0.5}'),
        )
        for step in steps:
            row = await claimed(queue)
            assert (row.id, row.priority) == (f"{queue}-b", 3)
            await store.apply(Work(session, (step(row),)), now)
        row = await claimed(queue)
        await store.apply(Begin(Session(other)), now + 9 * SECOND)
        now += 10 * SECOND
        await store.apply(Beat(other), now)  # its session has lapsed
        await store.apply(Begin(Session(session, expiry=10**12)), now)
        now += 10 * SECOND
        row = await claimed(queue)
        assert (row.id, row.priority, row.attempt) == (f"{queue}-b", 3, row.attempt)
        await store.apply(Work(session, (Change(row.id, row.version, queue=f"{queue}.dead"),)), now)
        row = await claimed(f"{queue}.dead")
        assert row.priority == 3
        moved = Change(row.id, row.version, queue=queue, priority=-2)
        await store.apply(Work(session, (moved,)), now)
        rows = [await claimed(queue) for _ in range(2)]
        assert [(row.id, row.priority) for row in rows] == [(f"{queue}-a", 0), (f"{queue}-b", -2)]
        await store.apply(Work(session, tuple(Delete(row.id, row.version) for row in rows)), now)
        await store.apply(End(session), now)
        await store.apply(End(other), now)


async def test_the_first_of_a_key_counts_and_the_key_keeps_its_order(url: str) -> None:
    queue, session = secrets.token_hex(6), secrets.token_hex(6)
    async with aclosing(open_task_store(url)) as store:
        await store.apply(Begin(Session(session, expiry=10**12)), START)
        parts = (("a", "k", -5), ("b", "k", 9), ("c", None, 0))
        inserts = tuple(Insert(queue, "1", f"{queue}{id_}", key, START, priority=p) for id_, key, p in parts)
        await store.apply(Modify(inserts=inserts), START)
        order: list[str] = []
        while rows := (await store.apply(Work(session, queues=(queue,), limit=1), START)).claimed:
            order.append(rows[0].id[-1])
            await store.apply(Work(session, (Delete(rows[0].id, rows[0].version),)), START)
        assert order == ["c", "a", "b"]
        await store.apply(End(session), START)


async def test_those_who_claim_at_the_same_time_get_each_task_once(url: str) -> None:
    queue, total = secrets.token_hex(6), 600
    taken: list[str] = []

    async def claim_all(number: int) -> None:
        session = f"{queue}-{number}"
        async with aclosing(open_task_store(url)) as store:
            await store.apply(Begin(Session(session, expiry=600 * SECOND)))
            while len(taken) < total:
                rows = (await store.apply(Work(session, queues=(queue,), limit=1 + 9 * (number % 3)))).claimed
                taken.extend(row.id for row in rows)
                done = tuple(Delete(row.id, row.version) for row in rows)
                assert (await store.apply(Work(session, done))).lost == ()
            await store.apply(End(session))

    async with aclosing(open_task_store(url)) as store:
        inserts = tuple(Insert(queue, "1", f"{queue}.{n}", priority=n % 19 - 9) for n in range(total))
        await store.apply(Modify(inserts=inserts))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(claim_all, number)
    assert sorted(taken) == sorted(f"{queue}.{n}" for n in range(total))


async def test_users_give_and_see_priorities(url: str) -> None:
    queue = secrets.token_hex(6)
    async with Tasks(url) as tasks:
        for bad in (10, -10, 1.0, "1", True, False, None):
            with pytest.raises(errors.InvalidOption, match="from -9 to 9"):
                await tasks.insert(queue, 1, priority=bad)  # type: ignore[arg-type]  # wrong on purpose
        low = await tasks.insert(queue, "low", priority=-1)
        await tasks.insert(queue, "high", priority=1)
        runs: list[tuple[str, int]] = []

        @tasks.worker(queue, concurrency=1)
        async def work(claim: Any) -> None:
            runs.append((claim.value, claim.priority))
            if claim.value == "low" and claim.claims == 1:
                raise Snooze(0)

        await tasks.run(until_empty=True)
        assert runs == [("high", 1), ("low", -1), ("low", -1)]
        assert low


async def test_nats_says_that_it_has_none(nats_url: str) -> None:
    async with Tasks(nats_url) as tasks:
        queue = secrets.token_hex(6)
        with pytest.raises(errors.UnsupportedOperation, match="omit priority="):
            await tasks.insert(queue, 1, priority=1)
        await tasks.insert(queue, 1, priority=0)
        (task,) = await tasks.tasks(queue)
        with pytest.raises(errors.UnsupportedOperation, match="omit priority="):
            await tasks.modify(task.change(priority=2))
        await tasks.modify(task.delete())


# --- planted bugs ---------------------------------------------------------------------------------------


def _reversed(ready: int, priority: int) -> int:
    return ready + priority * MINUTE


def _starving(ready: int, priority: int) -> int:
    return ready - priority * 10**15


def _ignored(ready: int, priority: int) -> int:
    del priority
    return ready


@pytest.mark.parametrize("bug", [_reversed, _starving, _ignored])
@pytest.mark.parametrize("limits", [(1, 1, 2), (100,)])
async def test_a_wrong_order_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[int, int], int], limits: Sequence[int]
) -> None:
    monkeypatch.setattr(_task_table, "rank", bug)
    async with aclosing(open_task_store(f"memory://{secrets.token_hex(6)}")) as store:
        assert any([await run(store, seed, limits) for seed in range(8)])


async def test_a_random_choice_among_all_priorities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_task_table, "skippable", lambda priorities, limit: max(0, len(priorities) - limit))
    async with aclosing(open_task_store(f"memory://{secrets.token_hex(6)}")) as store:
        assert any([await run(store, seed, (1, 1, 2)) for seed in range(8)])


async def test_a_delayed_task_that_is_claimed_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _task_table.MemoryTable._first

    def early(self: Any, queue: str, priority: int, now: int, limit: int) -> list[tuple[int, str]]:
        return first(self, queue, priority, now + max(0, priority) * MINUTE, limit)

    monkeypatch.setattr(_task_table.MemoryTable, "_first", early)
    async with aclosing(open_task_store(f"memory://{secrets.token_hex(6)}")) as store:
        assert any("before its time" in what for what in await run(store, 0, (1, 3, 20)))
