"""The accounting of one shard: whose turn it is, what is held, what is given back, and what is given up."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq.errors import StoreUnavailable
from intervalq.rules import Advance, Answer, Command, Hold, Inspect, Reclaim, Settings
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, EACH_SECOND, FarStore, in_virtual_time, shard_on

SECOND = 1_000_000


def released(store: FarStore) -> set[int]:
    """The tickets that were given back."""
    return {slot.ticket for call in store.calls if isinstance(call, Advance) for slot in call.release}


# --- turns and costs --------------------------------------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_a_slot_is_refused_to_whoever_is_not_first(backend: str) -> None:
    """Tasks may run in any order; those that are woken together still begin in the order of the queue."""
    shard = shard_on(FarStore(), Settings(interval=SECOND, burst=2))
    first, second = Waiter(), Waiter(early=1_000)
    shard.enter(first)
    shard.enter(second)
    while shard.grants.granted_count < 2:
        await checkpoint()
    assert shard.dispatcher.accept(second) is None
    assert shard.dispatcher.accept(first) is not None
    assert len(shard.wait_queue) == 1
    assert shard.dispatcher.accept(second) is not None


@BACKENDS
@in_virtual_time
async def test_a_burst_pays_for_a_job_of_a_higher_cost_too(backend: str) -> None:
    shard = shard_on(FarStore(), Settings(interval=SECOND, burst=3))
    async with anyio.create_task_group() as group:
        heavy, light = Waiter(cost=3), Waiter()
        shard.enter(heavy)
        shard.enter(light)
        group.start_soon(shard.slot, heavy)
        await shard.slot(light)
    assert anyio.current_time() == pytest.approx(1, abs=0.01)


@BACKENDS
@in_virtual_time
async def test_tickets_that_are_let_pass_need_no_question_and_nobody_to_wait_for_them(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    await shard.slot(Waiter(cost=5))
    await anyio.sleep(0.01)
    calls = len(store.calls)
    assert not shard.conversation.runs
    await anyio.sleep(10)
    assert len(store.calls) == calls


@BACKENDS
@pytest.mark.parametrize("paused", [False, True])
@in_virtual_time
async def test_closing_does_not_wait_for_slots_that_a_job_paid_for_while_it_holds_the_queue(
    backend: str, paused: bool
) -> None:
    shard = shard_on(FarStore(), Settings(interval=SECOND, max_running=1), lookahead=1)
    grant = await shard.slot(Waiter(cost=3))
    if paused:
        await shard.command(Hold())
    await anyio.sleep(0.1)
    async with anyio.create_task_group() as group:
        with anyio.fail_after(1):
            group.start_soon(partial(shard.close, drain=True))
            while shard.conversation.runs:
                await anyio.sleep(0.01)
        shard.leases.ended(grant.ticket)


@BACKENDS
@in_virtual_time
async def test_with_a_limit_of_running_jobs_a_way_that_is_too_long_for_the_tolerance_stops_no_job(
    backend: str,
) -> None:
    """Each granted slot holds the queue, so there is no other time to ask for the store's clock."""
    shard = shard_on(FarStore(delay=0.05), Settings(interval=50_000, max_running=1))
    with anyio.fail_after(20):
        await shard.slot(Waiter())


# --- trouble ----------------------------------------------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_jobs_that_failed_are_out_of_line_and_their_slots_forgotten(backend: str) -> None:
    store = FarStore(delay=0.01)
    shard = shard_on(store, Settings(interval=90 * SECOND))
    await shard.slot(Waiter())
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        shard.enter(waiter)
    await anyio.sleep(1)
    assert len(shard.grants.tickets) == 3
    store.is_down = True
    await anyio.sleep(200)
    assert not shard.wait_queue
    assert not shard.has_slots()
    assert not shard.conversation.runs
    assert all(isinstance(waiter.error, StoreUnavailable) for waiter in waiters)
    calls = len(store.calls)
    await anyio.sleep(10)
    assert len(store.calls) == calls, "nobody waits any more"


@BACKENDS
@in_virtual_time
async def test_a_store_that_goes_away_while_the_slots_of_a_job_pass_is_not_asked_for_ever(
    backend: str,
) -> None:
    store = FarStore(delay=0.01)
    shard = shard_on(store, lookahead=1)
    await shard.slot(Waiter(cost=5))
    store.is_down = True
    await anyio.sleep(100)
    assert not shard.conversation.runs
    assert len(store.calls) < 20


