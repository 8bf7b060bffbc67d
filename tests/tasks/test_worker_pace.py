"""Workers that claim ahead, and workers with a pace."""

from __future__ import annotations

import logging
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import pytest

from intervalq import IntervalQueue
from intervalq.errors import TransactionConflict
from intervalq.tasks import Claim, Task
from intervalq.tasks.rules import Work
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, TransactionStore, handle, nothing, until
from virtual_store import BACKENDS, in_virtual_time


@in_virtual_time
async def test_quick_tasks_are_claimed_ahead_and_slow_ones_not() -> None:
    most: list[int] = []
    for takes in (0.0001, 0.1):
        store = FakeStore(delay=0.005)
        async with handle(store) as tasks:

            @tasks.worker("q", concurrency=2)
            async def work(task: Task, takes: float = takes) -> None:
                await anyio.sleep(takes)

            await tasks.put("q", range(100))
            await tasks.run(until_empty=True)
            most.append(max(call.limit for call in store.calls if isinstance(call, Work)))
    assert most[0] > 20
    assert most[1] == 2


@in_virtual_time
async def test_what_was_claimed_ahead_and_does_not_begin_is_given_back() -> None:
    store = FakeStore(delay=0.005)
    async with handle(store) as tasks, handle(store.line()) as others:
        taken: list[int] = []

        @tasks.worker("q", concurrency=1)
        async def work(task: Task) -> None:
            await anyio.sleep(60 if task.value == "slow" else 0.0001)

        @others.worker("q")
        async def other(task: Task) -> None:
            assert task.attempt == 1
            taken.append(task.value)

        await tasks.put("q", range(300))
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await tasks.wait_empty("q")
            await tasks.put("q", ["slow"])
            await tasks.put("q", ["slow"] * 50)
            await anyio.sleep(0.5)
            held = len(tasks._session().batcher.claims)
            await anyio.sleep(2)
            assert len(tasks._session().batcher.claims) == 1
            assert held > 1
            group.start_soon(others.run)
            await until(lambda: len(taken) == 50)
            tasks.stop()
            others.stop()


@in_virtual_time
async def test_a_steady_stream_is_not_taken_for_stale() -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> None:
            await anyio.sleep(0.001)

        await tasks.put("q", range(8000))
        await tasks.run(until_empty=True)  # takes four seconds
        assert tasks._outcomes == {"done": 8000}


@BACKENDS
@pytest.mark.parametrize("conflicts", [3, 5, 6])
@in_virtual_time
async def test_a_function_whose_transaction_met_another_is_run_again(backend: str, conflicts: int) -> None:
    store = TransactionStore()
    async with handle(store) as tasks:
        runs: list[int] = []

        @tasks.worker("q", max_attempts=1)
        async def work(task: Claim) -> None:
            runs.append(1)
            store.on_commit = conflict if len(runs) <= conflicts else None
            async with task.commit("serializable") as connection:
                connection.append(len(runs))

        async def conflict() -> None:
            raise TransactionConflict("fake", "it met another")

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert len(runs) == min(conflicts, 5) + 1
        assert store.written == ([conflicts + 1] if conflicts <= 5 else [])
        assert await store.sizes() == ({} if conflicts <= 5 else {"q.dead": 1})


@BACKENDS
@pytest.mark.parametrize("batch", [None, 2])
@in_virtual_time
async def test_a_task_to_run_alone_is_charged_once_its_slot_has_come(batch: int | None, backend: str) -> None:
    """It is charged before its function begins, but not while it waits for its slot."""
    store = FakeStore(delay=0.001)
    pace = IntervalQueue("pace", interval=60, store=MemoryStore(clock=virtual_micros))
    async with handle(store) as tasks, pace.slot():
        known: list[tuple[bool, int]] = []

        async def work(given: Any) -> None:
            del given
            known.extend((row.begun, row.attempt) for row in await store.rows())

        options: Any = {} if batch is None else {"batch": batch}
        tasks.worker("q", queue=pace, **options)(work)  # type: ignore[no-untyped-call]
        await tasks.put("q", ["one"])
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            for _ in range(3):
                await anyio.sleep(5)
                assert [row.attempt for row in await store.rows()] == [0]
                await store.lapse()
            await tasks.wait_empty("q")
            tasks.stop()
        assert known == [(True, 1)]
    await pace.close()


