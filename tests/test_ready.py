"""Slots that are ready (granted, due and unused), tickets taken for likely jobs, and the notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue, QueueClosed
from intervalq._shard.shard import Shard
from intervalq._shard.store_time import REACTION
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.backends import wakers
from intervalq.rules import Advance, Answer, Command, Inspect
from intervalq.testing import virtual_time
from intervalq.testing.virtual import VirtualLoop, virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, FarStore, Starts, gather, granted, in_virtual_time, queue_on

# --- slots that are ready -----------------------------------------------------------------------------


async def take(queue: IntervalQueue) -> int:
    async with queue.slot() as slot:
        return slot.ticket


async def after_some_jobs(store: FarStore, **options: Any) -> tuple[IntervalQueue, Shard, int]:
    """A queue of 10 us after a few jobs, and the last of their tickets."""
    queue = queue_on(store, **{"interval": "10us", "burst": 1_000} | options)
    for _ in range(4):
        await take(queue)
    return queue, queue._shard(), await take(queue)


Scenario = Callable[[FarStore, IntervalQueue, Shard], Awaitable[None]]


def with_ready(scenario: Scenario, backend: str = "asyncio", **options: Any) -> None:
    """Run a function in a situation in which slots are ready."""

    async def whole() -> None:
        store = FarStore()
        queue, shard, last = await after_some_jobs(store, **options)
        assert shard.dispatcher.ready is not None
        assert granted(shard) == [last + n for n in range(1, 7)]
        await scenario(store, queue, shard)
        if not shard.closed:
            await queue.close()

    virtual_time(whole, backend=backend)


@BACKENDS
def test_slots_that_are_ready_are_taken_in_order_without_a_call_each_once(backend: str) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        ahead, calls, begun = granted(shard), len(store.calls), shard.begun
        taken = [await take(queue) for _ in ahead]
        assert taken == ahead
        assert len(store.calls) == calls
        assert shard.begun == begun + len(ahead)
        assert not shard.grants.granted
        assert shard.dispatcher.ready is None
        assert await take(queue) > ahead[-1]
        assert len(store.calls) > calls

    with_ready(scenario, backend)


@BACKENDS
@in_virtual_time
async def test_many_callers_have_each_ticket_once_and_in_order(backend: str) -> None:
    queue, tickets = queue_on(FarStore(), interval="10us", burst=1_000), list[int]()

    async def caller() -> None:
        for _ in range(30):
            tickets.append(await take(queue))
            await anyio.lowlevel.checkpoint()

    await gather(*[caller] * 20)
    assert len(tickets) == 600
    assert tickets == sorted({*tickets})
    assert queue._shard().begun == 600


@BACKENDS
def test_run_takes_slots_that_are_ready_as_well(backend: str) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        ahead, calls, starts = granted(shard), len(store.calls), Starts()
        for n in range(len(ahead) - 1):
            await queue.run(partial(starts.job, n))
            assert granted(shard) == ahead[n + 1 :]
        assert len(store.calls) == calls
        await queue.run(partial(starts.job, "last"))
        assert not shard.grants.granted
        assert shard.dispatcher.ready is None

    with_ready(scenario, backend)


def test_nothing_is_ready_while_somebody_waits() -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        ahead = granted(shard)
        shard.enter(first := Waiter())
        assert shard.dispatcher.ready is None
        assert shard.take_ready() is None
        async with anyio.create_task_group() as group:
            group.start_soon(take, queue)
            await anyio.lowlevel.checkpoint()
            assert granted(shard) == ahead, "who came first goes first"
            grant = shard.dispatcher.accept(first)
            assert grant is not None
            assert grant.ticket == ahead[0]

    with_ready(scenario)


@pytest.mark.parametrize("by_run", [False, True])
def test_a_slot_is_ready_until_its_tolerance_ends(by_run: bool) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        loop, ahead = asyncio.get_running_loop(), granted(shard)
        assert isinstance(loop, VirtualLoop)
        loop.stall((shard.dispatcher.ready_until - shard.clock.now()) / 1e6)
        assert await take(queue) == ahead[0], "to the very end"
        loop.stall(0.000_011)
        assert shard.dispatcher.ready is not None
        if by_run:
            await queue.run(anyio.lowlevel.checkpoint)
        else:
            await take(queue)
        assert shard.dispatcher.late == 1, "the second was over by then: it was granted late"
        assert shard.connection.last_ticket() == ahead[-1], "and none was lost"
        assert shard.given_up == 0

    with_ready(scenario)


@BACKENDS
def test_nothing_is_ready_in_a_closed_queue(backend: str) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        shard.refuse(drain=True)
        with pytest.raises(QueueClosed):
            await take(queue)
        with pytest.raises(QueueClosed):
            await queue.run(anyio.lowlevel.checkpoint)
        await shard.close(drain=True)

    with_ready(scenario, backend)


@BACKENDS
@in_virtual_time
async def test_nothing_is_ready_after_a_step_of_the_stores_clock(backend: str) -> None:
    ahead = 0
    store = FarStore(MemoryStore(clock=lambda: virtual_micros() + ahead))
    queue, shard, _ = await after_some_jobs(store)
    ready = granted(shard)
    assert ready
    ahead = 1_000_000
    await shard.command(Inspect())
    assert shard.time.clock.steps == 1
    assert shard.take_ready() is None
    assert await take(queue) > ready[-1]


@BACKENDS
def test_nothing_is_ready_after_the_record_was_dropped(backend: str) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        await queue.drop()
        assert shard.dispatcher.ready is None
        assert not shard.grants
        assert await take(queue) == 1, "of a new record"

    with_ready(scenario, backend)


@pytest.mark.parametrize("ready", [False, True])
def test_a_slot_can_not_be_entered_twice(ready: bool) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        if not ready:
            await anyio.sleep(1)
            assert shard.dispatcher.ready is None
        coming = queue.slot()
        async with coming:
            pass
        begun = shard.begun
        with pytest.raises(RuntimeError, match="a slot is for one job"):
            async with coming:
                pass
        assert shard.begun == begun

    with_ready(scenario)


def test_jobs_that_need_more_than_one_slot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        ahead, costs = granted(shard), []
        enter = shard.enter

        def entered(waiter: Waiter) -> None:
            costs.append(waiter.cost)
            enter(waiter)

        monkeypatch.setattr(shard, "enter", entered)
        async with queue.slot(priority=1) as slot:
            assert slot.ticket == ahead[0]
        async with queue.slot(cost=2) as slot:
            assert slot.ticket > ahead[-1], "those that are ready are too cheap"
        assert costs == [2]
        await queue.run(anyio.lowlevel.checkpoint, cost=2)
        assert costs == [2, 2]

    with_ready(scenario)


@BACKENDS
@in_virtual_time
async def test_with_a_limit_of_running_jobs_nothing_is_ready_and_none_is_likely(backend: str) -> None:
    store = FarStore()
    queue, shard, _ = await after_some_jobs(store, max_running=1_000)
    for _ in range(3):
        assert shard.dispatcher.ready is None
        await gather(*[partial(take, queue)] * 3)
    assert sum(call.take for call in store.calls if isinstance(call, Advance)) == 14


@BACKENDS
@in_virtual_time
async def test_with_a_limit_the_slot_of_a_job_that_went_away_is_the_next_ones_and_counts_as_running(
    backend: str,
) -> None:
    """If another job took it without the store's knowledge, one job more than `max_running` could run."""
    queue = queue_on(FarStore(), interval="10us", burst=1_000, max_running=3)
    await take(queue)
    shard, waiters = queue._shard(), [Waiter() for _ in range(3)]
    for waiter in waiters:
        shard.enter(waiter)
    await waiters[0].wait(wakers()())
    for waiter in waiters[1:]:
        shard.wait_queue.remove(waiter)
    assert len(granted(shard)) > 1
    assert shard.dispatcher.accept(waiters[0]) is not None
    async with queue.slot() as slot:
        assert slot.ticket in shard.leases.running


