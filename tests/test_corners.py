"""Situations in which a queue was once wrong: each test failed before its bug was fixed."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from intervalq import ConfigMismatch, IntervalQueue, JobCancelled, QueueClosed
from intervalq import sync as blocking
from intervalq.rules import Advance, Answer, Command, Finish, Settings
from virtual_store import BACKENDS, FarStore, in_virtual_time, queue_on


def fresh(**options: Any) -> IntervalQueue:
    return IntervalQueue(f"corner-{secrets.token_hex(4)}", store="memory://", **options)


@in_virtual_time
async def test_the_tolerance_reaches_the_queue_and_is_agreed() -> None:
    store = FarStore()
    queue = queue_on(store, tolerance=0.4)
    await queue.run(anyio.lowlevel.checkpoint)
    with pytest.raises(ConfigMismatch, match="tolerance=400ms"):
        await queue_on(FarStore(store.behind)).run(anyio.lowlevel.checkpoint)
    assert (await queue.inspect()).spacing == pytest.approx(0.6)


@pytest.mark.parametrize("interval", [0.05, 1])
@pytest.mark.parametrize("looks", [False, True])
@in_virtual_time
async def test_settings_are_compared_at_any_interval_and_after_a_look(interval: float, looks: bool) -> None:
    store = FarStore()
    await queue_on(store, interval=interval * 2).run(anyio.lowlevel.checkpoint)
    other = queue_on(FarStore(store.behind), interval=interval)
    if looks:
        await other.inspect()
    with pytest.raises(ConfigMismatch):
        await other.run(anyio.lowlevel.checkpoint)


def test_more_plain_functions_than_threads_still_begin_at_their_slots() -> None:
    """They once waited for a thread while holding their slots, and then all began at once."""
    queue, begun, gate = fresh(interval=0.02), [], threading.Event()

    def job() -> None:
        begun.append(time.monotonic_ns() // 1_000)
        gate.wait()

    async def main() -> None:
        jobs = [await queue.add(job) for _ in range(45)]
        while len(begun) < 45:
            await anyio.sleep(0.001)
        gate.set()
        for each in jobs:
            await each

    asyncio.run(main())
    # The last check is in the thread: only the machine's own delay may come between it and the job.
    assert max(begun) - min(begun) >= 44 * 18_000


def test_decorated_functions_wait_once_however_they_are_handed_over() -> None:
    queue = fresh(interval=0.005, max_running=1)

    @queue
    async def paced(number: int, *, more: int = 0) -> int:
        return number + more

    async def main() -> None:
        with anyio.fail_after(20):
            assert await (await queue.add(partial(paced, 1, more=2))) == 3
            assert [item async for item in queue.map(paced, [1, 2], ordered=True)] == [1, 2]
        assert queue._shard().begun == 3

    asyncio.run(main())


def test_so_do_those_of_the_blocking_handle() -> None:
    queue = blocking.IntervalQueue(f"corner-{secrets.token_hex(4)}", interval=0.005, store="memory://")

    @queue
    def paced(number: int) -> int:
        return number

    assert queue.add(paced, 4).result() == 4
    assert list(queue.map(paced, [1, 2], ordered=True)) == [1, 2]
    assert queue.inspect().begun == 3


def test_a_job_that_exits_ends_itself_and_nothing_else() -> None:
    queue = blocking.IntervalQueue(f"corner-{secrets.token_hex(4)}", interval=0.005, store="memory://")
    with pytest.raises(SystemExit):
        queue.add(lambda: sys.exit(3)).result()
    assert queue.run(lambda: "goes on") == "goes on"
    queue.close()


@BACKENDS
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@in_virtual_time
async def test_whatever_a_job_raises_reaches_whoever_awaits_it(
    backend: str, kind: type[BaseException]
) -> None:
    async def ends() -> None:
        raise kind("mine")

    queue = queue_on(FarStore())
    job = await queue.add(ends)
    with pytest.raises(kind):
        await job
    await queue.run(anyio.lowlevel.checkpoint)


@BACKENDS
@in_virtual_time
async def test_a_second_outage_in_a_long_hold_counts_from_its_own_beginning(backend: str) -> None:
    store = FarStore()
    queue = queue_on(store)
    await queue.run(anyio.lowlevel.checkpoint)
    await queue.pause()
    job = await queue.add(anyio.lowlevel.checkpoint)
    for _ in range(3):
        store.is_down = True
        await anyio.sleep(20)
        store.is_down = False
        await anyio.sleep(300)
    assert not job.done
    await queue.resume()
    await job


@BACKENDS
@in_virtual_time
async def test_a_cancelled_add_leaves_no_job_behind(backend: str) -> None:
    ran: list[int] = []

    async def job() -> None:
        ran.append(1)

    queue = queue_on(FarStore(delay=1))
    with anyio.move_on_after(0.5):
        await queue.add(job)
    await anyio.sleep(20)
    assert ran == []


@in_virtual_time
async def test_a_map_whose_items_end_by_a_cancellation_does_not_end_as_if_complete() -> None:
    async def text(number: int) -> str:
        return str(number)

    async def items() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    with pytest.raises(JobCancelled):
        async for _ in queue_on(FarStore()).map(text, items()):
            pass


@BACKENDS
@in_virtual_time
async def test_draining_lets_failed_jobs_have_their_attempts_and_refuses_new_ones(backend: str) -> None:
    queue, tries = queue_on(FarStore(), retries=2, backoff=0.001), 0

    async def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError(tries)
        return "done"

    job = await queue.add(flaky)
    await queue.close()
    assert await job == "done"
    for use in (
        queue.inspect,
        queue.pause,
        partial(queue.run, anyio.lowlevel.checkpoint),
        queue["key"].pause,
    ):
        with pytest.raises(QueueClosed):
            await use()
    await queue.close()


@BACKENDS
@in_virtual_time
async def test_what_a_job_raised_is_not_lost_where_it_cannot_be_tried_again(backend: str) -> None:
    """Its caller learns why another attempt was needed; other waiters don't."""
    queue = queue_on(FarStore(), retries=2, backoff=0.001)

    async def fails() -> None:
        raise ValueError("its own")

    async def other() -> None:
        with pytest.raises(QueueClosed) as caught:
            await queue.run(anyio.lowlevel.checkpoint)
        causes.append(caught.value.__cause__)

    async def retried() -> None:
        with pytest.raises(QueueClosed) as caught:
            await queue.run(fails)
        causes.insert(0, caught.value.__cause__)

    causes: list[BaseException | None] = []
    async with anyio.create_task_group() as group:
        group.start_soon(retried)
        await anyio.sleep(0.5)
        group.start_soon(other)
        await anyio.sleep(0.1)
        await queue.close(drain=False)
    first, second = causes
    assert (repr(first), second) == ("ValueError('its own')", None)


