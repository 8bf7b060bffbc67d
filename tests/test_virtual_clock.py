"""Tests of users: what waits is skipped, on handles of any kind that a module made before."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from intervalq import IntervalQueue, SlotTimeout, sync
from intervalq._timing.clock import CLOCK, SystemClock
from intervalq.schedules import Schedules
from intervalq.tasks import Claim, Snooze, Tasks
from intervalq.tasks.sync import Tasks as BlockingTasks
from intervalq.testing import VirtualClock, no_waiting, virtual_clock, virtual_time
from intervalq.testing import clock as clock_module
from intervalq.testing.virtual import Stuck

AWAY = "redis://127.0.0.1:9"  # nobody listens there
PLAIN = sync.IntervalQueue("plain", interval="1h", store=AWAY)
QUEUE = IntervalQueue("module", interval="1h", store=AWAY)
TASKS = Tasks(AWAY)
SCHEDULES = Schedules(AWAY)
CALLS: list[float] = []

Clock = Callable[[], AbstractContextManager[VirtualClock]]
BOTH = pytest.mark.parametrize("clock", [no_waiting, virtual_clock])


@SCHEDULES.every("5m")
def every_five_minutes() -> None:
    CALLS.append(CLOCK.get().now() / 1e6)


@QUEUE
def blocking(number: int) -> int:
    return number


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Only asyncio's own event loops are virtual."""
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    CALLS.clear()
    yield
    assert isinstance(CLOCK.get(), SystemClock)
    assert asyncio.BaseEventLoop.time.__name__ == "time"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, what is waited for comes in this time."""
    monkeypatch.setattr(clock_module, "_PATIENCE", 60.0)


async def three_starts(queue: IntervalQueue) -> list[float]:
    starts = []
    for _ in range(3):
        async with queue.slot():
            starts.append(CLOCK.get().now() / 1e6)
    return starts


@BOTH
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_queues_of_a_module_keep_their_pace_by_the_clock(clock: Clock, backend: str) -> None:
    with clock() as now:
        starts = anyio.run(three_starts, QUEUE, backend=backend)
        assert [round(later - earlier) for earlier, later in pairwise(starts)] == [3600, 3600]
        assert now.elapsed >= 7200


@BOTH
def test_blocking_queues_and_plain_functions_too(clock: Clock) -> None:
    for _ in range(2):  # the second time, they have been used with another clock
        with clock() as now:
            assert [blocking(number) for number in range(3)] == [0, 1, 2]
            for _ in range(3):
                with PLAIN.slot():
                    pass
            # The two queues waited for two hours each, one after the other.
            assert 14_300 < now.elapsed < 14_500


@BOTH
def test_jobs_in_threads_and_futures(clock: Clock) -> None:
    with clock():
        futures = [PLAIN.add(time.sleep, 0.001) for _ in range(5)]
        assert [future.result(10) for future in futures] == [None] * 5
        assert list(PLAIN.map(str, range(5), ordered=True)) == list("01234")


def test_retries_and_cool_downs_wait_by_the_clock() -> None:
    failing = IntervalQueue("failing", interval=1, retries=3, backoff=60, store=AWAY)
    calls = []

    async def call() -> None:
        calls.append(CLOCK.get().now())
        raise BlockingIOError

    async def scenario() -> None:
        await failing.cool_down("10m")
        with pytest.raises(BlockingIOError):
            await failing.run(call)

    with no_waiting() as clock:
        anyio.run(scenario)
        assert len(calls) == 4
        assert clock.elapsed > 600
        plain = sync.IntervalQueue("plainly", interval=1, retries=3, backoff=60, store=AWAY)
        with pytest.raises(ZeroDivisionError):
            plain.run(lambda: 1 // 0)


def test_a_timeout_is_one() -> None:
    with no_waiting():
        PLAIN.run(int)
        with pytest.raises(SlotTimeout):
            PLAIN.run(int, timeout="1m")


def test_records_are_shared_by_url_and_forgotten_after_each_test() -> None:
    for _ in range(2):
        with virtual_clock():
            assert PLAIN.run(int) == 0
            assert sync.IntervalQueue("plain", store=AWAY).inspect().ticket == 1


async def test_a_handle_that_this_loop_has_used_before(tmp_path: Path) -> None:
    queue = IntervalQueue("used", interval="1h", store=str(tmp_path / "state.db"))
    async with queue.slot():
        pass
    with virtual_clock() as clock:
        await three_starts(queue)
        assert clock.elapsed == pytest.approx(7200)
    assert (await queue.inspect()).ticket == 1
    await queue.close(drain=False)


async def test_delays_of_tasks(virtual_clock: VirtualClock) -> None:
    painted = []

    async def paint(task: Claim) -> None:
        painted.append((task.value, round(virtual_clock.elapsed)))
        if task.value == "blue" and len(painted) == 1:
            raise Snooze("10m")

    TASKS.worker("cars")(paint)
    async with TASKS:
        await TASKS.insert("cars", "red", delay="3m")
        await TASKS.insert("cars", "blue", delay="2m")
        await TASKS.run(until_empty=True)
    names, at = zip(*painted, strict=True)
    assert names == ("blue", "red", "blue")
    assert [round(seconds / 60, 1) for seconds in at] == [2, 3, 12]


def test_plain_workers_run_while_time_stands_still(patience: None, virtual_clock: VirtualClock) -> None:
    tasks = Tasks(AWAY)
    took = []

    @tasks.worker("slow")
    def work(task: Claim) -> None:
        before = virtual_clock.elapsed
        time.sleep(0.005)
        took.append(virtual_clock.elapsed - before)

    async def scenario() -> None:
        async with tasks:
            for number in range(3):
                await tasks.insert("slow", number)
            await tasks.run(until_empty=True)

    BlockingTasks(AWAY).insert("slow", "by another handle")
    anyio.run(scenario)
    assert took == [0.0] * 4


async def test_schedules_fire_at_their_times(patience: None, virtual_clock: VirtualClock) -> None:
    with anyio.move_on_after(3600):
        await SCHEDULES.run()
    assert len(CALLS) == 12
    assert {round(later - earlier, 3) for earlier, later in pairwise(CALLS)} == {300}
    assert virtual_clock.elapsed == pytest.approx(3600)


async def test_own_sleeps_and_threads(virtual_clock: VirtualClock) -> None:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(3600):
            await anyio.sleep_forever()
    await asyncio.sleep(0.25)  # noqa: TID251 - as users call it
    now = virtual_clock.elapsed
    assert now == pytest.approx(3600.25)
    assert await to_thread.run_sync(lambda: virtual_clock.elapsed) == now
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: virtual_clock.elapsed) == now


async def test_a_thread_that_waits_for_a_queue_lets_time_pass(
    patience: None, virtual_clock: VirtualClock
) -> None:
    def three() -> None:
        for _ in range(3):
            PLAIN.run(int)

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 2 * 3600)
        await to_thread.run_sync(three)
    assert 7190 < virtual_clock.elapsed < 7300


async def test_sockets_are_waited_for(patience: None, virtual_clock: VirtualClock) -> None:
    """The answer comes in real time, before a virtual timeout of a second is over."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        with anyio.fail_after(1):
            async with await anyio.connect_tcp("127.0.0.1", server.getsockname()[1]) as stream:
                assert await stream.receive() == b"hello"
        thread.join()


