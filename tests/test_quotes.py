"""A quote says when a job would begin if it came now, and takes nothing."""

from __future__ import annotations

import anyio
import pytest

from intervalq import IntervalQueue, QueueNotFound
from intervalq.errors import InvalidOption
from virtual_store import BACKENDS, FarStore, Starts, in_virtual_time, queue_on


@BACKENDS
@in_virtual_time
async def test_a_quote_is_when_the_job_then_begins(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store), queue_on(FarStore(store.behind))
    assert await queue.quote() == 0  # there is no record yet
    await queue.run(lambda: starts.job("run"), timeout=1)
    assert await queue.quote() == pytest.approx(1, abs=0.01)
    for number in range(40):  # more than have tickets
        await (queue if number % 2 else other).add(starts.job, number, cost=1 + number % 3)
    record = await queue.inspect()
    for handle in (queue, other):
        quote = await handle.quote()
        assert quote is not None
        assert quote > 40
        assert (await handle.quote(cost=7)) == pytest.approx(quote, abs=0.1)
    assert (await queue.inspect()).ticket == record.ticket
    await queue.close()
    await other.close()


@BACKENDS
@pytest.mark.parametrize("jobs", [0, 1, 5, 16, 17, 60])
@pytest.mark.parametrize("costs", [1, 3])
@in_virtual_time
async def test_a_quote_counts_the_jobs_that_wait_here(jobs: int, costs: int, backend: str) -> None:
    queue, starts, begin = queue_on(FarStore()), Starts(), anyio.current_time()
    for number in range(jobs):
        await queue.add(starts.job, number, cost=1 + number % costs)
    quote = await queue.quote()
    await (await queue.add(starts.job, "quoted"))
    assert starts.log[-1][0] - begin == pytest.approx(quote, abs=0.11)


@BACKENDS
@in_virtual_time
async def test_a_quote_counts_holds_and_priorities(backend: str) -> None:
    queue, starts = queue_on(FarStore()), Starts()
    jobs = [await queue.add(starts.job, number, priority=-1) for number in range(5)]
    await jobs[0]
    assert await queue.quote() == pytest.approx(1, abs=0.01)  # the others come behind it
    await queue.cool_down(10)
    assert await queue.quote() == pytest.approx(11, abs=0.2)
    for job in jobs:
        job.cancel()


@in_virtual_time
async def test_a_quote_needs_a_queue() -> None:
    with pytest.raises(QueueNotFound):
        await IntervalQueue("none", store=FarStore()).quote()
    with pytest.raises(InvalidOption, match="cost"):
        await queue_on(FarStore()).quote(cost=0)
