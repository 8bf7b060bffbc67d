"""What a shard asks the store, and when: no more than it needs, and no later than it must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq.rules import Advance, Answer, Command, Hold, Inspect, Resume, Settings, Slot
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, FarStore, gather, granted, shard_on

SECOND = 1_000_000


def advances(store: FarStore) -> list[Advance]:
    return [call for call in store.calls if isinstance(call, Advance)]


async def wait_in(shard: Shard, jobs: int) -> list[Waiter]:
    """Add a number of waiting jobs that nobody runs, because the test begins them itself."""
    waiters = [Waiter() for _ in range(jobs)]
    for waiter in waiters:
        shard.enter(waiter)
    await anyio.sleep(0.0001)
    return waiters


@pytest.mark.parametrize("early", [0, 700])
def test_a_new_slot_leaves_time_for_its_answer_and_for_a_job_that_begins_early(early: int) -> None:
    async def scenario() -> list[int]:
        store = FarStore()
        shard = shard_on(store, Settings(interval=1_000))
        for _ in range(2):
            await shard.slot(Waiter(early=early))
            await anyio.sleep(0.01)
        return [call.notice for call in advances(store) if call.take]

    assert virtual_time(scenario) == [200 + early, 200 + early]


@pytest.mark.parametrize("lookahead", [1, 2, 16])
def test_one_question_a_job_is_enough(lookahead: int) -> None:
    """The next ticket comes with the answer that grants the last one."""

    async def scenario() -> int:
        store = FarStore(delay=0.001)
        shard = shard_on(store, lookahead=lookahead)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(shard.slot, Waiter())
        return len(advances(store))

    assert virtual_time(scenario) <= 22


def asked_a_job(jobs: int, callers: int, away: float = 0.0) -> tuple[float, float]:
    """The questions and tickets of shards with one caller each, which returns at once, or stays away."""

    async def scenario() -> tuple[float, float]:
        store = FarStore(delay=0.001)

        async def call(shard: Shard, times: int) -> None:
            for _ in range(times):
                await shard.slot(Waiter())
                await anyio.sleep(away)

        shards = [shard_on(store, Settings(interval=100_000)) for _ in range(callers)]
        for times in (5, jobs):
            before = len(advances(store))
            async with anyio.create_task_group() as group:
                for shard in shards:
                    group.start_soon(call, shard, times)
        asked = advances(store)[before:]
        return len(asked) / (jobs * callers), sum(call.take for call in asked) / (jobs * callers)

    return virtual_time(scenario)


def test_a_caller_that_comes_again_and_again_costs_one_question_a_job() -> None:
    questions, _ = asked_a_job(20, 8)
    assert questions < 1.2


def test_no_ticket_is_taken_ahead_for_a_caller_that_stays_away() -> None:
    _, tickets = asked_a_job(10, 8, away=5.0)
    assert tickets == 1


def test_a_ticket_that_was_taken_ahead_is_not_kept_for_a_caller_that_stays_away() -> None:
    async def scenario() -> tuple[int, bool]:
        store = FarStore(delay=0.001)
        shards = [shard_on(store, Settings(interval=100_000)) for _ in range(4)]

        async def call(shard: Shard) -> None:
            for _ in range(8):
                await shard.slot(Waiter())

        async with anyio.create_task_group() as group:
            for shard in shards:
                group.start_soon(call, shard)
        held = sum(len(shard.grants.tickets) for shard in shards)
        await anyio.sleep(1)
        return held, any(shard.conversation.runs or shard.grants for shard in shards)

    held, kept = virtual_time(scenario)
    assert held > 0, "otherwise nothing was taken ahead"
    assert not kept


def test_a_new_ticket_rides_along_with_the_next_question() -> None:
    """Adding a job behind others doesn't wait for that."""

    async def scenario() -> int:
        store = FarStore()
        shard = shard_on(store, Settings(interval=40_000))
        await shard.slot(Waiter())
        await wait_in(shard, 2)
        await anyio.sleep(0.001)
        store.calls.clear()
        for _ in range(3):
            shard.enter(Waiter())
        with anyio.fail_after(0.0001):
            await shard.placed()
        await anyio.sleep(0.001)
        taken = len(store.calls)
        await shard.close(drain=False)
        return taken

    assert virtual_time(scenario) == 0


def test_the_next_ticket_is_taken_before_the_last_slot_that_was_granted() -> None:
    async def scenario() -> None:
        shard = shard_on(FarStore(delay=0.0005), Settings(interval=10_000))
        start = (await shard.slot(Waiter())).due
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(shard.slot, Waiter())
            await anyio.sleep(start + 0.0095 - shard.store_time())
            assert granted(shard) == [2, 3]
            third = Waiter()
            group.start_soon(shard.slot, third)
            await anyio.sleep(0.0001)
            assert shard.expected(third) is None
            await anyio.sleep(start + 0.0195 - shard.store_time())
            assert granted(shard)[0] == 3
            assert shard.expected(third) is not None

    virtual_time(scenario)


@BACKENDS
def test_a_job_that_comes_first_is_seen_though_the_store_need_not_be_asked(backend: str) -> None:
    async def scenario() -> list[float]:
        at: list[float] = []
        shard = shard_on(FarStore(delay=0.001), Settings(interval=60_000))
        began = (await shard.slot(Waiter())).due
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(shard.slot, Waiter())
            await anyio.sleep(began + 0.0585 - shard.store_time())
            assert shard.grants.granted
            assert shard.grants.tickets
            await shard.slot(Waiter(priority=1, early=1_000))
            at.append(shard.store_time() - began)
        return at

    (at,) = virtual_time(scenario, backend=backend)
    assert 0.059 <= at < 0.0598


