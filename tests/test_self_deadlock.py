"""A job that waits for its own queue while it holds the last place gets an error; jobs that can wait do."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from anyio import to_thread

import nested_jobs
from intervalq import IntervalQueue, Job, SelfDeadlock, SlotTimeout
from intervalq._timing import backoff
from intervalq.sync import IntervalQueue as BlockingQueue
from nested_jobs import by_run, nothing, turns, url
from virtual_store import FarStore, in_virtual_time

pytestmark = pytest.mark.anyio

Within = Callable[[IntervalQueue], Awaitable[object]]

name = nested_jobs.name


async def by_decorator(queue: IntervalQueue) -> object:
    return await queue(nothing)()


async def by_slot(queue: IntervalQueue) -> object:
    async with queue.slot():
        return 7


async def by_add(queue: IntervalQueue) -> object:
    return await (await queue.add(nothing))


async def by_map(queue: IntervalQueue) -> object:
    async def seven(_: int) -> int:
        return 7

    async with aclosing(queue.map(seven, [1])) as results:
        return await anext(results)


async def by_thread(queue: IntervalQueue) -> object:
    return await to_thread.run_sync(BlockingQueue.of(queue).run, lambda: 7)


async def by_another_handle(queue: IntervalQueue) -> object:
    async with queue._twin() as twin:
        return await twin.run(nothing)


WAYS = [by_run, by_decorator, by_slot, by_add, by_map, by_thread, by_another_handle]


async def in_run(queue: IntervalQueue, within: Within) -> object:
    return await queue.run(partial(within, queue))


async def in_slot(queue: IntervalQueue, within: Within) -> object:
    async with queue.slot():
        return await within(queue)


async def in_added(queue: IntervalQueue, within: Within) -> object:
    return await (await queue.add(within, queue))


async def in_decorated(queue: IntervalQueue, within: Within) -> object:
    return await queue(within)(queue)


@pytest.mark.parametrize("within", WAYS)
@pytest.mark.parametrize("outer", [in_run, in_slot, in_added, in_decorated])
async def test_a_job_that_waits_for_its_own_queue(
    name: str, within: Within, outer: Callable[[IntervalQueue, Within], Awaitable[object]]
) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=1, store=url) as queue:
        with anyio.fail_after(20), pytest.raises(SelfDeadlock, match="max_running=1"):
            await outer(queue, within)
        assert await queue.run(nothing) == 7, "nothing is left of it"


@pytest.mark.parametrize("within", WAYS)
async def test_who_has_a_place_left_may_wait(name: str, within: Within) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        assert await queue.run(partial(within, queue)) == 7


@pytest.mark.parametrize("between", ["run", "add", "thread"])
async def test_places_of_all_who_wait_count(name: str, between: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        blocking = BlockingQueue.of(queue)

        async def middle() -> object:
            if between == "run":
                return await queue.run(partial(by_run, queue))
            if between == "add":
                return await (await queue.add(by_run, queue))
            return await to_thread.run_sync(blocking.run, lambda: blocking.run(lambda: 7))

        with anyio.fail_after(20), pytest.raises(SelfDeadlock, match="max_running=2"):
            await queue.run(middle)


async def test_jobs_that_wait_for_each_others_places(name: str) -> None:
    """Each of them has one of two places, and waits for a third. One gets the error, the other its place."""
    outcomes: list[object] = []
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        both = [anyio.Event(), anyio.Event()]

        async def outer(number: int) -> object:
            both[number].set()
            await both[1 - number].wait()
            return await queue.run(nothing)

        async def caller(number: int) -> None:
            try:
                outcomes.append(await queue.run(partial(outer, number)))
            except SelfDeadlock as error:
                outcomes.append(error.max_running)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(caller, 0)
                group.start_soon(caller, 1)
    assert outcomes == [2, 7]


@pytest.mark.parametrize("places", [2, 3])
async def test_a_job_that_waits_already_is_waited_for(name: str, places: int) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=places, store=url) as queue:
        begun = anyio.Event()

        async def waits() -> object:
            begun.set()
            return await queue.run(nothing)

        async def outer() -> object:
            job = await queue.add(waits)
            await begun.wait()
            if places == 2:
                await turns()
                with pytest.raises(SelfDeadlock, match="max_running=2"):
                    await job
                return job
            return await job

        with anyio.fail_after(20):
            ended = await queue.run(outer)
            assert (await ended if isinstance(ended, Job) else ended) == 7, "the place is free by now"


async def test_places_of_all_who_wait_for_jobs_that_have_not_begun(name: str) -> None:
    outcomes: list[object] = []
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        jobs: list[Job[int]] = []

        async def outer() -> object:
            mine = await queue.add(nothing)
            jobs.append(mine)
            while len(jobs) < 2:
                await anyio.sleep(0.001)
            return await mine

        async def caller() -> None:
            try:
                outcomes.append(await queue.run(outer))
            except SelfDeadlock as error:
                outcomes.append(error.max_running)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(caller)
                group.start_soon(caller)
    assert outcomes == [2, 7]


@pytest.mark.parametrize("queues", [2, 3])
async def test_jobs_that_wait_for_each_others_queues(queues: int) -> None:
    """Each has the only place of its queue, and waits for the other queue.

    One gets the error, and the other goes on.
    """
    outcomes: list[object] = []
    async with AsyncExitStack() as stack:
        ring = [
            await stack.enter_async_context(
                IntervalQueue(secrets.token_hex(8), interval="1ms", max_running=1, store=url)
            )
            for _ in range(queues)
        ]
        running: list[int] = []

        async def outer(number: int) -> object:
            running.append(number)
            while len(running) < queues:
                await anyio.sleep(0.001)
            return await ring[(number + 1) % queues].run(nothing)

        async def caller(number: int) -> None:
            try:
                outcomes.append(await ring[number].run(partial(outer, number)))
            except SelfDeadlock as error:
                outcomes.append(error.max_running)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(queues):
                    group.start_soon(caller, number)
    assert outcomes == [1, *[7] * (queues - 1)]


async def test_who_waits_for_a_queue_with_a_place_left_blocks_nobody(name: str) -> None:
    """The other queue has two places, one of which is taken by a job that waits for this queue."""
    async with (
        IntervalQueue(name, interval="1ms", max_running=1, store=url) as one,
        IntervalQueue(f"{name}-other", interval="1ms", max_running=2, store=url) as two,
    ):
        both = [anyio.Event(), anyio.Event()]

        async def outer(number: int) -> object:
            both[number].set()
            await both[1 - number].wait()
            return await (two, one)[number].run(nothing)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(one.run, partial(outer, 0))
                assert await two.run(partial(outer, 1)) == 7


@pytest.mark.parametrize("places", [2, 3])
@in_virtual_time
async def test_a_job_that_is_tried_again_needs_a_place_again(
    places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job pauses, another one takes its place and waits, as does the job that waits for it."""
    monkeypatch.setattr(backoff, "backoff", lambda _attempt, _first: 1.0)

    queue = IntervalQueue("q", interval="1ms", max_running=places, store=FarStore())
    tried: list[int] = []
    outcomes: list[object] = []

    async def fails_once() -> int:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError
        return 7

    async def outer() -> object:
        return await (await queue.add(fails_once, retries=1))

    async def other() -> None:
        await anyio.sleep(0.5)
        outcomes.append(await queue.run(partial(by_run, queue)))

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        try:
            outcomes.append(await queue.run(outer))
        except SelfDeadlock as error:
            outcomes += [error.max_running, type(error.__cause__)]
    assert outcomes == ([2, ValueError, 7] if places == 2 else [7, 7])


