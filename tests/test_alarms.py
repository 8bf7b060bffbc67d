"""Alarms ring at their instants, naps end when they should, and neither leaves anything behind."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from intervalq._timing import timers
from intervalq._timing.backends import Bell
from intervalq._timing.clock import CLOCK, SystemClock
from intervalq._timing.timers import CLOCK_ID, FAR, Alarms, alarms_of
from intervalq._timing.wakeable_sleep import Nap
from intervalq.testing import virtual_time
from virtual_store import BACKENDS

needs_alarms = pytest.mark.skipif(timers._libc is None, reason="this system has no timerfd")


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
                patch.setattr(timers, "timer_at", lambda _: None)
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


@needs_alarms
def test_an_event_loop_that_is_over_is_not_kept() -> None:
    async def nap() -> weakref.ref[asyncio.AbstractEventLoop]:
        await Nap(SystemClock()).until(soon(0))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(nap())
    gc.collect()
    assert loop() is None