@BACKENDS
@in_virtual_time
async def test_a_job_may_close_its_own_queue(backend: str) -> None:
    queue = queue_on(FarStore())

    async def closes() -> str:
        await queue.close()
        return "closed"

    assert (await (await queue.add(closes))) == "closed"


class _Driverless(FarStore):
    """A store that raises an undocumented error when a job has ended."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Finish):
            raise TypeError("not a StoreError")
        return await super().apply(queue, command, now)


@BACKENDS
@in_virtual_time
async def test_closing_ends_even_if_a_store_raises_what_it_should_not(backend: str) -> None:
    queue = queue_on(_Driverless(), max_running=3)
    await queue.run(anyio.lowlevel.checkpoint)
    await queue.close()


@BACKENDS
@in_virtual_time
async def test_a_look_at_a_lost_record_does_not_forget_that_it_was_there(backend: str) -> None:
    store = FarStore()
    queue = queue_on(store)
    await queue.run(anyio.lowlevel.checkpoint)
    store.behind._records.states.clear()
    begin = anyio.current_time()
    with pytest.raises(Exception, match="has no queue"):
        await queue.inspect()
    await queue.run(anyio.lowlevel.checkpoint)
    assert (anyio.current_time() - begin) > 0.99, "one quiet interval"


@BACKENDS
@in_virtual_time
async def test_slots_that_a_job_paid_for_keep_nobody_awake_in_a_pause(backend: str) -> None:
    store = FarStore()
    queue = queue_on(store, lookahead=1)
    async with queue.slot(cost=10):
        await queue.pause()
    await anyio.sleep(10)
    before = len(store.calls)
    await anyio.sleep(3_600)
    assert (len(store.calls) - before) == 0


@in_virtual_time
async def test_a_wide_first_answer_does_not_let_a_job_begin_late() -> None:
    """The first round trip includes the time of connecting, so no estimate may depend on it alone."""
    store, starts = FarStore(), []
    await store.apply("q", Advance(settings=Settings(50_000), nonce="g", take=1))
    slow = FarStore(store.behind, delay=0.06)

    async def job() -> None:
        starts.append(anyio.current_time())

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(queue_on(slow, interval=0.05).run, job)
            group.start_soon(queue_on(FarStore(store.behind), interval=0.05).run, job)
        await anyio.sleep(0.1)
        slow.delay = 0
    starts = sorted(starts)
    assert len(starts) == 8
    assert min(later - earlier for earlier, later in pairwise(starts)) >= 0.044


@pytest.mark.parametrize("turns", range(8))
@in_virtual_time
async def test_what_is_settled_while_a_handle_closes_is_sent_before_it_has_closed(turns: int) -> None:
    """The job settles its costs in one of the turns of the event loop that closing takes."""
    store, sent = FarStore(), -1
    queue = IntervalQueue("q", limits=["1000 tokens/min"], store=store)

    async def closes() -> None:
        nonlocal sent
        await queue.close(drain=False)
        sent = len(store.calls)

    async with anyio.create_task_group() as tasks, queue.slot(cost={"tokens": 100}) as slot:
        waits = await queue.add(anyio.sleep, 0, cost={"tokens": 1000})
        tasks.start_soon(closes)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        with suppress(QueueClosed):
            slot.settle(tokens=130)
        with pytest.raises(QueueClosed):
            await waits
    await anyio.sleep(1)
    assert sent == len(store.calls)