@BACKENDS
@in_virtual_time
async def test_a_worker_is_paced_over_two_handles_and_holds_its_claims_meanwhile(backend: str) -> None:
    store = FakeStore(delay=0.001)
    pace = MemoryStore(clock=virtual_micros)
    begins: list[float] = []
    handles = [handle(store), handle(store.line(delay=0.001))]
    queues = [IntervalQueue("pace", interval=2, store=pace) for _ in handles]
    for tasks, queue in zip(handles, queues, strict=True):

        @tasks.worker("q", queue=queue, concurrency=3, timeout=1)
        async def work(task: Task) -> None:
            begins.append(anyio.current_time())
            assert (task.claims, task.attempt) == (1, 1)
            await anyio.sleep(0.5)

    await handles[0].put("q", range(20))
    async with anyio.create_task_group() as group:
        for tasks in handles:
            group.start_soon(partial(tasks.run, until_empty=True))
        await anyio.sleep(15)
        assert sum(row.session is not None for row in await store.rows()) == 6
    assert len(begins) == 20
    assert min(later - earlier for earlier, later in pairwise(begins)) > 1.99
    assert max(later - earlier for earlier, later in pairwise(begins)) < 2.1
    for tasks, queue in zip(handles, queues, strict=True):
        await tasks.aclose()
        await queue.close()


@in_virtual_time
async def test_workers_with_paces_of_their_own_in_one_handle() -> None:
    store = FakeStore()
    begins: dict[str, list[float]] = {"a": [], "b": []}
    pace = MemoryStore(clock=virtual_micros)
    async with handle(store) as tasks:
        paces = [IntervalQueue(f"p{n}", interval=n, store=pace) for n in (1, 3)]

        async def work(task: Task) -> None:
            begins[task.queue].append(anyio.current_time())

        for queue, one in zip("ab", paces, strict=True):
            tasks.worker(queue, queue=one)(work)
            await tasks.put(queue, range(5))
        await tasks.run(until_empty=True)
        for one in paces:
            await one.close()
    for queue, interval in (("a", 1), ("b", 3)):
        gaps = [later - earlier for earlier, later in pairwise(begins[queue])]
        assert len(gaps) == 4
        assert all(interval - 0.01 < gap < interval + 0.1 for gap in gaps)


@BACKENDS
@in_virtual_time
async def test_a_pace_that_cannot_be_asked_is_no_failed_attempt(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        attempts: list[int] = []
        queue = IntervalQueue("p", interval=100, store=MemoryStore(clock=virtual_micros), timeout=5)

        @tasks.worker("q", queue=queue, max_attempts=2, concurrency=1)
        async def work(task: Task) -> None:
            attempts.append(task.attempt)

        async with queue.slot():
            pass
        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert attempts == [1]
        assert await store.rows() == []
        await queue.close()


@BACKENDS
@in_virtual_time
async def test_a_run_leaves_claims_and_calls_of_others_alone(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        tasks.worker("q")(nothing)
        mine = tasks.new("mine", 1)
        await tasks.modify(mine)
        claim = await tasks.claim("mine")
        await tasks.put("q", range(10))
        await tasks.run(until_empty=True)
        assert (await store.row(claim.id)).session is not None
        await claim.ack()
        got: list[object] = []

        async def wait() -> None:
            got.append((await tasks.claim("later")).value)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await tasks.put("q", range(10))
            await tasks.run(until_empty=True)
            await tasks.insert("later", 5)
        assert got == [5]


@in_virtual_time
async def test_a_task_whose_function_changed_it_by_itself_is_done() -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q")
        async def work(task: Task) -> None:
            await tasks.modify(task.delete(), tasks.new("results", task.value))
            await anyio.sleep(3)

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert tasks._outcomes == {"done": 1}
        assert await store.sizes() == {"results": 1}


@in_virtual_time
async def test_errors_that_cannot_say_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    caplog.set_level(logging.CRITICAL)
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", max_attempts=1)
        async def work(task: Claim) -> None:
            if task.value:
                raise Mute
            await task.term(Mute())

        await tasks.put("q", [0, 1])
        await tasks.run(until_empty=True)
        assert {row.queue for row in await store.rows()} == {"q.dead"}