async def test_who_has_all_results_of_a_map_does_not_wait(name: str) -> None:
    """This holds although the other place is taken by a job that waits for another one."""
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        waits = anyio.Event()

        async def inner() -> object:
            waits.set()
            return await queue.run(nothing)

        async def leaf(_: int) -> int:
            return 7

        async def outer(group: anyio.abc.TaskGroup) -> list[int]:
            results: list[int] = []
            async with aclosing(queue.map(leaf, [1])) as found:
                async for result in found:
                    results.append(result)
                    group.start_soon(queue.run, inner)
                    await waits.wait()
                    await turns()
            return results

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                assert await queue.run(partial(outer, group)) == [7]


async def test_a_wait_that_ends_by_itself_is_waited_for(name: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        tries = anyio.Event()

        async def patient() -> object:
            tries.set()
            with pytest.raises(SlotTimeout):
                await queue.run(nothing, timeout=0.2)
            return 8

        async def outer() -> object:
            await tries.wait()
            await turns()
            return await queue.run(nothing)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(queue.run, patient)
                assert await queue.run(outer) == 7


async def test_a_job_in_a_thread_that_waits_by_another_event_loop(name: str, tmp_path: Path) -> None:
    """The job's shard can't be asked from another event loop, so only its local knowledge counts."""
    store = f"file://{tmp_path}/state.json"
    async with IntervalQueue(name, interval="1ms", max_running=2, store=store) as queue:
        blocking, begun = BlockingQueue.of(queue), threading.Event()

        def in_thread() -> object:
            begun.set()
            return blocking.run(lambda: 7)

        async def outer() -> Job[object]:
            job = await queue.add(in_thread)
            while not begun.is_set():
                await anyio.sleep(0.001)
            for _ in range(5):  # the other event loop answers the thread's request first
                await to_thread.run_sync(blocking.inspect)
            with pytest.raises(SelfDeadlock, match="max_running=2"):
                await job
            return job

        with anyio.fail_after(20):
            job = await queue.run(outer)
            assert await job == 7
