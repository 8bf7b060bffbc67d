"""Shards in virtual time: cancelled at every await, closed, idle, cut off, with lost answers and records."""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from intervalq import IntervalQueue, Job, JobCancelled, QueueClosed, StoreUnavailable
from intervalq.rules import Advance, Settings
from intervalq.testing import virtual_time
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


@BACKENDS
@in_virtual_time
async def test_a_cancelled_job_leaves_the_queue_and_its_slot_goes_to_the_next(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    jobs: list[Job[object]] = [await queue.add(starts.job, n) for n in range(4)]
    jobs[1].cancel()
    with pytest.raises(JobCancelled):
        await jobs[1]
    for job in (jobs[0], jobs[2], jobs[3]):
        await job
    assert starts.order == [0, 2, 3]
    assert max(starts.gaps) < 1.01


@BACKENDS
@in_virtual_time
async def test_unused_tickets_go_back_when_the_last_job_is_cancelled(backend: str) -> None:
    store, starts = FarStore(), Starts()
    hourly = queue_on(store, interval=3_600)
    await hourly.run(partial(starts.job, "first"))
    for job in [await hourly.add(starts.job, n) for n in range(5)]:
        job.cancel()
    await anyio.sleep(1)
    begin = anyio.current_time()
    job = await hourly.add(starts.job, "second")
    assert job.due is not None
    await job
    assert (anyio.current_time() - begin) < 3_600


class _CancelAt:
    """Drives a coroutine, and cancels its scope at one of its awaits."""

    def __init__(self, inner: types.CoroutineType[Any, Any, Any], scope: anyio.CancelScope, at: int) -> None:
        self.inner, self.scope, self.at, self.steps = inner, scope, at, 0

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = self.inner.throw(error) if error is not None else self.inner.send(value)
            except StopIteration as done:
                return done.value
            if self.steps == self.at:
                self.scope.cancel()
            self.steps += 1
            error = value = None
            try:
                value = yield step
            except BaseException as thrown:  # noqa: BLE001 - passed on to the coroutine
                error = thrown


async def _by_run(queue: IntervalQueue, starts: Starts) -> None:
    await queue.run(partial(starts.job, "cancelled", 0.2))


async def _by_slot(queue: IntervalQueue, starts: Starts) -> None:
    async with queue.slot():
        await starts.job("cancelled", 0.2)


async def _by_add(queue: IntervalQueue, starts: Starts) -> None:
    job = await queue.add(starts.job, "cancelled", 0.2)
    try:
        await job
    finally:
        job.cancel()


async def _by_map(queue: IntervalQueue, starts: Starts) -> None:
    results = queue.map(starts.job, ["cancelled", "cancelled"])
    try:
        async for _ in results:
            pass
    finally:
        await results.aclose()


async def _by_verbs(queue: IntervalQueue, starts: Starts) -> None:
    await queue.pause()
    await queue.inspect()
    await queue.resume()


@BACKENDS
@pytest.mark.parametrize("way", [_by_run, _by_slot, _by_add, _by_map, _by_verbs])
def test_cancelled_at_every_await_the_others_go_on(
    backend: str, way: Callable[[IntervalQueue, Starts], Awaitable[None]]
) -> None:
    """Whatever the cancelled call was doing, all other jobs start at the pace, and nothing is left behind."""
    ended = False
    for at in range(60):

        async def scenario(at: int = at) -> tuple[Starts, bool]:
            store, starts = FarStore(delay=0.004), Starts()
            queue, other = queue_on(store, max_running=3), queue_on(FarStore(store.behind), max_running=3)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(queue.run, partial(starts.job, "before")))
                await anyio.lowlevel.checkpoint()
                with anyio.CancelScope() as scope:
                    driver = _CancelAt(way(queue, starts), scope, at)  # type: ignore[arg-type]
                    await driver
                await queue.resume()
                group.start_soon(partial(queue.run, partial(starts.job, "same")))
                group.start_soon(partial(other.run, partial(starts.job, "other")))
            await queue.close()
            await other.close()
            return starts, driver.steps <= at

        starts, ended = virtual_time(scenario, backend=backend, horizon=200)
        assert {"before", "same", "other"} <= set(starts.order), f"cancelled at await {at}"
        assert min(starts.gaps) > 0.89, f"cancelled at await {at}"
        if ended:
            break
    assert ended, "the call has more awaits than were tried"


