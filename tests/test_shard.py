"""Shards in virtual time, on both event loops: order, holds, misses, stalls, cancellation, idleness."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from intervalq import SlotTimeout
from intervalq.rules import Advance, Settings
from intervalq.testing.virtual import VirtualLoop
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


@BACKENDS
@in_virtual_time
async def test_many_shards_start_one_job_an_interval_each_in_its_order(backend: str) -> None:
    store, starts = FarStore(delay=0.002), Starts()
    queues = [queue_on(FarStore(store.behind, delay=0.002, seed=n)) for n in range(4)]
    await gather(
        *(
            partial(queue.run, partial(starts.job, (n, k)))
            for n, queue in enumerate(queues)
            for k in range(10)
        )
    )
    assert len(starts.log) == 40
    assert min(starts.gaps) > 0.99
    assert max(starts.gaps) < 1.01
    if backend == "asyncio":  # trio has a random order
        for n in range(4):
            assert [k for shard, k in starts.order if shard == n] == list(range(10))  # type: ignore[misc,has-type]


@BACKENDS
@in_virtual_time
async def test_with_a_lookahead_of_one_shards_take_turns_whatever_their_backlog(backend: str) -> None:
    store, starts = FarStore(), Starts()
    big, small = queue_on(store, lookahead=1), queue_on(FarStore(store.behind), lookahead=1)
    jobs = [await big.add(starts.job, "big") for _ in range(20)]
    jobs += [await small.add(starts.job, "small") for _ in range(3)]
    for job in jobs:
        await job
    order = starts.order
    assert order.index("small") <= 3
    assert [place for place, what in enumerate(order) if what == "small"][-1] <= 8


@BACKENDS
@in_virtual_time
async def test_with_no_lookahead_every_job_holds_its_place_at_once(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, lookahead=None)
    jobs = [await queue.add(starts.job, n) for n in range(50)]
    tickets = [job.ticket for job in jobs]
    state = await queue.inspect()
    await queue.close(drain=False)
    issued = state.ticket
    assert tickets == list(range(1, 51))
    assert issued == 50


@BACKENDS
@in_virtual_time
async def test_jobs_added_in_one_turn_share_one_store_call(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, "first"))
    await anyio.sleep(0.01)
    before = len(store.calls)
    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(0.01)
        taken = len(store.calls) - before
        group.cancel_scope.cancel()
    assert taken == 1


@BACKENDS
@in_virtual_time
async def test_a_dead_shard_costs_at_most_its_lookahead(backend: str) -> None:
    store, starts = FarStore(), Starts()
    dead = Advance(settings=Settings(1_000_000), nonce="g", take=16)  # took tickets, and was killed
    await store.apply("q", dead)
    starts.log.append((anyio.current_time(), "dead"))
    await queue_on(store).run(partial(starts.job, "alive"))
    assert starts.gaps == [pytest.approx(16, abs=0.01)]


@BACKENDS
@in_virtual_time
async def test_reclaim_frees_the_slots_of_the_dead_at_once(backend: str) -> None:
    store, starts = FarStore(), Starts()
    await store.apply("q", Advance(settings=Settings(1_000_000), nonce="g", take=16))
    queue = queue_on(store)
    freed = await queue.reclaim()
    begin = anyio.current_time()
    await queue.run(partial(starts.job, "alive"))
    waited = starts.log[0][0] - begin
    assert freed == 15
    assert waited < 1.01


@BACKENDS
@in_virtual_time
async def test_a_pause_stops_every_shard_and_a_resume_wakes_every_one(backend: str) -> None:
    store, starts = FarStore(delay=0.001), Starts()
    lines = [FarStore(store.behind, delay=0.001, seed=n) for n in range(8)]
    queues = [queue_on(line) for line in lines]
    async with anyio.create_task_group() as group:
        for queue in queues:
            for n in range(2):
                group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(3.5)
        await queues[0].pause()
        before = [len(line.calls) for line in lines]
        await anyio.sleep(100)
        asked = [len(line.calls) - old for line, old in zip(lines, before, strict=True)]
        resumed = anyio.current_time()
        await queues[1].resume()
    assert len(starts.log) == 16
    in_pause = [at for at, _ in starts.log if resumed - 99.9 < at < resumed]
    assert in_pause == []
    assert min(starts.gaps) > 0.99
    after = [at - resumed for at, _ in starts.log if at >= resumed]
    assert after[0] < 1.01
    assert max(asked) <= 100 / 5 + 3, "a held shard polls seldom where the store can wake it"


@BACKENDS
@in_virtual_time
async def test_a_held_shard_sits_out_an_outage_of_the_store_too(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, "before"))
    await queue.pause()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(queue.run, partial(starts.job, "after")))
        await anyio.sleep(20)
        store.is_down = True
        await anyio.sleep(30)
        store.is_down = False
        await queue.resume()
    assert starts.order == ["before", "after"]


@BACKENDS
@in_virtual_time
async def test_a_cool_down_ends_by_itself_and_the_queue_keeps_its_pace(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, 0))
    await queue.cool_down(30)
    await gather(*(partial(queue.run, partial(starts.job, n)) for n in range(3)))
    assert starts.gaps == [
        pytest.approx(31, abs=0.01),
        pytest.approx(1, abs=0.01),
        pytest.approx(1, abs=0.01),
    ]


@in_virtual_time
async def test_a_stalled_event_loop_costs_its_length_and_keeps_the_order_of_its_jobs() -> None:
    """The missed slot is granted late, and the next starts make up for as much as they can."""
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(partial(queue.run, partial(starts.job, n)))
        await anyio.sleep(2.5)
        loop.stall(3.25)  # over the slots at 3, 4 and 5
    seen = await queue.inspect()
    assert starts.order == list(range(8))
    assert starts.gaps == pytest.approx([1, 1, 3.75, 0.95, 0.95, 1, 1], abs=0.001)
    assert min(starts.gaps) >= 0.9
    assert (seen.given_up, seen.causes, seen.late) == (0, {}, 1)


@BACKENDS
@in_virtual_time
async def test_another_shard_goes_on_while_one_is_stalled_and_spacing_holds(backend: str) -> None:
    store, starts = FarStore(), Starts()
    slow, other = queue_on(FarStore(store.behind, delay=0.03)), queue_on(store)
    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(partial(slow.run, partial(starts.job, n)))
            group.start_soon(partial(other.run, partial(starts.job, n)))
    assert len(starts.log) == 20
    assert min(starts.gaps) > 0.9


@BACKENDS
@in_virtual_time
async def test_higher_priorities_begin_first(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await queue.run(partial(starts.job, "first"))
    jobs = [
        await queue.add(starts.job, name, priority=priority)
        for name, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 5))
    ]
    for job in jobs:
        await job
    assert starts.order == ["first", "high", "a", "b", "low"]


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 2, 16, None])
@in_virtual_time
async def test_a_job_of_many_slots_begins_at_its_first_and_leaves_the_others_empty(
    backend: str, lookahead: int | None
) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, lookahead=lookahead)
    jobs = [await queue.add(starts.job, n, cost=cost) for n, cost in enumerate((1, 5, 1, 3, 1))]
    for job in jobs:
        await job
    assert starts.order == [0, 1, 2, 3, 4]
    assert [round(gap, 2) for gap in starts.gaps] == [1, 5, 1, 3]


@BACKENDS
@in_virtual_time
async def test_a_single_heavy_call_still_makes_the_others_wait(backend: str) -> None:
    store, starts = FarStore(), Starts()
    heavy, light = queue_on(store, lookahead=1), queue_on(FarStore(store.behind))
    async with heavy.slot(cost=5):
        starts.log.append((anyio.current_time(), "heavy"))
    await anyio.sleep(0.01)
    await light.run(partial(starts.job, "light"))
    assert starts.gaps == [pytest.approx(5, abs=0.02)]


@BACKENDS
@in_virtual_time
async def test_idle_time_is_credit_for_a_burst_and_no_more(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, burst=3)
    await gather(*(partial(queue.run, partial(starts.job, n)) for n in range(6)))
    assert [round(gap, 2) for gap in starts.gaps] == [0, 0, 1, 1, 1]


@BACKENDS
@in_virtual_time
async def test_each_attempt_takes_a_slot_of_its_own(backend: str) -> None:
    store, times = FarStore(), []
    queue = queue_on(store, retries=3, backoff=0.001)

    async def flaky() -> int:
        times.append(anyio.current_time())
        if len(times) < 3:
            raise ValueError(len(times))
        return len(times)

    job = await queue.add(flaky)
    result, attempts = await job, job.attempt
    assert (result, attempts) == (3, 3)
    assert all(later - earlier > 0.99 for earlier, later in pairwise(times))


@BACKENDS
@in_virtual_time
async def test_the_last_failure_reaches_the_caller_as_it_is(backend: str) -> None:
    queue = queue_on(FarStore(), retries=1, backoff=0.001)

    async def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await queue.run(fails)
    job = await queue.add(fails)
    with pytest.raises(KeyError, match="mine"):
        await job


class _Response:
    def __init__(self, status: int, after: str) -> None:
        self.status_code = status
        self.headers = {"Retry-After": after}


class _HTTPError(Exception):
    def __init__(self, status: int, after: str) -> None:
        super().__init__(status)
        self.response = _Response(status, after)


@BACKENDS
@in_virtual_time
async def test_a_retry_after_cools_down_every_shard(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store, retry_after=True, retries=1), queue_on(FarStore(store.behind))

    async def refused() -> None:
        await starts.job("call")
        if starts.order.count("call") == 1:
            raise _HTTPError(429, "20")

    await gather(partial(queue.run, refused), partial(other.run, partial(starts.job, "other")))
    assert len(starts.log) == 3
    refused_at = next(at for at, what in starts.log if what == "call")
    assert [at for at, _ in starts.log if refused_at < at < refused_at + 20] == []
    assert starts.log[-1][0] - refused_at < 22.1


@BACKENDS
@in_virtual_time
async def test_a_wait_may_be_limited(backend: str) -> None:
    queue = queue_on(FarStore(), timeout=2.5)
    begin = anyio.current_time()
    jobs = [await queue.add(Starts().job, n) for n in range(5)]
    outcomes = []
    for job in jobs:
        try:
            outcomes.append(await job)
        except SlotTimeout as error:
            outcomes.append(type(error).__name__)
    assert outcomes == [0, 1, 2, "SlotTimeout", "SlotTimeout"]
    assert (anyio.current_time() - begin) < 3.1


@BACKENDS
@in_virtual_time
async def test_no_more_jobs_run_than_may_over_all_shards(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queues = [queue_on(FarStore(store.behind), interval=0.1, max_running=2) for _ in range(3)]
    running = most = 0

    async def busy(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await starts.job(n, takes=25)  # longer than a lease, which must be renewed
        running -= 1

    await gather(*(partial(queue.run, partial(busy, n)) for n in range(3) for queue in queues))
    assert most == 2
    assert len(starts.log) == 9
    assert starts.log[-1][0] - starts.log[0][0] < 4 * 25.5 + 1
