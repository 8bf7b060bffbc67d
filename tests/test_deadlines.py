"""Jobs that can't begin in time are refused at once."""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue, SlotTimeout
from intervalq.errors import ConfigMismatch, InvalidInterval, StoreUnavailable
from intervalq.sync import IntervalQueue as BlockingQueue
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


async def tried(
    queue: IntervalQueue, starts: Starts, what: object = "try", **options: Any
) -> SlotTimeout | None:
    """Try a job, and return its refusal, which must come at once; None: the job began."""
    begin = anyio.current_time()
    try:
        async with queue.try_slot(**options):
            await starts.job(what)
    except SlotTimeout as refusal:
        assert anyio.current_time() - begin < 0.05
        return refusal
    return None


@BACKENDS
@in_virtual_time
async def test_who_cannot_begin_at_once_is_told_when_to_come_back(backend: str) -> None:
    queue, starts = queue_on(FarStore()), Starts()
    assert await tried(queue, starts) is None
    refusal = await tried(queue, starts)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(1, abs=0.01)
    assert "could begin in 1 s" in str(refusal)
    assert refusal.seconds == 0
    await anyio.sleep(refusal.retry_after or 0)
    assert await tried(queue, starts) is None
    assert len(starts.log) == 2


@BACKENDS
@in_virtual_time
async def test_a_refusal_before_the_line_only_reads(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await tried(queue, starts)
    await anyio.sleep(0.1)
    before = len(store.calls)
    for _ in range(3):
        assert await tried(queue, starts) is not None
    assert [type(command).__name__ for command in store.calls[before:]] == ["Inspect"]


@BACKENDS
@in_virtual_time
async def test_as_many_begin_within_a_time_as_fit_into_it(backend: str) -> None:
    queue, starts, begin = queue_on(FarStore()), Starts(), anyio.current_time()
    refusals: list[float] = []

    async def call(number: int) -> None:
        try:
            async with queue.try_slot(within="3s"):
                await starts.job(number)
        except SlotTimeout as error:
            assert anyio.current_time() - begin < 0.05
            refusals.append(error.retry_after or 0)

    await gather(*(partial(call, number) for number in range(7)))
    began = [at - begin for at, _ in starts.log]
    assert began == pytest.approx([0, 1, 2, 3], abs=0.2)
    assert refusals == pytest.approx([4, 4, 4], abs=2.1)  # by the slots that they had, or by those before


@BACKENDS
@pytest.mark.parametrize("seed", range(4))
@in_virtual_time
async def test_processes_that_are_asked_for_too_much_use_every_slot(seed: int, backend: str) -> None:
    """Each of four handles is asked 20 times per interval; a ticket for each request would lose 20 slots."""
    store = FarStore(delay=0.004, seed=seed)
    handles = [queue_on(FarStore(store.behind, delay=0.004, seed=seed + n)) for n in range(4)]
    starts, dice = Starts(), random.Random(seed)

    async def client(queue: IntervalQueue) -> None:
        while anyio.current_time() < 60:
            await tried(queue, starts)
            await anyio.sleep(dice.uniform(0, 0.1))

    await gather(*(partial(client, handle) for handle in handles))
    assert len(starts.log) >= 52  # of three that ask within one round trip, one slot may be lost


async def by_run(queue: IntervalQueue, starts: Starts, timeout: float) -> None:
    await queue.run(lambda: starts.job("run"), timeout=timeout)


async def by_slot(queue: IntervalQueue, starts: Starts, timeout: float) -> None:
    async with queue.slot(timeout=timeout):
        await starts.job("slot")


async def by_add(queue: IntervalQueue, starts: Starts, timeout: float) -> None:
    await (await queue.add(starts.job, "add", timeout=timeout))


async def by_default(queue: IntervalQueue, starts: Starts, timeout: float) -> None:
    patient = IntervalQueue("q", interval=1, store=queue._given_store, timeout=timeout)
    async with patient.slot():
        await starts.job("slot")


Way = Callable[[IntervalQueue, Starts, float], Awaitable[None]]
WAYS = pytest.mark.parametrize("way", [by_run, by_slot, by_add, by_default])


@BACKENDS
@WAYS
@in_virtual_time
async def test_a_job_whose_slot_comes_after_its_timeout_is_refused_at_once(way: Way, backend: str) -> None:
    queue, starts = queue_on(FarStore()), Starts()
    waiting = [await queue.add(starts.job, number) for number in range(5)]
    begin = anyio.current_time()
    with pytest.raises(SlotTimeout) as raised:
        await way(queue, starts, 2.5)
    assert anyio.current_time() - begin < 0.1
    assert raised.value.seconds == 2.5
    assert raised.value.retry_after == pytest.approx(5, abs=0.2)
    await way(queue, starts, 5.5)  # the slot that the other handle gave back
    for job in waiting:
        await job
    assert starts.gaps == pytest.approx([1] * 5, abs=0.11)


@BACKENDS
@WAYS
@in_virtual_time
async def test_a_ticket_is_given_back_if_its_slot_comes_too_late(way: Way, backend: str) -> None:
    """Another handle has taken the slots since this one last heard of the queue."""
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store), queue_on(FarStore(store.behind))
    await queue.run(lambda: starts.job("first"))
    await anyio.sleep(30)
    waiting = [await other.add(starts.job, number) for number in range(4)]
    begin = anyio.current_time()
    with pytest.raises(SlotTimeout):
        await way(queue, starts, 2.5)
    assert anyio.current_time() - begin < 0.1
    await anyio.sleep(0.1)
    last = await other.add(starts.job, "last")
    for job in [*waiting, last]:
        await job
    assert starts.gaps[1:] == pytest.approx([1] * 4, abs=0.11)
    assert starts.order == ["first", 0, 1, 2, 3, "last"]