@BACKENDS
@in_virtual_time
async def test_an_idle_shard_does_nothing(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await gather(*(partial(queue.run, partial(starts.job, n)) for n in range(3)))
    await anyio.lowlevel.checkpoint()
    calls = len(store.calls)
    await anyio.sleep(10_000)
    assert len(store.calls) == calls
    tasks = [task for task in anyio.get_running_tasks() if "intervalq" in repr(task.coro)]
    assert tasks == []
    if backend == "asyncio":
        assert len(asyncio.all_tasks()) == 1
        assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


@BACKENDS
@in_virtual_time
async def test_closing_drains(backend: str) -> None:
    starts = Starts()
    async with queue_on(FarStore()) as queue:
        for n in range(5):
            await queue.add(starts.job, n, 2.5)
    with pytest.raises(QueueClosed):
        await queue.add(starts.job, "late")
    with pytest.raises(QueueClosed):
        async with queue.slot():
            pass
    assert starts.order == [0, 1, 2, 3, 4]


@BACKENDS
@in_virtual_time
async def test_closing_without_draining_tells_everybody_who_waits(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    jobs = [await queue.add(starts.job, n) for n in range(5)]
    await jobs[0]
    await queue.close(drain=False)
    for job in jobs[1:]:
        with pytest.raises(QueueClosed):
            await job
    state = await queue_on(store).inspect()
    next_slot, now = state.next_slot, state.now
    assert starts.order == [0]
    assert next_slot is not None
    assert next_slot - now < 1.01, "the unused tickets were given back"


@BACKENDS
@in_virtual_time
async def test_jobs_wait_while_the_store_is_away_and_none_starts_unpaced(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, "before"))
    store.is_down = True
    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(30)
        assert len(starts.log) == 1
        store.is_down = False
    assert len(starts.log) == 4
    assert min(starts.gaps) > 0.99


@BACKENDS
@in_virtual_time
async def test_jobs_fail_when_the_store_stays_away_and_the_handle_works_again_after(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, "before"))
    store.is_down = True
    begin = anyio.current_time()
    with pytest.raises(StoreUnavailable, match="it is down"):
        await queue.run(partial(starts.job, "never"))
    assert 55 < anyio.current_time() - begin < 70
    store.is_down = False
    await queue.run(partial(starts.job, "after"))
    assert starts.order == ["before", "after"]


@BACKENDS
@in_virtual_time
async def test_a_store_that_is_away_at_the_start_is_told_at_once(backend: str) -> None:
    store = FarStore()
    store.is_down = True
    begin = anyio.current_time()
    with pytest.raises(StoreUnavailable):
        await queue_on(store).add(Starts().job, 0)
    with pytest.raises(StoreUnavailable):
        await queue_on(store).run(partial(Starts().job, 0))
    assert anyio.current_time() - begin < 1


@BACKENDS
@pytest.mark.parametrize("seed", range(12))
@in_virtual_time
async def test_lost_answers_cost_slots_never_spacing(backend: str, seed: int) -> None:
    store, starts = FarStore(), Starts()
    lines = [FarStore(store.behind, delay=0.005, seed=seed * 10 + n) for n in range(3)]
    queues = [queue_on(line) for line in lines]
    for queue in queues:
        await queue.run(partial(starts.job, "attached"))
    for line in lines:
        line.loses_answers = 0.3
    await gather(*(partial(queue.run, partial(starts.job, n)) for n in range(8) for queue in queues))
    assert len(starts.log) == 3 + 24
    assert min(starts.gaps) > 0.9


@BACKENDS
@in_virtual_time
async def test_a_longer_interval_holds_for_jobs_that_wait_already(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store), queue_on(FarStore(store.behind))
    async with anyio.create_task_group() as group:
        for n in range(4):
            group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(0.5)
        await other.configure(interval=10)
    assert [round(gap) for gap in starts.gaps] == [10, 10, 10]


@BACKENDS
@in_virtual_time
async def test_losing_the_record_means_a_quiet_interval_and_new_tickets(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    async with anyio.create_task_group() as group:
        for n in range(6):
            group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(2.5)
        store.behind._records.states.clear()
    regressions = (await queue.inspect()).regressions
    assert len(starts.log) == 6
    assert min(starts.gaps) > 0.99
    assert regressions == 1


@BACKENDS
@in_virtual_time
async def test_map_gives_results_with_a_bounded_window(backend: str) -> None:
    starts, read = Starts(), 0

    async def items() -> Any:
        nonlocal read
        for n in range(30):
            read += 1
            yield n

    queue, most, results = queue_on(FarStore()), 0, []
    async for result in queue.map(starts.job, items(), window=5, ordered=True):
        results.append(result)
        most = max(most, read - len(results))
    assert [result async for result in queue.map(starts.job, [])] == []
    assert results == list(range(30))
    assert most <= 6


@BACKENDS
@in_virtual_time
async def test_an_error_ends_a_map_and_cancels_the_rest(backend: str) -> None:
    starts = Starts()

    async def fails(n: int) -> None:
        await starts.job(n)
        if n == 2:
            raise ValueError("third")

    queue = queue_on(FarStore())
    with pytest.raises(ValueError, match="third"):
        async for _ in queue.map(fails, range(100)):
            pass
    await anyio.sleep(50)
    assert starts.order == [0, 1, 2]


@BACKENDS
@in_virtual_time
async def test_keyed_queues_do_not_wait_for_one_another_and_leave_nothing_behind(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, interval=5)
    begin = anyio.current_time()
    await gather(*(partial(queue[f"tenant-{n}"].run, partial(starts.job, n)) for n in range(100)))
    assert anyio.current_time() - begin < 0.1
    assert len(await store.names()) == 100
    gc.collect()
    assert len(queue._children) == 0
    await anyio.sleep(100)
    await queue["another"].run(partial(starts.job, "another"))
    assert await store.names() == ["q:another"]


@BACKENDS
@in_virtual_time
async def test_the_jobs_of_a_dead_shard_stop_counting_when_their_leases_lapse(backend: str) -> None:
    store, starts = FarStore(), Starts()
    limited = Settings(1_000_000, max_running=1)
    dead = Advance(settings=limited, nonce="g", take=1, lease=10_000_000)
    await store.apply("q", dead)
    begin = anyio.current_time()
    await queue_on(store, max_running=1).run(partial(starts.job, "alive"))
    assert (starts.log[0][0] - begin) == pytest.approx(11, abs=0.1)
