"""The slots that jobs cost, and what a shard gives back when jobs leave, at its close, or in an outage."""

from __future__ import annotations

import logging

import anyio
import anyio.lowlevel
import pytest

from intervalq._shard.grants import GrantRange, Grants
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq.errors import InvalidOption, StoreUnavailable
from intervalq.rules import Advance, Hold, Inspect, Settings, Slot
from intervalq.testing import virtual_time
from virtual_store import (
    BACKENDS,
    EACH_SECOND,
    FarStore,
    Starts,
    granted,
    in_virtual_time,
    queue_on,
    shard_on,
)

SECOND = 1_000_000


def test_what_is_granted_again_goes_before_what_was_granted_since() -> None:
    """A slot was over, and later ones were granted before it was granted late."""
    slots = Grants()
    for ticket in (5, 6, 3, 4):
        slots.grant(GrantRange(Slot(ticket, ticket), held_total=0, steps=0))
    assert [slot.ticket for slot in slots.coming()] == [3, 4, 5, 6]
    assert slots.through == 6


@pytest.mark.parametrize("kind", ["tickets", "granted", "unused"])
def test_a_slot_of_any_kind_is_a_slot(kind: str) -> None:
    """With any of them, losing a keyed queue's record matters: the next begins with a quiet interval."""
    slots = Grants()
    assert not slots
    slot = Slot(1, 0)
    if kind == "tickets":
        slots.tickets.append(slot)
    elif kind == "granted":
        slots.granted.append(GrantRange(slot, held_total=0, steps=0))
    else:
        slots.unused.append(slot)
    assert slots
    assert slots.give_all_back(1) == (slot,)
    assert not slots


# --- costs ------------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("cost", [2, 3, 10**9])
@pytest.mark.parametrize("limit", [0, 1])
@in_virtual_time
async def test_what_a_job_costs_is_in_the_record_when_it_begins(backend: str, cost: int, limit: int) -> None:
    """The job's process may die right then."""
    store = FarStore(delay=0.01)
    grant = await shard_on(store, Settings(interval=SECOND, max_running=limit)).slot(Waiter(cost=cost))
    state = store.behind._records.states["q"]
    assert (grant.ticket, grant.slot.cost) == (1, cost)
    assert state.due == grant.slot.due + (cost - 1) * SECOND
    assert state.current_due == state.due, "it outlasts a `reclaim`"


@BACKENDS
@pytest.mark.parametrize("cost", [2, 3])
@pytest.mark.parametrize("closes", [False, True])
@in_virtual_time
async def test_the_next_job_of_anybody_begins_when_the_slots_of_the_one_before_are_over(
    backend: str, cost: int, closes: bool
) -> None:
    store, starts = FarStore(), Starts()
    shard = shard_on(store, lookahead=1)
    for each in (cost, 1, cost):
        await shard.slot(Waiter(cost=each))
        await starts.job(each)
    if closes:
        await shard.close(drain=True)
    await shard_on(FarStore(store.behind)).slot(Waiter())
    await starts.job("of another shard")
    assert starts.gaps == pytest.approx([cost, 1, cost], abs=0.01)


@BACKENDS
@in_virtual_time
async def test_slots_that_a_job_paid_for_stand_still_while_it_holds_the_queue(backend: str) -> None:
    store, settings = FarStore(), Settings(interval=SECOND, max_running=1)
    shard = shard_on(store, settings, lookahead=1)
    grant = await shard.slot(Waiter(cost=3))
    await anyio.sleep(5)
    shard.leases.ended(grant.ticket)
    ended = anyio.current_time()
    await anyio.sleep(0.1)
    await shard_on(FarStore(store.behind), settings).slot(Waiter())
    assert (anyio.current_time() - ended) == pytest.approx(3, abs=0.05)


async def begin(shard: Shard, starts: Starts, cost: int, priority: int = 0) -> None:
    grant = await shard.slot(Waiter(cost=cost, priority=priority))
    await starts.job((cost, grant.slot.cost))


@BACKENDS
@in_virtual_time
async def test_a_slot_too_cheap_for_the_first_job_is_passed_by(backend: str) -> None:
    shard, starts = shard_on(FarStore()), Starts()
    await begin(shard, starts, 1)
    async with anyio.create_task_group() as group:
        group.start_soon(begin, shard, starts, 1)
        await anyio.sleep(0.1)
        group.start_soon(begin, shard, starts, 3, 1)
        group.start_soon(begin, shard, starts, 1, -1)
    assert starts.order == [(1, 1), (3, 3), (1, 1), (1, 1)]
    assert starts.gaps == pytest.approx([2, 3, 1], abs=0.01)
    assert +shard.dispatcher.skipped == {"cheap": 1}


@BACKENDS
@in_virtual_time
async def test_a_dearer_slot_is_taken_by_whoever_is_first(backend: str) -> None:
    """The slot is granted and its cost taken; the more expensive job comes behind it."""
    shard, starts = shard_on(FarStore()), Starts()
    await begin(shard, starts, 1)
    async with anyio.create_task_group() as group:
        group.start_soon(begin, shard, starts, 3)
        await anyio.sleep(0.1)
        group.start_soon(begin, shard, starts, 1, 1)
    assert starts.order == [(1, 1), (1, 3), (3, 3)]
    assert starts.gaps == pytest.approx([1, 3], abs=0.01)
    assert not +shard.dispatcher.skipped