# --- jobs that are likely to come ---------------------------------------------------------------------


def taken(interval: str, lookahead: int | None, jobs: int) -> list[int]:
    """How many tickets were taken at a time, for jobs that come one after the other."""

    async def scenario() -> list[int]:
        store = FarStore()
        queue = queue_on(store, interval=interval, burst=1_000, lookahead=lookahead)
        for _ in range(jobs):
            await take(queue)
        return [call.take for call in store.calls if isinstance(call, Advance) and call.take]

    return virtual_time(scenario)


def test_no_tickets_are_taken_ahead_at_longer_intervals() -> None:
    assert taken("101us", None, 50) == [1] * 50
    assert max(taken("100us", None, 50)) > 1
    assert len(taken("10us", None, 50)) < 10


@pytest.mark.parametrize("lookahead", [1, 2, 5, 16])
def test_no_more_tickets_are_taken_ahead_than_a_handle_may_hold(lookahead: int) -> None:
    assert max(taken("10us", lookahead, 100)) == lookahead
    assert max(taken("10us", None, 400)) <= 101, "for a millisecond"


@BACKENDS
def test_tickets_that_nobody_came_for_go_back_soon_and_are_not_given_up(backend: str) -> None:
    async def scenario(store: FarStore, queue: IntervalQueue, shard: Shard) -> None:
        ready, begun = granted(shard), shard.begun
        await anyio.sleep((shard.dispatcher.ready_until - shard.clock.now()) / 1e6 + 0.001)
        assert not shard.conversation.runs
        call = store.calls[-1]
        assert isinstance(call, Advance)
        assert [slot.ticket for slot in call.release] == ready
        state = await queue.inspect()
        assert (state.given_up, state.outstanding, state.begun) == (0, 0, begun)

    with_ready(scenario, backend)


