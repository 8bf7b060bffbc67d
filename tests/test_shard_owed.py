"""What a shard still owes or has to give back when jobs leave, close, or find the store away."""

from __future__ import annotations

import logging

import anyio
import pytest

from intervalq._shard.grants import Run, Slots
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq.errors import StoreUnavailable
from intervalq.rules import Advance, Hold, Inspect, Settings, Slot
from intervalq.testing import virtual_time
from virtual_store import BACKENDS, FarStore, told

SECOND = 1_000_000
EACH_SECOND = Settings(interval=SECOND)


def shard_on(store: FarStore, settings: Settings = EACH_SECOND, lookahead: int | None = 16) -> Shard:
    return Shard("q", store, settings, lookahead=lookahead)


@pytest.mark.parametrize("kind", ["tickets", "granted", "unused"])
def test_a_slot_of_any_kind_is_a_slot(kind: str) -> None:
    """With any, losing a keyed queue's record matters: the new one begins with a quiet interval."""
    slots = Slots()
    assert not slots
    slot = Slot(1, 0)
    if kind == "tickets":
        slots.tickets.append(slot)
    elif kind == "granted":
        slots.granted.append(Run(slot, held=0, steps=0))
    else:
        slots.unused.append(slot)
    assert slots
    assert slots.give_all_back(1) == (slot,)
    assert not slots


# --- slots that are owed ----------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("cost", [2, 3])
@pytest.mark.parametrize("closes", [False, True])
def test_what_a_job_costs_is_paid_though_nobody_waits_any_more(backend: str, cost: int, closes: bool) -> None:
    async def scenario() -> float:
        store = FarStore()
        shard = shard_on(store, lookahead=1)
        await shard.slot(Waiter(cost=cost))
        if closes:
            await shard.close(drain=True)
        await anyio.sleep(0.01)  # else the other may ask first
        await shard_on(FarStore(store.behind)).slot(Waiter())
        return anyio.current_time()

    assert virtual_time(scenario, backend=backend) == pytest.approx(cost, abs=0.01)


@BACKENDS
def test_what_a_job_costs_is_paid_when_it_held_the_queue_itself(backend: str) -> None:
    async def scenario() -> float:
        store, settings = FarStore(), Settings(interval=SECOND, max_running=1)
        shard = shard_on(store, settings, lookahead=1)
        go = await shard.slot(Waiter(cost=3))
        await anyio.sleep(5)
        shard.leases.ended(go.ticket)
        ended = anyio.current_time()
        await anyio.sleep(0.1)
        await shard_on(FarStore(store.behind), settings).slot(Waiter())
        return anyio.current_time() - ended

    assert virtual_time(scenario, backend=backend) == pytest.approx(3, abs=0.05)


# --- how many slots at once -------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 2, 3])
@pytest.mark.parametrize("interval", [10_000, SECOND])
def test_a_shard_never_has_more_slots_than_its_lookahead_allows(
    backend: str, lookahead: int, interval: int
) -> None:
    async def scenario() -> int:
        shard, most = shard_on(FarStore(), Settings(interval=interval), lookahead), 0
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(shard.slot, Waiter())
            await anyio.sleep(0.001)
            while shard.line:
                most = max(most, len([*shard.slots.coming()]))
                await anyio.sleep(0.001)
        return most

    assert virtual_time(scenario, backend=backend) <= max(2, lookahead)


@BACKENDS
@pytest.mark.parametrize("limit", [0, 9])
def test_slots_that_come_soon_after_another_are_asked_about_with_it_but_not_where_they_count_as_running(
    backend: str, limit: int
) -> None:
    async def scenario() -> None:
        shard = shard_on(FarStore(), Settings(interval=10_000, max_running=limit))
        began = (await shard.slot(Waiter())).due
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(shard.slot, Waiter())
            await anyio.sleep(began + 0.005 - shard.store_time())
            assert told(shard) == ([] if limit else [2, 3])
            await anyio.sleep(began + 0.009 - shard.store_time())
            assert told(shard) == ([2] if limit else [2, 3])
            group.cancel_scope.cancel()

    virtual_time(scenario, backend=backend)


# --- who leaves -------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("limit", [0, 3])
def test_whenever_all_jobs_leave_everything_goes_back(backend: str, limit: int) -> None:
    """Also what is told to go, or asked for, at that very moment; and none counts as running."""

    async def scenario(leave: float) -> None:
        store = FarStore(delay=0.1)
        shard = shard_on(store, Settings(interval=300_000, max_running=limit))
        with anyio.move_on_after(leave):
            async with anyio.create_task_group() as group:
                for cost in (1, 2, 1, 2):
                    group.start_soon(begin_and_end, shard, cost)
        await anyio.sleep(5)
        states = store.behind._records.states
        assert not shard.driven
        assert not shard.has_slots()
        if "q" in states:
            assert states["q"].running == {}
            assert states["q"].due <= states["q"].at

    async def begin_and_end(shard: Shard, cost: int) -> None:
        go = await shard.slot(Waiter(cost=cost))
        shard.leases.ended(go.ticket)

    for step in range(1, 60):
        virtual_time(scenario, step * 0.03, backend=backend)


@BACKENDS
def test_a_store_that_went_back_is_brought_forward_even_by_a_farewell(backend: str) -> None:
    async def scenario() -> None:
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

    virtual_time(scenario, backend=backend)


# --- a store that is away ---------------------------------------------------------------------------


@BACKENDS
def test_closing_does_not_wait_for_a_store_that_is_away(backend: str) -> None:
    async def scenario() -> None:
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

    virtual_time(scenario, backend=backend)


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
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (1 if situation == "jobs wait" else 0)
    assert all("jobs wait for the store" in each for each in said)


@BACKENDS
def test_whoever_waits_for_tickets_is_told_when_the_answer_is_a_hold(backend: str) -> None:
    async def scenario() -> None:
        store = FarStore(delay=0.01)
        await store.behind.apply("q", Hold(settings=EACH_SECOND, nonce="g"))
        shard = shard_on(store)
        shard.enter(waiter := Waiter())
        with anyio.fail_after(1):
            await shard.placed()
        assert shard.held
        shard.leave(waiter)

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_a_first_question_that_fails_beside_a_look_fails_with_what_the_store_says(backend: str) -> None:
    async def scenario() -> None:
        store = FarStore(delay=1)
        await store.behind.apply("q", Advance(settings=EACH_SECOND, nonce="g", take=1))
        shard = shard_on(store)

        async def asks() -> None:
            with pytest.raises(StoreUnavailable):
                await shard._put(Advance(take=1))

        async with anyio.create_task_group() as group:
            group.start_soon(shard.command, Inspect())
            await anyio.sleep(0.1)
            group.start_soon(asks)
            await anyio.sleep(1.1)
            store.is_down = True
        assert shard.state is not None

    virtual_time(scenario, backend=backend)