def test_advance_lets_time_pass_for_everybody(virtual_clock: VirtualClock) -> None:
    PLAIN.run(int)
    virtual_clock.advance("30m")
    assert virtual_clock.elapsed == 1800
    PLAIN.run(int)
    assert virtual_clock.elapsed == pytest.approx(3600, abs=0.01)


def test_virtual_time_on_a_queue_of_a_module() -> None:
    starts = virtual_time(three_starts, QUEUE)
    assert [later - earlier for earlier, later in pairwise(starts)] == pytest.approx([3600, 3600])

    async def block() -> None:
        blocking(1)

    with pytest.raises(Stuck, match="use virtual_clock"):
        virtual_time(block)


def test_nothing_keeps_the_shards() -> None:
    with virtual_clock():
        PLAIN.run(int)
    gc.collect()


def test_the_plugin_costs_nothing_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import sys

            def test_without():
                assert not [name for name in sys.modules if name.split(".")[0] in ("intervalq", "anyio")]

            def test_with(no_waiting, virtual_clock):
                assert virtual_clock.elapsed == 0
            """
        )
    )
    done = subprocess.run(  # without plugins of others, which may import anyio
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_intervalq"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout


def test_a_coroutine_instead_of_its_function_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match=r"give it three_starts instead of three_starts\(\)"):
        virtual_time(three_starts(QUEUE))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
