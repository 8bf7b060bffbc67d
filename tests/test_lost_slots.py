"""A slot that is missed while others have later slots costs only itself, and no question."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import cast

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.rules import Advance, Slot
from intervalq.testing import virtual_time
from intervalq.testing.virtual import VirtualLoop
from virtual_store import FarStore, Starts, granted, in_virtual_time, queue_on

INTERVAL = 0.005


def first_is_over(*, between: bool) -> tuple[Starts, Counter[int], list[int]]:
    """One process stalls until the first of its two granted slots is over; another has one `between`.

    Returns the starts, how often each of its tickets was asked about, and which two were granted by
    then.
    """

    async def scenario() -> tuple[Starts, Counter[int], list[int]]:
        store, starts = FarStore(delay=0.02), Starts()  # slow questions are allowed for from now on
        one = queue_on(store, interval=INTERVAL)
        other = queue_on(FarStore(store.behind), interval=INTERVAL)
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        await other.run(partial(starts.job, "before"))
        await one.run(partial(starts.job, "before"))
        store.delay = 0
        async with anyio.create_task_group() as group:

            async def wants(queue: IntervalQueue, what: object) -> None:
                group.start_soon(queue.run, partial(starts.job, what))
                await anyio.sleep(0.001)

            await wants(one, 0)
            if between:
                await wants(other, "other")
            await wants(one, 1)
            both = granted(one._shard())
            shard = one._shard()
            loop.stall((shard.grants.granted[0].closes - shard.clock.now()) / 1e6 + 0.0005)
        asked = Counter(
            slot.ticket for call in store.calls if isinstance(call, Advance) for slot in call.slots
        )
        return starts, asked, both

    return virtual_time(scenario)


def test_what_is_granted_behind_it_is_used_without_another_question() -> None:
    """If they were asked about again one by one, those slots would be over before their answers came."""
    starts, asked, (first, second) = first_is_over(between=True)
    assert second == first + 2, "somebody else has the ticket between"
    assert starts.order[-3:] == ["other", 0, 1]
    assert starts.gaps[-2] == pytest.approx(INTERVAL, abs=INTERVAL / 10), "the next slot serves the first job"
    assert (asked[first], asked[second]) == (0, 1)


def test_what_nobody_else_comes_behind_is_asked_for_again() -> None:
    """It is then granted late, which costs its own length."""
    starts, asked, (first, second) = first_is_over(between=False)
    assert second == first + 1
    assert starts.order[-2:] == [0, 1]
    assert min(starts.gaps) >= 0.9 * INTERVAL
    assert asked[first] == 1


@in_virtual_time
async def test_several_that_are_lost_say_nothing_of_how_well_the_clock_is_known() -> None:
    """Otherwise one stalled process would reduce the spacing that everybody is promised for a minute."""
    starts = Starts()
    queue = queue_on(FarStore(delay=0.0002), interval=INTERVAL)
    await queue.run(partial(starts.job, "before"))
    shard = queue._shard()
    async with anyio.create_task_group() as group:
        for number in range(7):
            group.start_soon(queue.run, partial(starts.job, number))
        while len(granted(shard)) < 7:
            await anyio.sleep(0.0001)
        before = shard.time.checks
        for _ in range(6):
            shard.dispatcher.give_up(shard.grants.use(), "late")
        after = shard.time.checks
        shard.conversation.changed()
    assert after == before


@in_virtual_time
async def test_a_ticket_is_passed_by_only_when_its_slot_is_over_by_the_earliest_reading() -> None:
    """By the latest reading it may still come in time, so the store is asked, and says what became of it."""
    queue = queue_on(FarStore(delay=0.02), interval=INTERVAL)
    for number in range(2):
        await queue.run(partial(Starts().job, number))
    shard, loop = queue._shard(), cast("VirtualLoop", asyncio.get_running_loop())
    state, clock = shard.connection.state, shard.time.clock
    assert state is not None
    slot = Slot(state.current - 1, state.current_due + 1_000_000)  # others have a slot behind it
    shard.grants.tickets.append(slot)
    over = slot.due + state.held_total + state.tolerance + state.credit
    may_be, surely = clock.perhaps(over), clock.surely(over)
    assert surely - may_be > 10_000, "the clock is known that badly"
    left = []
    for instant in (may_be - 1_000, may_be + 1_000, surely - 1_000, surely + 1_000):
        loop.stall((instant - shard.clock.now()) / 1e6)
        shard.dispatcher.pass_dead()
        left.append([each.ticket for each in shard.grants.tickets])
    assert shard.dispatcher.skipped["late"] == 1
    *before, after = left
    assert all(before)
    assert after == []
