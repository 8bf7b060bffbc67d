"""Slots that wait for a window come sooner, in whichever processes, and how many requests that takes."""

from __future__ import annotations

from functools import partial
from random import Random

import anyio
import pytest

from intervalq import IntervalQueue
from test_limits import MINUTE, Server
from virtual_store import FarStore, gather, in_virtual_time


@pytest.mark.parametrize(("length", "until", "calls"), [(0.05, 8, 105), (2, 20, 140)])
@in_virtual_time
async def test_jobs_in_several_processes_do_not_wait_for_what_the_first_ones_will_not_take(
    length: float, until: float, calls: int
) -> None:
    """By the estimates, the last of twelve jobs would wait for three minutes."""
    server, behind = Server(), FarStore().behind
    stores = [FarStore(behind, delay=0.002, seed=seed) for seed in range(12)]
    limits = ["50/s", "600/min", "5_000 tokens/min"]
    queues = [IntervalQueue("llm", store=store, rate="5/s", limits=limits) for store in stores]
    order: list[int] = []

    async def job(number: int) -> None:
        await anyio.sleep(0.01 * number)
        async with queues[number].slot(cost={"tokens": 1_500}) as slot:
            order.append(number)
            server.sees(200)
            await anyio.sleep(length)
            slot.settle(tokens=200)

    before = anyio.current_time()
    await gather(*[partial(job, number) for number in range(12)])
    took, sent = anyio.current_time() - before, sum(len(store.calls) for store in stores)
    assert order == [*range(12)], "they begin in the order in which they came"
    assert took < until
    assert sent <= calls
    for queue in queues:
        await queue.close()


@pytest.mark.parametrize(("limit", "calls"), [("10/s", 8), ("10_000 tokens/s", 9)])
@in_virtual_time
async def test_many_processes_do_not_ask_all_the_time(limit: str, calls: int) -> None:
    """Nothing comes sooner here. If each one looked as often as the first, there were over fifty a job."""
    behind, begun = FarStore().behind, 0
    stores = [FarStore(behind, delay=0.002, seed=seed) for seed in range(50)]
    queues = [IntervalQueue("llm", store=store, rate="1000/s", limits=[limit]) for store in stores]

    async def caller(queue: IntervalQueue) -> None:
        nonlocal begun
        while True:
            async with queue.slot(cost={"tokens": 1_000} if "tokens" in limit else 1):
                begun += 1

    with anyio.move_on_after(10):
        await gather(*[partial(caller, queue) for queue in queues])
    assert begun >= 85
    assert sum(len(store.calls) for store in stores) < calls * begun
    for queue in queues:
        await queue.close()


@pytest.mark.parametrize(("settles", "jobs", "calls"), [(True, 210, 1.6), (False, 95, 1.6)])
@in_virtual_time
async def test_a_job_takes_little_more_than_one_request(settles: bool, jobs: int, calls: float) -> None:
    """2.15 and 2.1, if the next ticket were taken by itself, and all looked as often as those who settle."""
    behind, begun, until = FarStore().behind, 0, anyio.current_time() + 25
    stores = [FarStore(behind, delay=0.001, seed=seed) for seed in range(4)]
    limits = ["20/s", "100/10s", "5_000 tokens/10s"]
    queues = [IntervalQueue("llm", store=store, rate="20/s", limits=limits) for store in stores]

    async def caller(queue: IntervalQueue, seed: int) -> None:
        nonlocal begun
        draw = Random(seed)
        while anyio.current_time() < until:
            tokens = min(800, int(17 * draw.paretovariate(1.5)))
            async with queue.slot(cost={"tokens": min(800, 3 * tokens)}) as slot:
                begun += 1
            await anyio.sleep(draw.uniform(0.05, 0.25))
            if settles:
                slot.settle(tokens=tokens)

    with anyio.move_on_after(25):
        await gather(
            *(partial(caller, queue, 10 * n + m) for n, queue in enumerate(queues) for m in range(8))
        )
    assert begun >= jobs
    assert sum(len(store.calls) for store in stores) < calls * begun
    for queue in queues:
        await queue.close()


@pytest.mark.parametrize("lost", [0.0, 0.03])
@in_virtual_time
async def test_no_window_of_what_jobs_may_take_is_over(lost: float) -> None:
    """A server that counts estimates until they are settled, as real APIs do, refuses nobody."""
    behind, most = FarStore().behind, 20_000
    stores = [FarStore(behind, delay=0.002, seed=seed) for seed in range(4)]
    for store in stores:
        store.loses_answers = lost
    queues = [
        IntervalQueue("llm", store=store, rate="20/s", limits=[f"{most} tokens/10s"]) for store in stores
    ]
    counts: list[list[float]] = []
    until, peak = anyio.current_time() + 2 * MINUTE, 0.0

    async def caller(queue: IntervalQueue, seed: int) -> None:
        nonlocal peak
        draw = Random(seed)
        while anyio.current_time() < until:
            estimate = draw.randint(1_000, 6_000)
            async with queue.slot(cost={"tokens": estimate}) as slot:
                at = anyio.current_time()
                mine = [at, estimate]
                counts.append(mine)
                peak = max(peak, sum(units for then, units in counts if then > at - 10))
                await anyio.sleep(draw.uniform(0.05, 3))
                mine[1] = draw.randint(100, estimate // 3)
                slot.settle(tokens=int(mine[1]))

    await gather(*(partial(caller, queue, 10 * n + m) for n, queue in enumerate(queues) for m in range(3)))
    for store, queue in zip(stores, queues, strict=True):
        store.loses_answers = 0
        await queue.close()
    assert peak <= most
    assert lost or len(counts) >= 150, "79, if slots stayed where they are"
