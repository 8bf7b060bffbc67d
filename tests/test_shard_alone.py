"""One shard without a handle: failing hand-overs, slots that are given up, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.backends import Waker
from intervalq.errors import QueueClosed, StoreUnavailable
from intervalq.rules import Advance, Hold, Resume, Settings
from intervalq.testing import virtual_time
from intervalq.testing.virtual import VirtualLoop
from virtual_store import BACKENDS, FarStore, in_virtual_time, shard_on

SECOND = 1_000_000


def released(store: FarStore) -> set[int]:
    """The tickets that were given back."""
    return {slot.ticket for call in store.calls if isinstance(call, Advance) for slot in call.release}


async def outstanding(store: FarStore) -> int:
    """How many slots of the store's record are taken and not used."""
    state = store.behind._records.states["q"]
    return (state.due - state.current_due) // state.settings.interval


class Interrupted(Waiter):
    """A job whose task goes on only after something else has happened, the first time."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens: Callable[[], object] | None = happens

    def wait(self, waker: Waker) -> Waker:
        happens, self.happens = self.happens, None
        super().wait(waker)
        return waker if happens is None else cast("Waker", _then(waker, happens))


async def _then(waker: Waker, happens: Callable[[], object]) -> None:
    await waker
    happens()


@pytest.mark.parametrize("late", [0.09, 0.2, 0.99, 5.0])
@in_virtual_time
async def test_a_job_that_was_handed_its_slot_and_comes_too_late_is_granted_it_late(late: float) -> None:
    """The process stalls between the hand-over and the job's task, so only the last check can notice it."""
    shard = shard_on(FarStore())
    await shard.slot(Waiter())
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    grant = await shard.slot(Interrupted(lambda: loop.stall(late)))
    assert shard.is_open(grant)
    assert grant.ticket == 2
    assert shard.given_up == 0
    assert shard.dispatcher.late == int(late > 0.1)
    at = anyio.current_time()
    assert at == pytest.approx(1 + late, abs=0.001)
    await shard.slot(Waiter())
    assert anyio.current_time() == pytest.approx(max(2, at + 0.95), abs=0.001), "it costs its lateness"


@BACKENDS
@in_virtual_time
async def test_a_slot_of_a_record_that_is_gone_by_then_is_not_used(backend: str) -> None:
    shard = shard_on(FarStore())
    grant = await shard.slot(Interrupted(shard.record_lost))
    assert grant.ticket > 1