@BACKENDS
@in_virtual_time
async def test_who_waits_behind_a_refused_job_gets_its_slot(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store), queue_on(FarStore(store.behind))
    for number in range(3):
        await other.add(starts.job, number)
    jobs = [queue.add(starts.job, what, timeout=time) for what, time in (("short", 1.5), ("long", 3.5))]
    short, long = [await job for job in jobs]
    with pytest.raises(SlotTimeout):
        await short
    await long
    log = starts.log
    assert [what for _, what in log] == [0, 1, 2, "long"]
    assert log[3][0] - log[0][0] == pytest.approx(3, abs=0.11)


@BACKENDS
@pytest.mark.parametrize("timeout", [0.5, 10, 39])
@in_virtual_time
async def test_a_job_behind_more_than_have_tickets_is_refused_at_once(timeout: float, backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, lookahead=4)
    jobs = [await queue.add(starts.job, number) for number in range(40)]
    await anyio.sleep(0.2)
    begin, calls = anyio.current_time(), len(store.calls)
    late = await queue.add(starts.job, "late", timeout=timeout)
    with pytest.raises(SlotTimeout) as raised:
        await late
    assert anyio.current_time() == begin
    assert len(store.calls) == calls
    assert raised.value.retry_after == pytest.approx(39.8, abs=0.11)
    last = await queue.add(starts.job, "last", timeout=41)
    await last
    assert starts.order == [*range(40), "last"]
    assert all(job.done for job in jobs)


@BACKENDS
@in_virtual_time
async def test_a_job_that_comes_before_those_that_wait_is_not_counted_behind_them(backend: str) -> None:
    queue, starts = queue_on(FarStore(), lookahead=4), Starts()
    jobs = [await queue.add(starts.job, number, priority=-1) for number in range(40)]
    await anyio.sleep(0.2)
    for urgent in (by_add, by_run, by_slot):
        await urgent(queue, starts, 2)
    assert len(starts.log) < 8
    for job in jobs:
        job.cancel()


@BACKENDS
@in_virtual_time
async def test_a_cool_down_that_lasts_too_long_refuses_at_once(backend: str) -> None:
    queue, starts = queue_on(FarStore()), Starts()
    await queue.cool_down(10)
    begin = anyio.current_time()
    for way in (by_run, by_slot, by_add, by_default):
        with pytest.raises(SlotTimeout) as raised:
            await way(queue, starts, 5)
        assert raised.value.retry_after == pytest.approx(10, abs=0.2)
    refusal = await tried(queue, starts, within=9)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(10, abs=0.2)
    assert anyio.current_time() - begin < 0.1
    await by_run(queue, starts, 11)
    assert anyio.current_time() - begin == pytest.approx(10, abs=0.2)


@BACKENDS
@in_virtual_time
async def test_a_pause_may_end_in_time(backend: str) -> None:
    queue, starts = queue_on(FarStore()), Starts()
    await queue.pause()
    refusal = await tried(queue, starts)
    assert refusal is not None
    assert refusal.retry_after is None
    assert await queue.quote() is None
    begin = anyio.current_time()
    with pytest.raises(SlotTimeout) as raised:
        await by_run(queue, starts, 2)
    assert anyio.current_time() - begin == pytest.approx(2)
    assert raised.value.retry_after is None

    async def soon() -> None:
        await anyio.sleep(1)
        await queue.resume()

    await gather(soon, lambda: by_slot(queue, starts, 20))
    assert starts.order == ["slot"]


