"""Waits that look like a deadlock but are none: they are waited for."""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from anyio import to_thread

import nested_jobs
from intervalq import IntervalQueue, Job, SelfDeadlock
from intervalq._queue import held
from intervalq.sync import IntervalQueue as BlockingQueue
from nested_jobs import by_run, nothing, turns, url

pytestmark = pytest.mark.anyio

name = nested_jobs.name


async def test_other_queues_are_others(name: str, tmp_path: Path) -> None:
    limited = partial(IntervalQueue, interval="1ms", max_running=1)
    elsewhere = str(tmp_path / "other.db")
    async with (
        limited(name, store=url) as queue,
        limited(f"{name}-r", store=url) as other,
        limited(name, store=elsewhere) as namesake,
        IntervalQueue(f"{name}-free", interval="1ms", store=url) as free,
    ):
        await namesake.run(nothing)  # so that a record of the same name exists in another store
        for inner in (other, namesake, queue["key"], free):
            assert await queue.run(partial(by_run, inner)) == 7
        assert await queue["a"].run(partial(by_run, queue["b"])) == 7
        assert await free.run(partial(by_run, free)) == 7


async def test_a_job_may_start_others_that_it_does_not_wait_for(name: str) -> None:
    """A crawler does this, which finds more to fetch in what it fetched."""
    done: list[int] = []
    queue = IntervalQueue(name, interval="1ms", max_running=1, store=url)
    async with queue, anyio.create_task_group() as group:

        async def fetch(number: int) -> None:
            done.append(number)
            if number < 3:
                group.start_soon(queue.run, partial(fetch, number + 1))
                await queue.add(fetch, number + 10)

        await queue.run(partial(fetch, 1))
    assert sorted(done) == [1, 2, 3, 11, 12]


async def test_a_task_that_a_job_started_may_wait_for_its_end(name: str) -> None:
    begun = anyio.Event()
    queue = IntervalQueue(name, interval="1ms", max_running=1, store=url)
    async with queue, anyio.create_task_group() as group:

        async def child() -> None:
            begun.set()
            assert await queue.run(nothing) == 7

        async def outer() -> None:
            group.start_soon(child)
            await begun.wait()
            await turns()

        with anyio.fail_after(20):
            await queue.run(outer)


@pytest.mark.parametrize("kind", ["task", "thread"])
async def test_a_job_that_a_job_added_may_wait_for_its_end(name: str, kind: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        blocking, begun = BlockingQueue.of(queue), threading.Event()

        async def in_task() -> object:
            begun.set()
            return await queue.run(nothing)

        def in_thread() -> object:
            begun.set()
            return blocking.run(lambda: 7)

        async def outer() -> Job[object]:
            job = await queue.add(in_task if kind == "task" else in_thread)
            while not begun.is_set():
                await anyio.sleep(0.001)
            await turns()
            for _ in range(5):  # the other event loop answers the thread's request first
                await to_thread.run_sync(blocking.inspect)
            return job

        with anyio.fail_after(20):
            job = await queue.run(outer)
            assert await job == 7


async def test_who_gave_up_waiting_can_end(name: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        goes_on, given_up = anyio.Event(), anyio.Event()

        async def patient() -> object:
            await goes_on.wait()
            return await queue.run(nothing)

        async def outer() -> Job[object]:
            job = await queue.add(patient)
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:

                    async def give_up() -> None:
                        await turns()
                        scope.cancel()

                    group.start_soon(give_up)
                    await job
            given_up.set()
            goes_on.set()
            await turns()
            return job

        with anyio.fail_after(20):
            job = await queue.run(outer)
            assert given_up.is_set()
            assert await job == 7


async def test_who_waited_and_has_ended_holds_nothing(name: str) -> None:
    """The job that it waited for goes on, and now waits for the place that has become free."""
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        ended = anyio.Event()

        async def late() -> object:
            await ended.wait()
            return await queue.run(nothing)

        async with anyio.create_task_group() as group:
            job = await queue.add(late)

            async def waits() -> None:
                slot = queue.slot()
                await slot.__aenter__()
                with anyio.CancelScope() as scope:

                    async def leave() -> None:
                        await turns()
                        await slot.__aexit__(None, None, None)
                        ended.set()
                        await turns()
                        scope.cancel()

                    group.start_soon(leave)
                    await job

            with anyio.fail_after(20):
                await waits()
                assert await job == 7


async def test_a_job_that_runs_may_be_waited_for_whatever_the_limit_is_by_now(name: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue:
        may_end = anyio.Event()

        async def runs() -> int:
            await may_end.wait()
            return 7

        async def outer() -> object:
            job = await queue.add(runs)
            while not job.attempt:
                await anyio.sleep(0.001)
            await queue.configure(max_running=1)
            may_end.set()
            return await job

        with anyio.fail_after(20):
            assert await queue.run(outer) == 7


async def test_a_slot_that_has_ended_is_not_held(name: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=1, store=url) as queue:
        async with queue.slot():
            pass
        assert await queue.run(nothing) == 7
        job = await queue.add(nothing)
        assert await job == 7
        assert await job == 7


async def test_a_limit_that_others_have_raised_counts(name: str) -> None:
    async with (
        IntervalQueue(name, interval="1ms", max_running=1, store=url) as queue,
        IntervalQueue(name, store=url) as admin,
    ):

        async def raised() -> object:
            await admin.configure(max_running=2)
            return await queue.run(nothing)

        assert await queue.run(raised) == 7


async def test_what_a_process_waits_for_does_not_stop_its_forked_child(name: str) -> None:
    async with IntervalQueue(name, interval="1ms", max_running=2, store=url) as queue, queue.slot():
        async with held.waiting(queue._shard(), held.held_here()):
            assert len(held._waits) == 1
            child = os.fork()
            if child == 0:
                os._exit(len(held._waits))
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once


def test_code_that_blocks(name: str) -> None:
    with BlockingQueue(name, interval="1ms", max_running=1, store=url) as queue:

        @queue
        def inner() -> int:
            return 7

        @queue
        def outer() -> int:
            return inner()

        with pytest.raises(SelfDeadlock):
            outer()
        with queue.slot(), pytest.raises(SelfDeadlock):
            inner()
        assert inner() == 7
        with pytest.raises(SelfDeadlock):
            queue.add(lambda: queue.run(lambda: 7)).result()
        with queue.slot():
            later = queue.add(lambda: 8)
            context = copy_context()
        assert later.result() == 8
        assert context.run(queue.run, lambda: 9) == 9