@BACKENDS
@in_virtual_time
async def test_a_slot_that_is_given_up_goes_back_with_the_next_question(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    grant = await shard.slot(Waiter())
    shard.dispatcher.give_up(grant, "thread")
    assert shard.given_up == 1
    await shard.slot(Waiter())
    assert grant.ticket in released(store)


@BACKENDS
@in_virtual_time
async def test_a_slot_that_is_given_up_makes_room_for_a_running_job(backend: str) -> None:
    shard = shard_on(FarStore(), Settings(interval=SECOND, max_running=1))
    shard.dispatcher.give_up(await shard.slot(Waiter()), "thread")
    await shard.slot(Waiter())
    assert anyio.current_time() < 2, "its lease would be ten seconds"


@BACKENDS
@in_virtual_time
async def test_a_slot_that_is_given_up_while_the_store_is_down_makes_room_once_it_is_back(
    backend: str,
) -> None:
    """A job stops waiting while a question about its slot, which came too early for it, has no answer."""
    store = FarStore(delay=0.1)
    shard = shard_on(store, Settings(interval=SECOND, max_running=1))
    grant = await shard.slot(Waiter())
    store.is_down = True
    shard.undo(grant)
    shard.enter(again := Waiter())
    await anyio.sleep(0.01)
    assert [slot.ticket for call in store.calls[-1:] for slot in getattr(call, "slots", ())] == [1]
    shard.leave(again)
    await anyio.sleep(1)
    store.is_down = False
    await anyio.sleep(2)
    assert not store.behind._records.states["q"].running


@BACKENDS
@in_virtual_time
async def test_it_is_known_how_many_jobs_began_and_when_the_last_one_did(backend: str) -> None:
    shard = shard_on(FarStore())
    assert shard.last_start() is None
    for begun in (1, 2, 3):
        await shard.slot(Waiter())
        assert shard.last_start() == shard.clock.now()
        assert shard.begun == begun


# --- its end ----------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("drain", [False, True])
@in_virtual_time
async def test_a_closed_shard_takes_no_new_jobs(backend: str, drain: bool) -> None:
    shard = shard_on(FarStore())
    await shard.close(drain=drain)
    with pytest.raises(QueueClosed):
        await shard.slot(Waiter())
    if not drain:
        with pytest.raises(QueueClosed):
            await shard.slot(Waiter(again=True))
    else:
        await shard.slot(Waiter(again=True))


async def jobs_of(shard: Shard, jobs: int, ended: list[object]) -> None:
    """A number of waiting jobs, each of which records its outcome."""
    async with anyio.create_task_group() as group:

        async def job() -> None:
            try:
                ended.append(await shard.slot(Waiter()))
            except QueueClosed as error:
                ended.append(error)

        for _ in range(jobs):
            group.start_soon(job)


@BACKENDS
@pytest.mark.parametrize("before", [0, 1, 2])
@in_virtual_time
async def test_when_closing_returns_all_tickets_are_back(backend: str, before: int) -> None:
    """This holds however often the shard was idle before."""
    store, ended = FarStore(delay=0.01), list[object]()
    shard = shard_on(store)
    for _ in range(before):
        await shard.slot(Waiter())
        await anyio.sleep(5)
    async with anyio.create_task_group() as group:
        group.start_soon(jobs_of, shard, 8, ended)
        await anyio.sleep(0.5)
        assert await outstanding(store) == 7
        began = anyio.current_time()
        await shard.close(drain=False)
        assert anyio.current_time() - began < 0.1, "it waits for nothing but the store"
        assert await outstanding(store) == 0
        assert not shard.has_slots()
    assert [type(end) for end in ended] == [Grant] + [QueueClosed] * 7


@BACKENDS
@pytest.mark.parametrize("drain", [False, True])
def test_closing_in_a_pause(backend: str, drain: bool) -> None:
    """Jobs either fail at once, or wait for the end of the pause, and then begin."""

    async def scenario() -> list[object]:
        store, ended = FarStore(), list[object]()
        shard = shard_on(store)
        await shard.slot(Waiter())
        await shard.command(Hold())
        async with anyio.create_task_group() as group:
            group.start_soon(jobs_of, shard, 2, ended)
            await anyio.sleep(33.3)
            began = anyio.current_time()
            if drain:
                group.start_soon(resume, shard)
            await shard.close(drain=drain)
            assert (anyio.current_time() - began < 0.01) is not drain
            assert await outstanding(store) == 0
        return ended

    async def resume(shard: Shard) -> None:
        await anyio.sleep(100)
        await shard.command(Resume())

    assert [type(end) for end in virtual_time(scenario, backend=backend)] == [
        Grant if drain else QueueClosed
    ] * 2


@BACKENDS
@in_virtual_time
async def test_when_closing_returns_the_store_knows_that_the_last_job_ended(backend: str) -> None:
    store = FarStore(delay=0.1)
    shard = shard_on(store, Settings(interval=SECOND, max_running=3))
    grant = await shard.slot(Waiter())
    assert store.behind._records.states["q"].running
    shard.leases.ended(grant.ticket)
    await shard.close(drain=True)
    assert store.behind._records.states["q"].running == {}


# --- who waits --------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("paused", [False, True])
@in_virtual_time
async def test_a_ticket_goes_back_as_soon_as_nobody_wants_it(backend: str, paused: bool) -> None:
    """It doesn't wait until its slot comes in an hour, nor until a paused shard would ask again."""
    store = FarStore()
    shard = shard_on(store, Settings(interval=3_600 * SECOND))
    await shard.slot(Waiter())
    with anyio.move_on_after(12.3):  # between two questions
        async with anyio.create_task_group() as group:
            group.start_soon(shard.slot, Waiter())
            if paused:
                await anyio.sleep(0.1)
                await shard.command(Hold())
                group.start_soon(shard.slot, Waiter())  # it finds the hold, and waits for its end
    began = anyio.current_time()
    while await outstanding(store):
        assert anyio.current_time() - began < 0.1
        await anyio.sleep(0.01)


@BACKENDS
@in_virtual_time
async def test_tickets_are_waited_for_only_where_some_will_come(backend: str) -> None:
    store = FarStore(delay=0.1)
    shard = shard_on(store)
    with anyio.fail_after(1):
        await shard.placed()  # nobody waits
    waiter = Waiter()
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, waiter)
        await checkpoint()
        await checkpoint()
        began = anyio.current_time()
        await shard.placed()
        assert anyio.current_time() > began, "the store was asked"
        assert not shard.conversation._unplaced
    await shard.command(Hold())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(1)
        with anyio.fail_after(1):
            await shard.placed()  # in a hold there are none
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_who_waits_for_tickets_is_told_when_the_store_fails(backend: str) -> None:
    store = FarStore(delay=0.1)
    store.is_down = True
    shard = shard_on(store)

    async def job() -> None:
        with pytest.raises(StoreUnavailable):
            await shard.slot(Waiter())

    async with anyio.create_task_group() as group:
        group.start_soon(job)
        await checkpoint()
        await checkpoint()
        await shard.placed()
    assert not shard.conversation._unplaced


@BACKENDS
@in_virtual_time
async def test_each_job_waits_a_minute_of_its_own_for_a_store_that_is_away(backend: str) -> None:
    store = FarStore()
    shard = shard_on(store)
    await shard.slot(Waiter())
    store.is_down = True
    for _ in range(3):
        began = anyio.current_time()
        with pytest.raises(StoreUnavailable):
            await shard.slot(Waiter())
        assert 60 <= anyio.current_time() - began < 70


@BACKENDS
@pytest.mark.parametrize("delay", [0.0, 0.001])
@in_virtual_time
async def test_a_job_that_begins_early_is_heard_of_when_it_comes_last(backend: str, delay: float) -> None:
    """It is first in the queue, and is given its slot earlier than the job that it overtakes.

    That slot may or may not be granted by then.
    """
    shard = shard_on(FarStore(delay=delay))
    at: list[float] = []
    start = (await shard.slot(Waiter())).due
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        await anyio.sleep(start + 0.9985 - shard.store_time())
        assert bool(shard.grants.granted) is (delay > 0)
        await shard.slot(Waiter(priority=1, early=1_000))
        at.append(shard.store_time() - start)
    assert [0.998 <= begun < 0.9999 for begun in at] == [True]