@BACKENDS
def test_whoever_waits_for_tickets_is_told_that_the_last_job_left(backend: str) -> None:
    async def scenario() -> None:
        shard = shard_on(FarStore(delay=0.01))
        async with anyio.create_task_group() as group:
            shard.enter(waiter := Waiter())
            with anyio.fail_after(1):
                group.start_soon(leaves, shard, waiter)
                await shard.placed()

    async def leaves(shard: Shard, waiter: Waiter) -> None:
        shard.leave(waiter)
        await checkpoint()

    virtual_time(scenario, backend=backend)


@BACKENDS
@in_virtual_time
async def test_what_an_idle_shard_has_to_give_back_goes_back_even_if_the_next_job_leaves_at_once(
    backend: str,
) -> None:
    store = FarStore()
    shard = shard_on(store)
    grant = await shard.slot(Waiter())
    await anyio.sleep(0.1)
    shard.dispatcher.give_up(grant, "thread")
    shard.enter(waiter := Waiter())
    shard.leave(waiter)
    await anyio.sleep(0.1)
    assert grant.ticket in released(store)


@BACKENDS
@pytest.mark.parametrize("anew", [False, True])
@in_virtual_time
async def test_slots_whose_return_got_lost_are_not_given_back_to_a_record_that_was_made_anew(
    backend: str, anew: bool
) -> None:
    """In the new record they may belong to another shard."""
    store = FarStore()
    shard, states = shard_on(store), store.behind._records.states
    grant = await shard.slot(Waiter())
    await anyio.sleep(0.1)
    store.delay = 1

    async def gives_back() -> None:
        with pytest.raises(StoreUnavailable):
            await shard.conversation._ask(
                Advance(release=(grant.slot,), high_water_mark=shard.connection.high_water_mark)
            )

    async with anyio.create_task_group() as group:
        group.start_soon(shard.command, Inspect())
        await anyio.sleep(0.1)
        group.start_soon(gives_back)
        await anyio.sleep(0.1)
        states.clear()
        if anew:
            await store.behind.apply("q", Advance(settings=EACH_SECOND, nonce="another", take=1))
        await anyio.sleep(1)
        store.is_down = True
    assert not shard.grants.unused


@BACKENDS
@in_virtual_time
async def test_slots_whose_return_got_lost_are_given_back_again_to_the_same_record(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    grant = await shard.slot(Waiter())
    await anyio.sleep(0.1)
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        await shard.conversation._ask(
            Advance(release=(grant.slot,), high_water_mark=shard.connection.high_water_mark)
        )
    assert shard.grants.unused == [grant.slot]


# --- what counts as given up ------------------------------------------------------------------------


class Stumbling(FarStore):
    """A store that once receives a question about a slot after a long delay."""

    stumbles = 0.0

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Advance) and command.slots:
            stumbles, self.stumbles = self.stumbles, 0.0
            await anyio.sleep(stumbles)
        return await super().apply(queue, command, now)


@BACKENDS
@pytest.mark.parametrize(
    ("meanwhile", "causes"), [("nothing", {}), ("another begins", {"late": 1}), ("reclaim", {"revoked": 1})]
)
@in_virtual_time
async def test_a_slot_whose_question_comes_late_is_lost_only_to_a_later_one(
    backend: str, meanwhile: str, causes: dict[str, int]
) -> None:
    """Otherwise it is granted late. A slot that somebody revoked was not given up."""
    store = Stumbling()
    shard = shard_on(store)
    await shard.slot(Waiter())
    store.stumbles = 0.0 if meanwhile == "reclaim" else 5.0
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(0.5)
        if meanwhile == "reclaim":
            await store.behind.apply("q", Reclaim())
        elif meanwhile == "another begins":
            await shard_on(FarStore(store.behind)).slot(Waiter())
    assert +shard.dispatcher.skipped == causes
    assert shard.given_up == causes.get("late", 0)


@BACKENDS
@pytest.mark.parametrize("hours", [-1, 1])
@in_virtual_time
async def test_tickets_that_a_step_of_the_clock_killed_count_and_are_replaced_at_once(
    backend: str, hours: int
) -> None:
    step = 0
    store = FarStore(MemoryStore(clock=lambda: virtual_micros() + step))
    shard = shard_on(store, Settings(interval=100 * SECOND))
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(10)
        step = hours * 3_600 * SECOND
        store.calls.clear()
        await shard.command(Inspect())
        assert shard.given_up == 1
        await anyio.sleep(0.1)
        assert released(store) == {2}
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_a_look_that_tells_of_a_lost_record_has_new_tickets_taken_at_once(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store, Settings(interval=100 * SECOND))
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(10)
        store.behind._records.states.clear()
        await shard.command(Inspect())
    assert anyio.current_time() == pytest.approx(110, abs=1)