@BACKENDS
@in_virtual_time
async def test_a_queue_at_its_limit_refuses_who_cannot_wait(backend: str) -> None:
    queue, starts = queue_on(FarStore(), max_running=1), Starts()
    job = await queue.add(starts.job, "long", 20)
    await anyio.sleep(5)
    refusal = await tried(queue, starts)
    assert refusal is not None
    assert refusal.retry_after is None
    assert await queue.quote() is None
    await by_run(queue, starts, 30)
    await job
    assert starts.order == ["long", "run"]
    assert starts.gaps == pytest.approx([21], abs=0.2)


@BACKENDS
@in_virtual_time
async def test_the_store_may_take_its_time(backend: str) -> None:
    """Round trips take longer than the interval, and their time doesn't count as waiting."""
    store, starts = FarStore(delay=0.4), Starts()
    queue = queue_on(store, interval=0.2)
    for number in range(5):
        async with queue.try_slot():
            await starts.job(number)
        await anyio.sleep(3)
    assert starts.order == [0, 1, 2, 3, 4]


@BACKENDS
@in_virtual_time
async def test_an_unreachable_store_is_waited_for_as_long_as_the_job_may_wait(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store)
    await by_run(queue, starts, 1)
    store.is_down = True
    for patience in (3, 0.2):
        begin = anyio.current_time()
        with pytest.raises(SlotTimeout):
            await by_run(queue, starts, patience)
        assert anyio.current_time() - begin == pytest.approx(patience)
    begin = anyio.current_time()
    with pytest.raises(SlotTimeout):
        async with queue.try_slot():
            pass
    assert anyio.current_time() - begin == pytest.approx(5)
    with pytest.raises(StoreUnavailable):
        await queue.quote()


@BACKENDS
@in_virtual_time
async def test_a_handle_with_other_settings_does_not_know_when_jobs_could_begin(backend: str) -> None:
    """The store has answered it, but only refused its settings."""
    store, starts = FarStore(), Starts()
    await by_run(queue_on(store), starts, 1)
    other = queue_on(store, interval=2.0)
    with pytest.raises(ConfigMismatch):
        await by_run(other, starts, 1)
    store.delay = 1.0
    with pytest.raises(SlotTimeout) as raised:
        await by_run(other, starts, 0.2)
    assert raised.value.retry_after is None


@BACKENDS
@pytest.mark.parametrize("seed", range(6))
@in_virtual_time
async def test_nobody_who_is_refused_would_have_begun_in_time(seed: int, backend: str) -> None:
    """Random jobs with costs, priorities and timeouts: those with long enough timeouts begin, and in time."""
    dice = random.Random(seed)
    store = FarStore(delay=0.003, seed=seed)
    handles = [queue_on(FarStore(store.behind, delay=0.003, seed=n), lookahead=3) for n in range(3)]
    begun = refused = 0

    async def call(queue: IntervalQueue, at: float, timeout: float) -> None:
        nonlocal begun, refused
        await anyio.sleep(at)
        asked = anyio.current_time()
        options: dict[str, Any] = {"priority": dice.choice([0, 0, 1]), "cost": dice.choice([1, 1, 2])}
        try:
            async with queue.slot(timeout=timeout, **options):
                begun += 1
                assert anyio.current_time() - asked <= timeout + 0.01
        except SlotTimeout:
            refused += 1
            assert timeout < 200  # as many intervals as there are

    calls = [
        partial(call, dice.choice(handles), dice.uniform(0, 40), dice.choice([0.5, 5, 20, 200]))
        for _ in range(60)
    ]
    await gather(*calls)
    assert begun + refused == 60
    assert min(begun, refused) > 10


@pytest.mark.parametrize("within", [-1, "soon", None, float("inf")])
def test_a_time_that_makes_no_sense_is_refused(within: Any) -> None:
    with pytest.raises(InvalidInterval, match="within"):
        queue_on(FarStore()).try_slot(within=within)


def test_blocking_code_is_refused_at_once_as_well() -> None:
    name = f"deadlines-{secrets.token_hex(4)}"
    with BlockingQueue(name, interval="60s", store="memory://") as queue:
        assert queue.quote() == 0
        with queue.try_slot(within="1s") as slot:
            assert slot.ticket > 0
        quote = queue.quote()
        assert quote is not None
        assert 50 < quote < 60.1  # it allows for clocks that drift apart
        with pytest.raises(SlotTimeout) as raised, queue.try_slot():
            pass
        assert 50 < (raised.value.retry_after or 0) < 60.1
        with pytest.raises(SlotTimeout) as raised:
            queue.run(int, timeout=30)
        assert 50 < (raised.value.retry_after or 0) < 60.1
        with pytest.raises(SlotTimeout) as raised:
            queue.add(int, timeout=30).result()
        assert 50 < (raised.value.retry_after or 0) < 60.1
        with pytest.raises(SlotTimeout), queue.slot(timeout=30):
            pass
        queue.drop()