@BACKENDS
def test_the_clock_of_the_store_is_looked_at_only_shortly_before_a_slot(backend: str) -> None:
    async def scenario() -> None:
        store = FarStore()
        settings = Settings(interval=100 * SECOND, tolerance=10_000)
        await shard_on(store, settings).slot(Waiter())
        far = FarStore(store.behind, delay=0.05)
        async with anyio.create_task_group() as group:
            group.start_soon(shard_on(far, settings).slot, Waiter())
            await anyio.sleep(90)
            assert not [call for call in far.calls if isinstance(call, Inspect)]
        assert [call for call in far.calls if isinstance(call, Inspect)]

    virtual_time(scenario, backend=backend)


@pytest.mark.parametrize("step", [0, -60 * SECOND])
def test_a_question_that_waited_for_an_answer_knows_what_it_shows_of_the_clock(step: int) -> None:
    """It asks about no slots from before a step, and reports no larger error than there is by then."""

    async def scenario() -> tuple[list[tuple[Slot, ...]], list[int], tuple[Slot, ...]]:
        stepped = 0
        behind = MemoryStore(clock=lambda: virtual_micros() + stepped)
        store = FarStore(behind, delay=0.01)
        shard = shard_on(store)
        slots = (await shard.command(Advance(take=2))).taken
        stepped = step
        question = Advance(slots=slots[1:], error=SECOND)
        await gather(partial(shard.command, Inspect()), partial(shard.command, question))
        last = advances(store)[1:]
        return [call.slots for call in last], [call.error for call in last], slots[1:]

    asked, errors, slots = virtual_time(scenario)
    assert asked == [slots if step == 0 else ()]
    assert errors == [0]


class Quickening(FarStore):
    """A store whose first answer is slow, as while a connection is made."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        answer = await super().apply(queue, command, now)
        self.delay = 0
        return answer


@BACKENDS
def test_a_slot_is_used_as_soon_as_the_clock_is_known_well_enough(backend: str) -> None:
    async def scenario() -> float:
        store = FarStore()
        settings = Settings(interval=SECOND, tolerance=90_000)
        first = await shard_on(store, settings).slot(Waiter())
        await anyio.sleep(0.906)
        shard = shard_on(Quickening(store.behind, delay=0.05), settings)
        await shard.slot(Waiter())
        return virtual_micros() / 1e6 - first.due

    assert 1 <= virtual_time(scenario, backend=backend) < 1.01


@BACKENDS
def test_in_a_hold_tickets_are_asked_for_with_each_question(backend: str) -> None:
    """The question that finds the hold ended then also brings tickets."""

    async def scenario() -> None:
        store = FarStore()
        shard = shard_on(store)
        await shard.slot(Waiter())
        await shard.command(Hold())
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            store.calls.clear()
            await anyio.sleep(20)
            assert len(advances(store)) >= 3
            assert all(call.take == 1 for call in advances(store))
            await store.behind.apply("q", Resume())

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_a_store_that_went_back_in_a_hold_is_brought_forward_though_there_is_nothing_to_ask(
    backend: str,
) -> None:
    async def scenario() -> None:
        store = FarStore()
        shard, states = shard_on(store), store.behind._records.states
        await shard.slot(Waiter())
        await shard.command(Hold())
        older = states["q"]
        await shard.command(Resume())
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            await anyio.sleep(0.1)
            await shard.command(Hold())
            states["q"] = older
            await anyio.sleep(20)
            assert shard.regressions == 1
            assert states["q"].ticket == 2
            group.cancel_scope.cancel()

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_a_resume_by_the_shard_itself_is_noticed_though_the_store_wakes_nobody(backend: str) -> None:
    async def scenario() -> float:
        store = FarStore()
        del store.wakeups
        shard = shard_on(store)
        await shard.slot(Waiter())
        await anyio.sleep(10)
        await shard.command(Hold())
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            await anyio.sleep(33.3)
            await shard.command(Resume())
            resumed = anyio.current_time()
        return anyio.current_time() - resumed

    assert virtual_time(scenario, backend=backend) < 0.05


@BACKENDS
@pytest.mark.parametrize("fails", [False, True])
def test_a_held_shard_listens_once_and_again_only_where_it_failed_and_not_soon(
    backend: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> int:
        store, times = FarStore(), 0
        hears = store.behind.wakeups

        def wakeups(queue: str) -> object:
            nonlocal times
            times += 1
            if fails:
                raise OSError("no connection left")
            return hears(queue)

        monkeypatch.setattr(store, "wakeups", wakeups)
        shard = shard_on(store)
        await shard.slot(Waiter())
        await shard.command(Hold())
        with anyio.move_on_after(100):
            await shard.slot(Waiter())
        return times

    assert virtual_time(scenario, backend=backend) == (4 if fails else 1)


@BACKENDS
def test_a_hold_that_ends_before_the_shard_hears_wake_ups_is_noticed(backend: str) -> None:
    """Nobody hears of its end: a request that was made before would show it as held, until the next poll."""

    async def scenario(seed: int) -> float:
        store = FarStore(seed=seed)
        hears = store.behind.wakeups

        @asynccontextmanager
        async def wakeups(queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
            await anyio.sleep(0.55)
            async with hears(queue) as woken:
                yield woken

        store.wakeups = wakeups
        shard = shard_on(store)
        await shard.slot(Waiter())
        await shard.command(Hold())
        await anyio.sleep(10)
        store.delay = 0.2
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            await anyio.sleep(0.53)  # after a second request, which shows the hold, too
            await store.behind.apply("q", Resume())
            resumed = anyio.current_time()
        return anyio.current_time() - resumed

    assert max(virtual_time(scenario, seed, backend=backend) for seed in range(4)) < 3
