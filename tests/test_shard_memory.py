"""What a shard remembers across failed and lost answers, and how long it waits in which kind of trouble."""

from __future__ import annotations

import anyio
import pytest

from intervalq._shard.wait_queue import Waiter
from intervalq.errors import StoreUnavailable
from intervalq.rules import Advance, Drop, Hold, Inspect, Resume, Settings
from virtual_store import BACKENDS, FarStore, granted, in_virtual_time, shard_on

SECOND = 1_000_000


@BACKENDS
@pytest.mark.parametrize("paused", [False, True])
@in_virtual_time
async def test_a_store_that_went_back_is_brought_forward_by_the_next_question(
    backend: str, paused: bool
) -> None:
    store = FarStore()
    shard, states = shard_on(store), store.behind._records.states
    await shard.slot(Waiter())
    if paused:
        await shard.command(Hold())
    older = states["q"]
    for _ in range(3):
        await shard.command(Advance(take=1, high_water_mark=shard.connection.high_water_mark))
    if paused:
        await shard.command(Resume())
        await shard.slot(Waiter())
    highest = states["q"].ticket
    states["q"] = older
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(0.5)
        assert shard.regressions == 1
        assert states["q"].ticket >= highest
        group.cancel_scope.cancel()


@BACKENDS
@pytest.mark.parametrize("looks", [0, 1, 2])
@in_virtual_time
async def test_a_record_that_is_lost_is_told_of_once_whoever_finds_it_gone(
    backend: str, looks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Inspecting finds no record and creates none, so the next question alone would find nothing wrong."""
    store = FarStore()
    shard = shard_on(store)
    for times in range(1, 4):
        await shard.slot(Waiter())
        store.behind._records.states.clear()
        for _ in range(looks):
            await shard.command(Inspect())
        await shard.slot(Waiter())
        assert shard.regressions == times
    assert caplog.text.count("its record was lost or dropped") == 3


@BACKENDS
@pytest.mark.parametrize("key", [False, True])
@in_virtual_time
async def test_a_record_that_one_drops_oneself_or_that_is_only_kept_while_in_use_was_not_lost(
    backend: str, key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = FarStore()
    shard = shard_on(store, Settings(interval=SECOND, ephemeral=key))
    await shard.slot(Waiter())
    if key:
        await anyio.sleep(3_600)
    else:
        await shard.command(Drop())
    await shard.command(Inspect())
    assert shard.state is None
    await shard.slot(Waiter())
    assert shard.regressions == 0
    assert not caplog.text


@BACKENDS
@in_virtual_time
async def test_slots_from_before_a_step_of_the_clock_are_not_asked_about_where_their_grants_were_lost_too(
    backend: str,
) -> None:
    shard = shard_on(FarStore())
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        while not granted(shard):
            await anyio.sleep(0.001)
        shard.time.clock.steps += 1
        shard.grants_lost()
        assert not shard.grants.tickets
        assert [slot.ticket for slot in shard.grants.unused] == [2]
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_what_could_not_be_given_back_is_given_back_later(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    shard.dispatcher.give_up(grant := await shard.slot(Waiter()), "thread")
    shard.enter(waiter := Waiter())  # without jobs, a shard forgets its slots in an outage
    store.is_down = True
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, waiter)
        await anyio.sleep(5)
        store.calls.clear()
        store.is_down = False
    assert grant.slot in [slot for call in store.calls if isinstance(call, Advance) for slot in call.release]


@BACKENDS
@pytest.mark.parametrize("delay", [0.02, 0.1, 0.4])
@in_virtual_time
async def test_on_an_idle_queue_a_slot_is_no_nearer_than_its_answer_and_not_much_further(
    backend: str, delay: float
) -> None:
    shard, waits = shard_on(FarStore(delay=delay)), list[float]()
    for _ in range(8):
        began = anyio.current_time()
        await shard.slot(Waiter())
        waits.append(anyio.current_time() - began)
        await anyio.sleep(20)
    assert shard.given_up <= 4, "answers that are slower than most"
    assert max(waits[3:]) < 2 * delay + 0.2


@BACKENDS
@in_virtual_time
async def test_a_job_of_a_higher_cost_counts_as_one_running_job(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store, Settings(interval=SECOND, burst=5, max_running=5))
    grant = await shard.slot(Waiter(cost=3))
    await anyio.sleep(1)
    state = store.behind._records.states["q"]
    assert list(state.running) == [grant.ticket]
    assert state.current == grant.ticket
    assert state.current_due == grant.slot.due + 2 * SECOND, "and all of its slots are used"


class Deaf(FarStore):
    """A store without wake-ups."""

    def __init__(self) -> None:
        super().__init__()
        del self.wakeups


@BACKENDS
@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("seconds", [0.2, 2, 7.3, 100])
@in_virtual_time
async def test_a_job_begins_at_the_very_end_of_a_cool_down(backend: str, deaf: bool, seconds: float) -> None:
    """It doesn't begin only when the shard would ask again by itself."""
    shard = shard_on(Deaf() if deaf else FarStore())
    await shard.slot(Waiter())
    await anyio.sleep(10)
    await shard.command(Hold(length=round(seconds * SECOND)))
    began = anyio.current_time()
    await shard.slot(Waiter())
    assert (anyio.current_time() - began) == pytest.approx(seconds, abs=0.05)


@BACKENDS
@pytest.mark.parametrize("length", [100 * SECOND, 10**15])
@pytest.mark.parametrize("deaf", [False, True])
@in_virtual_time
async def test_a_pause_that_ends_before_its_time_is_noticed(backend: str, deaf: bool, length: int) -> None:
    """The shard notices at once, or by asking now and then if the store has no wake-ups."""
    store = Deaf() if deaf else FarStore()
    shard = shard_on(store)
    await shard.slot(Waiter())
    await shard.command(Hold(length=length))
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(33)
        await store.apply("q", Resume())
        resumed = anyio.current_time()
    assert (anyio.current_time() - resumed) < (1.7 if deaf else 1.01)


@BACKENDS
@in_virtual_time
async def test_a_store_that_is_away_is_asked_less_and_less_often(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    await shard.slot(Waiter())
    store.is_down = True
    store.calls.clear()
    with pytest.raises(StoreUnavailable):
        await shard.slot(Waiter())
    assert 10 < len(store.calls) < 150
