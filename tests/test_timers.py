"""Timers fire at their instants, sleeps end when they should, and neither leaves anything behind."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from intervalq._timing import timers as timers_module
from intervalq._timing.backends import Waker
from intervalq._timing.clock import CLOCK, SystemClock
from intervalq._timing.timers import CLOCK_ID, FAR, Timers, timers_of
from intervalq._timing.wakeable_sleep import WakeableSleep
from virtual_store import BACKENDS, in_virtual_time

needs_timerfd = pytest.mark.skipif(timers_module._libc is None, reason="this system has no timerfd")


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def soon(micros: int = 1_000) -> int:
    return time.clock_gettime_ns(CLOCK_ID) // 1_000 + micros


def with_timers(scenario: Callable[[Timers], Awaitable[None]]) -> None:
    """Run in a real event loop, which afterwards must have no more descriptors than before."""

    async def whole() -> None:
        before, timers = descriptors(), timers_of(asyncio.get_running_loop())
        assert timers is not None
        with anyio.fail_after(60):
            await scenario(timers)
        timers.tidy()
        assert not timers._set
        assert descriptors() == before

    asyncio.run(whole())


def new_waker() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def waits(timers: Timers, instant: int, waker: Waker | None = None) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(timers.wait(waker or new_waker(), instant))


@needs_timerfd
@pytest.mark.parametrize("instant", [0, 1, 2, 1_000_000])
def test_a_timer_in_the_past_goes_off(instant: int) -> None:
    async def scenario(timers: Timers) -> None:
        before = descriptors()
        await timers.wait(new_waker(), instant)
        assert descriptors() == before + 1, "it is kept for the next one"
        await timers.wait(new_waker(), instant)
        assert descriptors() == before + 1

    with_timers(scenario)


@needs_timerfd
def test_timers_go_off_in_the_order_of_their_instants_and_not_before() -> None:
    async def scenario(timers: Timers) -> None:
        order: list[int] = []

        async def wait(instant: int) -> None:
            await timers.wait(new_waker(), instant)
            assert soon(0) >= instant
            order.append(instant)

        base = soon()
        instants = [base + late for late in (900, 100, 500, 2_000, 300)]
        async with anyio.create_task_group() as group:
            for instant in [*instants, 7, 5, 9]:
                group.start_soon(wait, instant)
        assert order == sorted([*instants, 7, 5, 9])

    with_timers(scenario)


@needs_timerfd
def test_a_timer_does_not_wait_for_a_later_one() -> None:
    async def scenario(timers: Timers) -> None:
        far = waits(timers, FAR - 1)
        await anyio.lowlevel.checkpoint()
        for _ in range(2):
            await timers.wait(new_waker(), soon())
        assert not far.done()
        before = descriptors()
        timers.tidy()
        assert descriptors() == before, "somebody waits"
        await timers.wait(new_waker(), soon())
        far.cancel()
        with pytest.raises(asyncio.CancelledError):
            await far
        assert not timers._set

    with_timers(scenario)


@needs_timerfd
@pytest.mark.parametrize("instant", [0, 1])
def test_a_timer_in_the_past_does_not_wait_for_one_that_is_set_next(instant: int) -> None:
    async def scenario(timers: Timers) -> None:
        past = waits(timers, instant)
        far = waits(timers, FAR - 1)  # it is set before the event loop sees that the first one has gone off
        await past
        assert not far.done()
        far.cancel()
        with pytest.raises(asyncio.CancelledError):
            await far

    with_timers(scenario)


@needs_timerfd
@pytest.mark.parametrize("cancelled", [False, True])
def test_those_who_leave_early_are_not_kept(cancelled: bool) -> None:
    """The descriptor isn't kept either: see `with_timers`."""

    async def scenario(timers: Timers) -> None:
        wakers = [new_waker() for _ in range(100)]
        tasks = [waits(timers, FAR - 1_000 + n, waker) for n, waker in enumerate(wakers)]
        await anyio.lowlevel.checkpoint()
        assert len(timers._set) == 100
        for task, waker in list(zip(tasks, wakers, strict=True))[1:]:
            if cancelled:
                task.cancel()
            else:
                waker.set_result(None)
        await asyncio.wait(tasks[1:])
        assert len(timers._set) <= 35, "swept now and then"
        assert not tasks[0].done()
        wakers[0].set_result(None)
        await tasks[0]

    with_timers(scenario)


@needs_timerfd
@pytest.mark.parametrize("why", ["no descriptors left", "a loop that watches none"])
def test_where_there_is_no_descriptor_the_event_loop_wakes(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise NotImplementedError

    async def scenario(timers: Timers) -> None:
        before, loop = descriptors(), asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            if why == "no descriptors left":
                patch.setattr(timers_module, "timer_at", lambda _: None)
            else:
                patch.setattr(loop, "add_reader", unable)
            await timers.wait(new_waker(), 1)
            await timers.wait(new_waker(), soon())
            far = waits(timers, FAR - 1, waker := new_waker())
            await anyio.lowlevel.checkpoint()
            waker.set_result(None)
            await far
            assert descriptors() == before
        await timers.wait(new_waker(), 1)
        assert descriptors() == before + 1

    with_timers(scenario)


@needs_timerfd
def test_a_sleep_ends_at_its_instant_and_lets_go_of_the_descriptor() -> None:
    async def scenario(_: Timers) -> None:
        before, clock = descriptors(), SystemClock()
        sleep = WakeableSleep(clock)
        await sleep.until(instant := clock.now() + 1_000)
        assert clock.now() >= instant
        sleep.end()
        assert descriptors() == before

    with_timers(scenario)


@BACKENDS
@pytest.mark.parametrize("instant", [5e6, float("inf")])
@in_virtual_time
async def test_a_sleep_can_be_ended_before_during_and_after_another(backend: str, instant: float) -> None:
    sleep = WakeableSleep(CLOCK.get())

    async def after(seconds: float) -> None:
        await anyio.sleep(seconds)
        sleep.wake()

    sleep.wake()
    sleep.wake()
    begin = anyio.current_time()
    await sleep.until(instant)
    assert anyio.current_time() == begin, "a wake-up while awake isn't lost"
    async with anyio.create_task_group() as group:
        group.start_soon(after, 1)
        await sleep.until(begin * 1e6 + instant)
    assert anyio.current_time() - begin == pytest.approx(1), "two wake-ups are one"
    with anyio.move_on_after(1) as scope:
        await sleep.until(begin * 1e6 + instant)
    assert scope.cancelled_caught
    await sleep.until(begin * 1e6 + 3e6)
    assert anyio.current_time() - begin == pytest.approx(3), "being cancelled leaves nothing behind"


@needs_timerfd
def test_an_event_loop_that_is_over_is_not_kept() -> None:
    async def sleep() -> weakref.ref[asyncio.AbstractEventLoop]:
        await WakeableSleep(SystemClock()).until(soon(0))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(sleep())
    gc.collect()
    assert loop() is None
