"""Plain functions whose threads come too late for the slots that they were given."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from intervalq._queue.attempts import late
from intervalq._queue.threads import EARLY
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq.errors import QueueClosed
from intervalq.rules import Advance, Configure, Drop, Inspect, Settings
from intervalq.testing.virtual import VirtualLoop
from virtual_store import FarStore, granted, in_virtual_time

SECOND = 1_000_000


def shard_on(store: FarStore, *, max_running: int = 0) -> Shard:
    return Shard("q", store, Settings(interval=SECOND, max_running=max_running), lookahead=16)


async def in_thread(
    shard: Shard, lateness: float, *, begins: float = 0.0, is_thread: bool = False
) -> list[Grant]:
    """A job whose thread wakes late whenever it has to wait. Returns its slots, of which it used the last.

    `begins`: how long it takes until the thread runs that was handed a slot, in seconds.
    """
    loop, waiter = cast("VirtualLoop", asyncio.get_running_loop()), Waiter(early=EARLY, in_thread=is_thread)
    handed: list[Grant] = []
    while len(handed) < 10:
        grant = await shard.slot(waiter)
        handed.append(grant)
        await anyio.sleep(begins)
        if (left := grant.opens - shard.clock.now()) > 0:
            grant.awaited = True
            await anyio.sleep(left / 1e6)
            loop.stall(lateness)
            await checkpoint()
        if shard.is_open(grant):
            return handed
        shard.leases.ended(grant.ticket)
        waiter = late(shard, grant, waiter)
    raise AssertionError("it took one slot after the other")


@pytest.mark.parametrize("max_running", [0, 2])
@pytest.mark.parametrize("lateness", [0.11, 0.5, 3.0])
@in_virtual_time
async def test_a_thread_that_is_always_late_begins_in_its_own_slot_once_that_is_granted_late(
    lateness: float, max_running: int
) -> None:
    store = FarStore()
    shard = shard_on(store, max_running=max_running)
    shard.leases.ended((await shard.slot(Waiter())).ticket)
    handed = await in_thread(shard, lateness)
    at = anyio.current_time()
    assert [grant.ticket for grant in handed] == [2, 2]
    assert at == pytest.approx(1 + lateness, abs=0.01), "it waits for no other slot"
    assert shard.begun == 2
    assert shard.given_up == 0
    if max_running:
        assert shard.state is not None
        assert set(shard.state.running) == set(shard.leases.running) == {2}, "its lease is kept"
    await shard.slot(Waiter())
    assert anyio.current_time() == pytest.approx(max(2, at + 0.9), abs=0.01), "it costs its lateness"
    questions = [call.slots for call in store.calls if isinstance(call, Advance)]
    assert sum(any(slot.ticket == 2 for slot in slots) for slots in questions) == 2


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("begins", [0.15, 0.5, 1.0])
@in_virtual_time
async def test_a_thread_that_takes_long_to_run_is_handed_its_slot_that_much_earlier(
    begins: float, others: bool
) -> None:
    """An interval later, even a slot that has come when the thread is handed it is over."""
    store = FarStore()
    shard, other = shard_on(store), shard_on(store)
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:

        async def take_slots() -> None:
            while True:
                await other.slot(Waiter())

        if others:
            group.start_soon(take_slots)
        handed = await in_thread(shard, 0.0, begins=begins)
        assert len(handed) <= 6
        group.cancel_scope.cancel()


@in_virtual_time
async def test_late_threads_do_not_take_slots_from_each_other() -> None:
    """One that comes back too late for as early a slot as it needs is handed the next one that early.

    It counted as one that slept for too long, got the next slot only when that came, and had to learn again
    how long it takes to run: so two threads took one ticket after the other, and began after 45 and 39.
    """
    shard = Shard("q", FarStore(), Settings(interval=50_000), lookahead=16)
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        for begins in (0.057, 0.066, 0.03):
            group.start_soon(partial(in_thread, shard, 0.0, begins=begins, is_thread=True))
    assert shard.state is not None
    assert shard.state.ticket <= 10


@in_virtual_time
async def test_where_the_next_slot_is_handed_out_by_then_a_late_thread_takes_another_one() -> None:
    shard = shard_on(FarStore())
    await shard.slot(Waiter())
    one, two = (Waiter(early=1_500_000, in_thread=True) for _ in range(2))
    async with anyio.create_task_group() as group:
        grants: list[Grant] = []

        async def wait(waiter: Waiter) -> None:
            grants.append(await shard.slot(waiter))

        group.start_soon(wait, one)
        group.start_soon(wait, two)
    assert [grant.ticket for grant in grants] == [2, 3]
    again = late(shard, grants[0], one)
    assert shard.given_up == 1
    assert (await shard.slot(again)).ticket == 4
    assert not granted(shard)


@in_virtual_time
async def test_the_slot_of_a_late_thread_is_nobodys_once_its_record_is_gone() -> None:
    """The slot went back to a new record, in which another shard may have a ticket of the same number."""
    shard = shard_on(FarStore())
    waiter = Waiter(early=EARLY)
    grant = await shard.slot(waiter)
    shard.record_lost()
    late(shard, grant, waiter)
    assert not shard.grants
    assert shard.begun == 0


@in_virtual_time
async def test_in_a_full_queue_a_late_thread_begins_in_its_own_slot_too() -> None:
    """Its process waits for the end of a job, for which the late thread need not wait: it has its place."""
    shard = shard_on(FarStore(), max_running=2)
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter(priority=-1))  # there is no place for it
        handed = await in_thread(shard, 0.5)
        assert [grant.ticket for grant in handed] == [2, 2]
        assert anyio.current_time() == pytest.approx(1.5, abs=0.01)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["ended", "free"])
@in_virtual_time
async def test_the_end_of_a_job_frees_no_place_in_a_record_made_anew(way: str) -> None:
    """Its ticket may be another's there. The job began while there was no limit, and had no lease."""
    store = FarStore()
    shard, other = shard_on(store), shard_on(store, max_running=1)
    grant = await shard.slot(Waiter())
    await store.apply("q", Drop())
    again = await other.slot(Waiter())
    assert again.ticket == grant.ticket
    await shard.connection.command(Inspect())
    getattr(shard, way)(grant)
    await shard.leases.settle()
    assert set(store.behind._records.states["q"].running) == {again.ticket}


