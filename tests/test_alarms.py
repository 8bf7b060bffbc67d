"""What waits at little cost: alarms, naps, jobs without a task, slots in a row, trips, idle records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from intervalq import JobCancelled, QueueClosed, SlotTimeout, _alarms
from intervalq._alarms import CLOCK_ID, FAR, Alarms, alarms_of
from intervalq._backend import Bell
from intervalq._clock import CLOCK, SystemClock
from intervalq._nap import Nap
from intervalq._shard import Shard
from intervalq._slots import Go, Run, Slots
from intervalq.rules import Advance, Answer, Command, Inspect, Settings, Slot
from intervalq.testing import virtual_time
from intervalq_stores.memory import MemoryStore
from virtual_store import BACKENDS, FarStore, Starts, queue_on

needs_alarms = pytest.mark.skipif(_alarms._libc is None, reason="this system has no timerfd")


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def soon(micros: int = 1_000) -> int:
    return time.clock_gettime_ns(CLOCK_ID) // 1_000 + micros


def with_alarms(scenario: Callable[[Alarms], Awaitable[None]]) -> None:
    """In a real event loop, which has no more descriptors afterwards than before."""

    async def whole() -> None:
        before, alarms = descriptors(), alarms_of(asyncio.get_running_loop())
        assert alarms is not None
        with anyio.fail_after(60):
            await scenario(alarms)
        alarms.tidy()
        assert not alarms._set
        assert descriptors() == before

    asyncio.run(whole())


def bell() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def waits(alarms: Alarms, instant: int, ring: Bell | None = None) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(alarms.wait(ring or bell(), instant))


@needs_alarms
@pytest.mark.parametrize("instant", [0, 1, 2, 1_000_000])
def test_an_alarm_in_the_past_rings(instant: int) -> None:
    async def scenario(alarms: Alarms) -> None:
        before = descriptors()
        await alarms.wait(bell(), instant)
        assert descriptors() == before + 1, "it is kept for the next one"
        await alarms.wait(bell(), instant)
        assert descriptors() == before + 1

    with_alarms(scenario)


@needs_alarms
def test_alarms_ring_in_the_order_of_their_instants_and_not_before() -> None:
    async def scenario(alarms: Alarms) -> None:
        order: list[int] = []

        async def wait(instant: int) -> None:
            await alarms.wait(bell(), instant)
            assert soon(0) >= instant
            order.append(instant)

        base = soon()
        instants = [base + late for late in (900, 100, 500, 2_000, 300)]
        async with anyio.create_task_group() as group:
            for instant in [*instants, 7, 5, 9]:
                group.start_soon(wait, instant)
        assert order == sorted([*instants, 7, 5, 9])

    with_alarms(scenario)


@needs_alarms
def test_an_alarm_does_not_wait_for_a_later_one() -> None:
    async def scenario(alarms: Alarms) -> None:
        far = waits(alarms, FAR - 1)
        await anyio.lowlevel.checkpoint()
        for _ in range(2):
            await alarms.wait(bell(), soon())
        assert not far.done()
        before = descriptors()
        alarms.tidy()
        assert descriptors() == before, "somebody waits"
        await alarms.wait(bell(), soon())
        far.cancel()
        with pytest.raises(asyncio.CancelledError):
            await far
        assert not alarms._set

    with_alarms(scenario)


@needs_alarms
@pytest.mark.parametrize("cancelled", [False, True])
def test_those_who_leave_early_are_not_kept(cancelled: bool) -> None:
    """Nor is the descriptor: see `with_alarms`."""

    async def scenario(alarms: Alarms) -> None:
        rings = [bell() for _ in range(100)]
        tasks = [waits(alarms, FAR - 1_000 + n, ring) for n, ring in enumerate(rings)]
        await anyio.lowlevel.checkpoint()
        assert len(alarms._set) == 100
        for task, ring in list(zip(tasks, rings, strict=True))[1:]:
            if cancelled:
                task.cancel()
            else:
                ring.set_result(None)
        await asyncio.wait(tasks[1:])
        assert len(alarms._set) <= 35, "swept now and then"
        assert not tasks[0].done()
        rings[0].set_result(None)
        await tasks[0]

    with_alarms(scenario)


@needs_alarms
@pytest.mark.parametrize("why", ["no descriptors left", "a loop that watches none"])
def test_where_there_is_no_descriptor_the_event_loop_rings(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise NotImplementedError

    async def scenario(alarms: Alarms) -> None:
        before, loop = descriptors(), asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            if why == "no descriptors left":
                patch.setattr(_alarms, "timer_at", lambda _: None)
            else:
                patch.setattr(loop, "add_reader", unable)
            await alarms.wait(bell(), 1)
            await alarms.wait(bell(), soon())
            far = waits(alarms, FAR - 1, ring := bell())
            await anyio.lowlevel.checkpoint()
            ring.set_result(None)
            await far
            assert descriptors() == before
        await alarms.wait(bell(), 1)
        assert descriptors() == before + 1

    with_alarms(scenario)


@needs_alarms
def test_a_nap_ends_at_its_instant_and_lets_go_of_the_descriptor() -> None:
    async def scenario(_: Alarms) -> None:
        before, clock = descriptors(), SystemClock()
        nap = Nap(clock)
        await nap.until(instant := clock.now() + 1_000)
        assert clock.now() >= instant
        nap.end()
        assert descriptors() == before

    with_alarms(scenario)


@BACKENDS
@pytest.mark.parametrize("instant", [5e6, float("inf")])
def test_a_nap_can_be_ended_before_during_and_after_another(backend: str, instant: float) -> None:
    async def scenario() -> None:
        nap = Nap(CLOCK.get())

        async def after(seconds: float) -> None:
            await anyio.sleep(seconds)
            nap.wake()

        nap.wake()
        nap.wake()
        begin = anyio.current_time()
        await nap.until(instant)
        assert anyio.current_time() == begin, "a wake-up while awake isn't lost"
        async with anyio.create_task_group() as group:
            group.start_soon(after, 1)
            await nap.until(begin * 1e6 + instant)
        assert anyio.current_time() - begin == pytest.approx(1), "two wake-ups are one"
        with anyio.move_on_after(1) as scope:
            await nap.until(begin * 1e6 + instant)
        assert scope.cancelled_caught
        await nap.until(begin * 1e6 + 3e6)
        assert anyio.current_time() - begin == pytest.approx(3), "being cancelled leaves nothing behind"

    virtual_time(scenario, backend=backend)


# --- jobs without a task ------------------------------------------------------------------------------


def test_a_job_that_waits_has_no_task() -> None:
    async def scenario() -> None:
        starts, queue = Starts(), queue_on(FarStore())
        await queue.run(partial(starts.job, "first"))
        before = len(asyncio.all_tasks())
        jobs = [await queue.add(starts.job, n) for n in range(100)]
        assert len(asyncio.all_tasks()) <= before + 2, "those that talk to the store, and wait for slots"
        assert [await job for job in jobs] == [*range(100)]
        assert starts.order == ["first", *range(100)]

    virtual_time(scenario)


@BACKENDS
def test_a_job_sees_the_context_of_where_it_was_added(backend: str) -> None:
    async def scenario() -> None:
        variable, queue = ContextVar("variable", default="none"), queue_on(FarStore())

        async def look() -> str:
            return variable.get()

        jobs = []
        for value in ("one", "two", "three"):
            variable.set(value)
            jobs.append(await queue.add(look))
        variable.set("later")
        assert [await job for job in jobs] == ["one", "two", "three"]

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_a_job_can_be_cancelled_before_it_has_a_task(backend: str) -> None:
    async def scenario() -> None:
        starts, queue = Starts(), queue_on(FarStore())
        await queue.run(partial(starts.job, 0))
        jobs = [await queue.add(starts.job, n) for n in (1, 2, 3)]
        jobs[0].cancel()
        jobs[0].cancel()
        assert jobs[0].done
        with pytest.raises(JobCancelled):
            await jobs[0]
        await jobs[1]
        jobs[2].cancel()
        begin = anyio.current_time()
        await queue.close()
        assert anyio.current_time() - begin < 0.1, "nobody waits for it"
        assert starts.order == [0, 2]
        assert starts.gaps == [pytest.approx(1, abs=0.01)], "its slot goes to the next"
        assert not queue.jobs

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_a_job_that_waits_in_the_background_may_time_out(backend: str) -> None:
    async def scenario() -> None:
        starts, queue = Starts(), queue_on(FarStore())
        await queue.run(partial(starts.job, 0))
        begin = anyio.current_time()
        job = await queue.add(starts.job, 1, timeout=0.5)
        with pytest.raises(SlotTimeout):
            await job
        assert anyio.current_time() - begin == pytest.approx(0.5)
        await queue.run(partial(starts.job, 2))
        assert starts.order == [0, 2]

    virtual_time(scenario, backend=backend)


@BACKENDS
def test_all_jobs_that_wait_learn_that_the_queue_was_closed(backend: str) -> None:
    async def scenario() -> None:
        starts, queue = Starts(), queue_on(FarStore())
        await queue.run(partial(starts.job, 0))
        jobs = [await queue.add(starts.job, n) for n in range(20)]
        await queue.close(drain=False)
        for job in jobs:
            with pytest.raises(QueueClosed):
                await job
        assert starts.order == [0]

    virtual_time(scenario, backend=backend)


# --- what a trip tells, and what a store of this process keeps ------------------------------------------


class Timed(FarStore):
    """A store that says when the command left and the answer came: `off` from the middle of the call."""

    off = 0

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        clock = CLOCK.get()
        await anyio.sleep(0.01)
        at = clock.now() + self.off
        answer = await super().apply(queue, command, now)
        await anyio.sleep(0.01)
        return replace(answer, trip=(at - 5, at + 5))


@pytest.mark.parametrize(("off", "error"), [(0, 12), (9_000, 12), (10_000, 20_002), (-10_000, 20_002)])
def test_a_trip_within_its_call_narrows_what_is_known_of_the_stores_clock(off: int, error: int) -> None:
    async def scenario() -> int:
        store = Timed()
        store.off = off
        shard = Shard("q", store, Settings(1_000_000), lookahead=16)
        await shard.command(Inspect())
        assert shard.round_trips.slow() == 20_000, "leads and notices go by the whole call"
        return shard.store_clock.error(shard.store_clock._at)

    assert virtual_time(scenario) == error


async def test_records_of_idle_keyed_queues_do_not_stay() -> None:
    clock = 1_000_000_000_000_000
    store = MemoryStore(clock=lambda: clock)
    keyed = Settings(1_000, ephemeral=True)
    await store.apply("lasting", Advance(settings=Settings(1_000), nonce="g", take=1))
    most = 0
    for n in range(10_000):
        clock += 10_000_000
        await store.apply(f"q:{n}", Advance(settings=keyed, nonce="g", take=1))
        most = max(most, len(store._records.states))
    assert most <= 64
    names = await store.names()
    assert "lasting" in names
    assert 1 < len(names) < 10
    clock += 1_000_000_000
    assert await store.names() == ["lasting"]


# --- the arithmetic of slots in a row ----------------------------------------------------------------------


def test_each_slot_of_a_run_has_its_own_ticket_and_instant() -> None:
    run = Run(Slot(7, 1_000), held=500, steps=0, count=3, step=10)
    run.after, run.before = 4, 9
    assert (run.instant, run.last, run.end) == (1_500, 1_520, 10)
    assert (run.opens, run.closes) == (1_504, 1_509)
    gos = [Go(run, ahead) for ahead in (3, 2, 1)]
    assert [go.ticket for go in gos] == [7, 8, 9]
    assert [go.instant for go in gos] == [1_500, 1_510, 1_520]
    assert [(go.opens, go.closes) for go in gos] == [(1_504, 1_509), (1_514, 1_519), (1_524, 1_529)]
    assert [*run] == [Slot(7, 1_000), Slot(8, 1_010), Slot(9, 1_020)], "on the queue's clock"


def test_a_run_is_open_from_its_last_slot_to_the_end_of_its_first() -> None:
    run = Run(Slot(1, 1_000), held=0, steps=0, count=3, step=10)
    run.after, run.before = 4, 100
    assert [run.all_open(at) for at in (1_023, 1_024, 1_100, 1_101)] == [False, True, True, False]


def row(first: int, count: int = 1) -> list[Slot]:
    """Tickets in a row, ten apart."""
    return [Slot(ticket, 10 * ticket) for ticket in range(first, first + count)]


def test_slots_are_used_from_the_first_on_and_a_go_stays_what_it_was() -> None:
    slots = Slots()
    slots.granted.append(Run(Slot(1, 10), held=0, steps=0, count=2, step=10))
    slots.granted.append(Run(Slot(3, 30), held=0, steps=0))
    slots.tickets.extend(row(4))
    assert slots.told == 3
    assert [*slots.coming()] == row(1, 4)
    gos = []
    for left in (2, 1, 0):
        gos.append(slots.use())
        assert slots.told == left
        assert [*slots.coming()] == row(5 - left - 1, left + 1)
    assert [go.slot for go in gos] == row(1, 3)
    assert not slots.granted
