"""When jobs are told that slots come: in a hold, behind jobs that need more, and by answers to others."""

from __future__ import annotations

import anyio
import pytest

from intervalq import SlotTimeout
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


@BACKENDS
@in_virtual_time
async def test_far_slots_are_forecast_as_exactly_in_a_hold(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store, interval=100), queue_on(FarStore(store.behind), interval=100)
    jobs = [await other.add(starts.job, number) for number in range(10)]
    before = await queue.quote()
    await queue.cool_down(10)
    during = await queue.quote()
    assert before is not None
    assert during is not None
    assert during - before == pytest.approx(10, abs=0.1)
    for job in jobs:
        job.cancel()


@BACKENDS
@in_virtual_time
async def test_a_slot_that_the_job_in_front_skips_is_of_no_use_to_the_one_behind_in_a_hold(
    backend: str,
) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store), queue_on(FarStore(store.behind))
    for number in range(3):
        await other.add(starts.job, number)
    first = await queue.add(starts.job, "first")
    await other.add(starts.job, 3)  # the ticket before it can't be given back any more
    await queue.cool_down(5)
    heavy = await queue.add(starts.job, "heavy", cost=2)
    first.cancel()  # its slot comes after 8 s, that of the heavy job after 10 s
    begin = anyio.current_time()
    light = await queue.add(starts.job, "light", timeout=9.5)
    with pytest.raises(SlotTimeout) as raised:
        await light
    assert anyio.current_time() - begin < 2
    assert raised.value.retry_after == pytest.approx(12 - (anyio.current_time() - begin), abs=0.2)
    await heavy
    assert anyio.current_time() - begin == pytest.approx(10, abs=0.2)


@BACKENDS
@in_virtual_time
async def test_the_answer_to_another_request_serves_a_job_that_asks_whether_it_can_begin(
    backend: str,
) -> None:
    """The request that it waited for was cancelled, and another one was sent before its own."""
    store, starts = FarStore(delay=1), Starts()
    queue, other = queue_on(store, interval=10), queue_on(FarStore(store.behind), interval=10)
    await queue.run(starts.job, "first")
    jobs = [await other.add(starts.job, number) for number in range(9)]
    await queue.inspect()
    await anyio.sleep(0.1)
    before = len(store.calls)

    async def refused(after: float, timeout: float) -> None:
        await anyio.sleep(after)
        with pytest.raises(SlotTimeout):
            await queue.run(starts.job, "late", timeout=timeout)

    async def quoted() -> None:
        await anyio.sleep(0.2)
        await queue.quote()

    await gather(lambda: refused(0, 0.3), lambda: refused(0.1, 10), quoted)
    assert len(store.calls) - before == 2, "one was cancelled, and one answered both"
    for job in jobs:
        job.cancel()


@BACKENDS
@in_virtual_time
async def test_slots_that_passed_since_a_hold_ended_are_not_promised(backend: str) -> None:
    """A handle that keeps its jobs asks the store for nothing, and last heard that the queue was held."""
    queue, starts = queue_on(FarStore(), start=False), Starts()
    for number in range(2):
        await queue.add(starts.job, number)
    await queue.cool_down(2)
    late = await queue.add(starts.job, "late", timeout=10)
    with pytest.raises(SlotTimeout) as raised:
        await late
    assert raised.value.retry_after == pytest.approx(2, abs=0.1)
    await queue.close()
