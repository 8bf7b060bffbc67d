"""Jobs of `add` that wait in the background: without a task, in their own context, with every kind of end."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial

import anyio
import pytest

from intervalq import IntervalQueue, Job, JobCancelled, QueueClosed, SlotTimeout
from intervalq._queue.attempts import start
from virtual_store import BACKENDS, FarStore, Starts, in_virtual_time, queue_on


@in_virtual_time
async def test_a_job_that_waits_has_no_task() -> None:
    starts, queue = Starts(), queue_on(FarStore())
    await queue.run(partial(starts.job, "first"))
    before = len(asyncio.all_tasks())
    jobs = [await queue.add(starts.job, n) for n in range(100)]
    assert len(asyncio.all_tasks()) <= before + 2, "those that talk to the store, and wait for slots"
    assert [await job for job in jobs] == [*range(100)]
    assert starts.order == ["first", *range(100)]


@BACKENDS
@in_virtual_time
async def test_a_job_sees_the_context_of_where_it_was_added(backend: str) -> None:
    variable, queue = ContextVar("variable", default="none"), queue_on(FarStore())

    async def look() -> str:
        return variable.get()

    jobs = []
    for value in ("one", "two", "three"):
        variable.set(value)
        jobs.append(await queue.add(look))
    variable.set("later")
    assert [await job for job in jobs] == ["one", "two", "three"]


@BACKENDS
@in_virtual_time
async def test_a_job_can_be_cancelled_before_it_has_a_task(backend: str) -> None:
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
    assert not queue._jobs


@BACKENDS
@in_virtual_time
async def test_a_job_that_waits_in_the_background_may_time_out(backend: str) -> None:
    starts, queue = Starts(), queue_on(FarStore())
    await queue.run(partial(starts.job, 0))
    await anyio.sleep(1)
    await queue.pause()  # the hold may end in time, so the job waits
    begin = anyio.current_time()
    job = await queue.add(starts.job, 1, timeout=0.5)
    with pytest.raises(SlotTimeout):
        await job
    assert anyio.current_time() - begin == pytest.approx(0.5)
    await queue.resume()
    await queue.run(partial(starts.job, 2))
    assert starts.order == [0, 2]


@BACKENDS
@in_virtual_time
async def test_all_jobs_that_wait_learn_that_the_queue_was_closed(backend: str) -> None:
    starts, queue = Starts(), queue_on(FarStore())
    await queue.run(partial(starts.job, 0))
    jobs = [await queue.add(starts.job, n) for n in range(20)]
    await queue.close(drain=False)
    for job in jobs:
        with pytest.raises(QueueClosed):
            await job
    assert starts.order == [0]


@in_virtual_time
async def test_a_job_that_comes_when_the_one_before_was_woken_begins_too() -> None:
    """It isn't the first in the queue, so no event tells it of slots that were granted before."""
    queue = IntervalQueue("q", interval=1e-6, burst=1000, lookahead=None, store=FarStore())
    later: list[Job[int]] = []

    async def job() -> int:
        return 1

    await queue.run(job)
    first = start(queue, job, (), queue._plan())
    begin = first._waiter.start
    assert begin is not None

    def add() -> None:
        later.append(start(queue, job, (), queue._plan()))

    def begin_and_add() -> None:
        asyncio.get_running_loop().call_soon(add)  # the next one, before the first one's task has looked
        begin()

    first._waiter.start = begin_and_add
    with anyio.fail_after(100):
        assert await first == 1
        assert await later[0] == 1
    await queue.close()