# --- the notice ---------------------------------------------------------------------------------------


class Busy(FarStore):
    """A store in whose event loop something else runs for a while whenever an answer has come."""

    busy = 0.0

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        answer = await super().apply(queue, command, now)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_soon(loop.stall, self.busy)
        return answer

    def notices(self) -> list[int]:
        """The time that was allowed for each answer with a slot, until its job began."""
        asked = [call for call in self.calls if isinstance(call, Advance)]
        notices = [call.notice for call in asked if call.take or call.slots]
        self.calls.clear()
        return notices


@in_virtual_time
async def test_the_notice_grows_while_slots_come_too_soon_and_shrinks_when_they_do_not() -> None:
    store = Busy()
    store.busy = 0.005
    queue = queue_on(store, interval="1ms")
    await take(queue)
    grown = store.notices()
    assert len(grown) > 3
    assert grown == sorted(grown)
    assert 2_500 < grown[-1] <= 10_000
    store.busy = 0
    for _ in range(60):
        await take(queue)
    shrunk = store.notices()
    assert shrunk == sorted(shrunk, reverse=True)
    assert shrunk[-1] <= REACTION


def test_the_notice_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        store = Busy()
        store.busy = 0.2
        with anyio.move_on_after(10):
            await take(queue_on(store, interval="1ms"))
        return max(store.notices())

    monkeypatch.setattr("intervalq._shard.store_time._MAX_REACTION", 5_000)
    assert 4_000 <= virtual_time(scenario) <= 5_000


@in_virtual_time
async def test_a_loop_that_is_busy_with_many_queues_goes_on_starting_jobs() -> None:
    store, starts = Busy(), Starts()
    store.busy = 0.000_05
    queue = queue_on(store, interval="1ms")

    async def caller(key: str) -> None:
        while True:
            await queue[key].run(partial(starts.job, key))

    with anyio.move_on_after(1):
        await gather(*(partial(caller, f"tenant-{n}") for n in range(50)))
    assert len({*starts.order}) == 50, "each has its turn"
    assert len(starts.log) >= 1_000