@in_virtual_time
async def test_a_late_thread_of_a_closed_handle_leaves_nothing_behind() -> None:
    store = FarStore()
    shard = shard_on(store, max_running=1)
    waiter = Waiter(early=EARLY)
    grant = await shard.slot(waiter)
    assert shard.is_open(grant)
    await shard.close(drain=False)
    assert not shard.is_open(grant), "a thread begins nothing in it any more"
    shard.leases.ended(grant.ticket)
    with pytest.raises(QueueClosed):
        shard.enter(late(shard, grant, waiter))
    await shard.leases.settle()
    assert not shard.grants.tickets
    assert not store.behind._records.states["q"].running


@pytest.mark.parametrize("changed", [Configure(interval=10 * SECOND), Configure(burst=5)])
@in_virtual_time
async def test_a_slot_may_be_used_no_later_than_by_the_settings_it_was_granted_under(
    changed: Configure,
) -> None:
    """With other settings, another shard may have been granted the slot right behind it, and begin there."""
    shard = shard_on(FarStore())
    await shard.slot(Waiter())
    async with anyio.create_task_group() as group:
        group.start_soon(shard.slot, Waiter())
        while not granted(shard):
            await anyio.sleep(0.001)
        await shard.command(changed)
        first = shard.time.bounded(shard.grants.granted[0], shard.state, shard.clock.now())
        assert first.closes - first.opens <= SECOND // 10
        assert shard.state is not None
        assert shard.state.tolerance + shard.state.credit > SECOND // 10


@pytest.mark.parametrize("timeout", [None, 60])
@in_virtual_time
async def test_a_thread_that_was_late_once_gets_its_next_slot_no_earlier(timeout: float | None) -> None:
    """Nor if its job has a timeout or is tried again: its process may have stalled only this once."""
    for tried in (False, True):
        shard, waiter = shard_on(FarStore()), Waiter(early=EARLY, in_thread=True, again=tried)
        grant = await shard.slot(waiter, timeout)
        cast("VirtualLoop", asyncio.get_running_loop()).stall(0.8)
        assert not shard.is_open(grant)
        waiter = late(shard, grant, waiter)
        assert waiter.early == 0
        grant = await shard.slot(waiter, timeout)
        cast("VirtualLoop", asyncio.get_running_loop()).stall(0.8)
        assert late(shard, grant, waiter).early >= 800_000