@in_virtual_time
async def test_a_cost_that_no_store_can_count_is_refused_by_name() -> None:
    async with queue_on(FarStore(), interval=86_400) as queue:
        for cost in (2**53 // 86_400_000_000 + 1, 10**9):
            with pytest.raises(InvalidOption, match="use a smaller cost"):
                await queue.run(anyio.lowlevel.checkpoint, cost=cost)
        for cost in (0, 10**9 + 1):
            with pytest.raises(InvalidOption, match="cost"):
                await queue.run(anyio.lowlevel.checkpoint, cost=cost)
        await queue.run(anyio.lowlevel.checkpoint, cost=2**53 // 86_400_000_000 // 2)


# --- how many slots at once -------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 2, 3])
@pytest.mark.parametrize("interval", [10_000, SECOND])
@in_virtual_time
async def test_a_shard_never_has_more_slots_than_its_lookahead_allows(
    backend: str, lookahead: int, interval: int
) -> None:
    shard, most = shard_on(FarStore(), Settings(interval=interval), lookahead), 0
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(shard.slot, Waiter())
        await anyio.sleep(0.001)
        while shard.wait_queue:
            most = max(most, len([*shard.grants.coming()]))
            await anyio.sleep(0.001)
    assert most <= max(2, lookahead)


@BACKENDS
@pytest.mark.parametrize("limit", [0, 9])
@in_virtual_time
async def test_slots_that_come_soon_after_another_are_asked_about_with_it_but_not_where_they_count_as_running(
    backend: str, limit: int
) -> None:
    shard = shard_on(FarStore(delay=0.0003), Settings(interval=25_000, max_running=limit))
    began = (await shard.slot(Waiter())).due
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(shard.slot, Waiter())
        await anyio.sleep(began + 0.02 - shard.store_time())
        assert granted(shard) == []
        await anyio.sleep(began + 0.0245 - shard.store_time())
        assert granted(shard) == [2, 3] if not limit else 3 not in granted(shard)
        group.cancel_scope.cancel()


# --- who leaves -------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("limit", [0, 3])
def test_whenever_all_jobs_leave_everything_goes_back(backend: str, limit: int) -> None:
    """This includes slots that are being granted or requested at that moment, and none counts as running."""

    async def scenario(leave: float) -> None:
        store = FarStore(delay=0.1)
        shard = shard_on(store, Settings(interval=300_000, max_running=limit))
        with anyio.move_on_after(leave):
            async with anyio.create_task_group() as group:
                for cost in (1, 2, 1, 2):
                    group.start_soon(begin_and_end, shard, cost)
        await anyio.sleep(5)
        states = store.behind._records.states
        assert not shard.conversation.runs
        assert not shard.has_slots()
        if "q" in states:
            assert states["q"].running == {}
            assert states["q"].due <= states["q"].current_due

    async def begin_and_end(shard: Shard, cost: int) -> None:
        grant = await shard.slot(Waiter(cost=cost))
        shard.leases.ended(grant.ticket)

    for step in range(1, 60):
        virtual_time(scenario, step * 0.03, backend=backend)


@BACKENDS
@in_virtual_time
async def test_a_store_that_went_back_is_brought_forward_even_by_a_farewell(backend: str) -> None:
    store = FarStore()
    shard, states = shard_on(store), store.behind._records.states
    await shard.slot(Waiter())
    older = states["q"]
    with anyio.move_on_after(0.5):
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            await anyio.sleep(0.1)
            states["q"] = older
    await anyio.sleep(0.1)
    assert shard.regressions == 1
    assert states["q"].ticket == 2


# --- a store that is away ---------------------------------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_closing_does_not_wait_for_a_store_that_is_away(backend: str) -> None:
    store = FarStore(delay=0.01)
    shard = shard_on(store, Settings(interval=50 * SECOND))
    await shard.slot(Waiter())
    with anyio.move_on_after(1):
        await shard.slot(Waiter())
    shard.enter(Waiter())
    await anyio.sleep(1)
    store.is_down = True
    with anyio.fail_after(1):
        await shard.close(drain=False)


@BACKENDS
@pytest.mark.parametrize("situation", ["at first", "jobs wait", "nobody waits"])
def test_only_jobs_that_wait_are_told_of_and_once(
    backend: str, situation: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = FarStore(delay=0.01)
        shard = shard_on(store)
        if situation != "at first":
            await shard.slot(Waiter())
        if situation == "nobody waits":
            with anyio.move_on_after(0.5):
                async with anyio.create_task_group() as group:
                    group.start_soon(shard.slot, Waiter())
                    await anyio.sleep(0.4)
                    store.is_down = True
            await anyio.sleep(5)
            return
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await shard.slot(Waiter())

    with caplog.at_level(logging.WARNING, "intervalq"):
        virtual_time(scenario, backend=backend)
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == (1 if situation == "jobs wait" else 0)
    assert all("jobs wait for the store" in each for each in reported)


@BACKENDS
@in_virtual_time
async def test_whoever_waits_for_tickets_is_told_when_the_answer_is_a_hold(backend: str) -> None:
    store = FarStore(delay=0.01)
    await store.behind.apply("q", Hold(settings=EACH_SECOND, nonce="g"))
    shard = shard_on(store)
    shard.enter(waiter := Waiter())
    with anyio.fail_after(1):
        await shard.placed()
    assert shard.is_held
    shard.leave(waiter)


@BACKENDS
@in_virtual_time
async def test_a_first_question_that_fails_beside_a_look_fails_with_what_the_store_says(backend: str) -> None:
    store = FarStore(delay=1)
    await store.behind.apply("q", Advance(settings=EACH_SECOND, nonce="g", take=1))
    shard = shard_on(store)

    async def asks() -> None:
        with pytest.raises(StoreUnavailable):
            await shard.conversation._ask(Advance(take=1))

    async with anyio.create_task_group() as group:
        group.start_soon(shard.command, Inspect())
        await anyio.sleep(0.1)
        group.start_soon(asks)
        await anyio.sleep(1.1)
        store.is_down = True
    assert shard.state is not None
