"""Plain functions under `virtual_time`: time stands still while they run, however slow their threads are."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from itertools import pairwise

import anyio
import pytest
from anyio import from_thread, to_thread

from intervalq import IntervalQueue, sync
from intervalq.schedules import Schedules
from intervalq.tasks import Claim, Tasks
from intervalq.testing import virtual, virtual_time
from intervalq.testing.virtual import Stuck

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])

SLOW = partial(time.sleep, 0.02)
"""What a busy machine does to a thread: far longer than a loop takes for a year of timers."""


@BACKENDS
def test_time_stands_still_while_a_function_runs_and_passes_while_it_waits(backend: str) -> None:
    async def scenario() -> list[float]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 100)
            at = []
            with anyio.fail_after(1):
                await to_thread.run_sync(SLOW)
            at.append(anyio.current_time())
            await to_thread.run_sync(from_thread.run, anyio.sleep, 7)
            at.append(anyio.current_time())
            async with anyio.create_task_group() as both:
                both.start_soon(to_thread.run_sync, SLOW)
                both.start_soon(to_thread.run_sync, lambda: [SLOW(), from_thread.run(anyio.sleep, 3), SLOW()])
            at.append(anyio.current_time())
        return [each - at[0] for each in [*at, anyio.current_time()]]

    assert virtual_time(scenario, backend=backend) == pytest.approx([0, 7, 10, 100])


@BACKENDS
def test_plain_functions_of_queues_workers_and_schedules(backend: str) -> None:
    async def scenario() -> list[float]:
        queue, tasks, schedules = (
            IntervalQueue("q", interval="1h"),
            Tasks("memory://"),
            Schedules("memory://"),
        )
        at: list[float] = []

        def note(_: object = None) -> None:
            SLOW()
            at.append(round(from_thread.run_sync(anyio.current_time) - began))

        @tasks.worker("q")
        def work(task: Claim) -> None:
            note()

        schedules.every("30m", name="half-hourly")(note)
        began = anyio.current_time()
        for job in [await queue.add(note) for _ in range(3)]:
            await job
        async with tasks:
            await tasks.insert("q", 1, delay="1h")
            await tasks.run(until_empty=True)
        with anyio.move_on_after(2 * 3600):
            await schedules.run()
        return at

    at = virtual_time(scenario, backend=backend)
    assert at[:4] == pytest.approx([0, 3600, 7200, 10800], abs=2)
    assert len(at) == 8
    assert [later - earlier for earlier, later in pairwise(at[4:])] == [1800] * 3


def test_threads_of_asyncio() -> None:
    async def scenario() -> float:
        timer = asyncio.create_task(anyio.sleep(100))
        await asyncio.to_thread(SLOW)
        at = anyio.current_time()
        await timer
        return at

    assert virtual_time(scenario) == 0


def test_a_thread_that_time_does_not_wait_for_is_named() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(int,))
        thread.start()
        thread.join()
        await anyio.sleep(1)

    with pytest.raises(Stuck, match=r"another thread .* use virtual_clock\(\)"):
        virtual_time(scenario)


def test_a_thread_that_was_abandoned_may_end_later() -> None:
    async def scenario() -> float:
        begun, go_on, ended = anyio.Event(), threading.Event(), threading.Event()

        def work() -> None:
            from_thread.run(anyio.sleep, 60)

        def wait() -> None:
            from_thread.run_sync(begun.set)
            go_on.wait()
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(partial(to_thread.run_sync, wait, abandon_on_cancel=True))
            await begun.wait()
            group.cancel_scope.cancel()
        await anyio.sleep(50)
        go_on.set()
        ended.wait()
        await to_thread.run_sync(work)
        return anyio.current_time()

    assert virtual_time(scenario) == 110


def test_a_thread_that_waits_for_time_by_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "_PATIENCE", 0.01)
    come = threading.Event()

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(to_thread.run_sync, come.wait, None, abandon_on_cancel=True))
            await anyio.sleep(10)
            come.set()

    with pytest.raises(Stuck, match=r"run in a thread for 0.01 s.* use virtual_clock\(\)"):
        virtual_time(scenario)
    come.set()


@BACKENDS
def test_blocking_queues_are_refused_in_threads_too(backend: str) -> None:
    queue = sync.IntervalQueue("blocking", interval=1)

    async def scenario() -> None:
        await to_thread.run_sync(lambda: queue.run(int))

    with pytest.raises(Stuck, match=r"use virtual_clock\(\)"):
        virtual_time(scenario, backend=backend)
