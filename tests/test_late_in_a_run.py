"""After a job that begins late, the next slots of its own shard follow without another question."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from functools import partial
from itertools import pairwise
from typing import TypeVarTuple, cast

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._queue.threads import EARLY
from intervalq._shard.store_time import REACTION
from intervalq._shard.wait_queue import Waiter
from intervalq.rules import Advance
from intervalq.testing import virtual, virtual_time
from intervalq.testing.virtual import VirtualLoop
from virtual_store import FarStore, Starts, gather, granted, in_virtual_time, queue_on

Ts = TypeVarTuple("Ts")

INTERVAL = 0.01


def stalled(before: float, length: float, jobs: int = 5) -> tuple[Starts, int, int]:
    """Run jobs in a process that stalls when the first of several consecutive slots have been granted.

    Returns the starts, how many slots were granted late, and how many questions listed slots.
    """

    async def scenario() -> tuple[Starts, int, int]:
        store, starts = FarStore(), Starts()
        queue = queue_on(store, interval=INTERVAL)
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        await queue.run(partial(starts.job, -1))
        async with anyio.create_task_group() as group:
            for number in range(jobs):
                group.start_soon(queue.run, partial(starts.job, number))
            while len(granted(queue._shard())) < jobs:
                await anyio.sleep(0.0001)
            await anyio.sleep(before)
            loop.stall(length)
        asked = sum(isinstance(call, Advance) and bool(call.slots) for call in store.calls)
        return starts, (await queue.inspect()).late, asked

    return virtual_time(scenario)


@pytest.mark.parametrize("length", [0.0125, 0.02, 0.0295])
def test_the_others_follow_at_a_distance_and_nothing_is_asked_before_the_run_is_over(length: float) -> None:
    starts, late, asked = stalled(0.0005, length)
    on_time, *others = stalled(0.0005, 0.0)
    assert starts.order == [-1, 0, 1, 2, 3, 4]
    assert min(starts.gaps) >= 0.9 * INTERVAL - 1e-9
    assert others == [0, 1]
    assert (late, asked) == (1, 2), "only what found no time in the run is asked for again"
    late_by, lost = (starts.log[place][0] - on_time.log[place][0] for place in (2, -1))
    assert lost < late_by, "it costs its own length at most"


@pytest.mark.parametrize("length", [0.0105, 0.011, 0.0115])
def test_a_short_lateness_costs_nothing(length: float) -> None:
    starts, late, _ = stalled(0.0005, length)
    on_time, *_ = stalled(0.0005, 0.0)
    assert late == (length > 0.011), "those of others move by what is more than twice the tolerance"
    assert min(starts.gaps) >= 0.9 * INTERVAL - 1e-9
    assert starts.log[-1][0] - on_time.log[-1][0] <= 0.001, "within the tolerance"


@in_virtual_time
async def test_slots_that_a_late_start_came_too_near_to_are_not_given_back() -> None:
    """Otherwise another process could begin right after the late start."""
    store, starts = FarStore(), Starts()
    one, other = (queue_on(FarStore(store.behind), interval=INTERVAL) for _ in range(2))
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    await one.run(partial(starts.job, "before"))
    async with anyio.create_task_group() as group:

        async def late() -> None:
            await one.run(partial(starts.job, "late"))
            group.cancel_scope.cancel()

        group.start_soon(late)
        for number in range(4):
            group.start_soon(one.run, partial(starts.job, number))
        while len(granted(one._shard())) < 5:
            await anyio.sleep(0.0001)
        loop.stall(0.0255)
    await other.run(partial(starts.job, "other"))
    await one.close()
    assert starts.order == ["before", "late", "other"]
    assert min(starts.gaps) >= 0.9 * INTERVAL


@pytest.mark.parametrize("length", [0, 0.0005, 0.0125, 0.015, 0.0185, 0.02, 0.0295])
@in_virtual_time
async def test_a_thread_that_is_woken_early_keeps_the_distance_to_a_late_start(length: float) -> None:
    """The thread waits by itself, by its grant alone, so the grant must include the start before it."""
    queue = queue_on(FarStore(), interval=INTERVAL)
    shard = queue._shard()
    loop = cast("VirtualLoop", asyncio.get_running_loop())
    starts: list[tuple[int, int]] = []

    async def in_thread() -> None:
        grant = await shard.slot(Waiter(early=EARLY, in_thread=True))
        first = max(shard.clock.now(), grant.opens)
        starts.append((first, max(first, grant.closes)))
        assert not grant.at_once or grant.due * 1e6 >= grant.opens - grant.range.after

    await in_thread()
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(in_thread)
        while len(granted(shard)) != 4:
            await anyio.sleep(0.0001)
        loop.stall(length)
    assert len(starts) == 6
    assert min(later[0] - earlier[1] for earlier, later in pairwise(starts[1:])) >= 0.9e6 * INTERVAL
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(starts)]
    assert min(gaps) >= (1e6 if length < 0.001 else 0.9e6) * INTERVAL, "nothing is lost where nobody is late"


@pytest.mark.parametrize("interval", [0.011, 0.012, 0.02])
@in_virtual_time
async def test_a_thread_gets_no_grant_that_opens_after_it_closes(interval: float) -> None:
    """This happens if the interval has grown since the consecutive slots were granted."""
    queue = queue_on(FarStore(), interval=INTERVAL)
    shard = queue._shard()
    left: list[int] = []

    async def in_thread() -> None:
        grant = await shard.slot(Waiter(early=EARLY, in_thread=True))
        left.append(grant.closes - max(shard.clock.now(), grant.opens))

    await in_thread()
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(in_thread)
        while len(granted(shard)) != 4:
            await anyio.sleep(0.0001)
        await queue.configure(interval=interval)
    assert min(left) >= 0


class LateLoop(VirtualLoop):
    """A clock whose timers fire up to 20 ms late."""

    def __init__(self, horizon: float = 1e7) -> None:
        super().__init__(horizon)
        self._late = random.Random(2)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when + self._late.uniform(0, 0.02), callback, *args, context=context)


def test_late_timers_are_not_taken_for_a_blocked_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that was granted late waits for its distance from the last start, by a timer, which is late.

    That counted as if the job had been slow after the answer, and a warning then named a blocked event loop.
    """
    monkeypatch.setattr(virtual, "VirtualLoop", LateLoop)
    reactions: list[int] = []

    async def scenario() -> int:
        store = FarStore()
        queues = [queue_on(FarStore(store.behind, delay=0.0001), interval=0.05) for _ in range(2)]

        async def job(queue: IntervalQueue) -> None:
            async with queue.slot():
                reactions.append(queue._shard().time.reaction)

        await gather(*(partial(job, queue) for _ in range(100) for queue in queues))
        return (await queues[0].inspect()).late

    assert virtual_time(scenario) > 0
    assert set(reactions) == {REACTION}
