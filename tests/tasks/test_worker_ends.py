"""What ends the run of a worker, how it ends, and what does not end it."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from intervalq import IntervalQueue
from intervalq.errors import CorruptState, InvalidOption
from intervalq.tasks import Task
from intervalq.tasks.rules import Command, Count, Work
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, handle, nothing, once, until
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@in_virtual_time
async def test_a_function_that_ends_the_process_ends_the_run_in_good_order(
    backend: str, error: type[BaseException]
) -> None:
    store = FakeStore(delay=0.001)
    tasks = handle(store)

    @tasks.worker("q", concurrency=4)
    async def work(task: Task) -> None:
        if task.value == 1:
            await anyio.sleep(1)
            raise error
        await anyio.sleep(1000)

    ids = [await tasks.insert("q", value) for value in (1, 2, 3, 4)]
    with pytest.raises(error):
        await tasks.run()
    rows = [await store.row(id_) for id_ in ids]
    assert [row.session for row in rows] == [None] * 4
    assert [row.attempt for row in rows] == [int(error is SystemExit), 0, 0, 0]
    assert await store.sessions() == 0


@in_virtual_time
async def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        began: list[int] = []

        @tasks.worker("q", max_attempts=2, backoff=0, concurrency=2)
        async def work(task: Task) -> None:
            began.append(task.value)
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        await tasks.put("q", range(10))
        await tasks.run(until_empty=True)  # all runners are still there
        assert Counter(began) == dict.fromkeys(range(10), 2)
        assert await store.sizes() == {"q.dead": 10}


@BACKENDS
@in_virtual_time
async def test_a_function_that_swallows_its_cancellation_harms_only_itself(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        began: list[int] = []
        ended: list[int] = []

        @tasks.worker("q", concurrency=1)
        async def work(task: Task) -> None:
            began.append(task.value)
            if task.value == 0:
                try:
                    await anyio.sleep(100)
                except BaseException:  # noqa: BLE001 - what must be tolerated
                    ended.append(-1)
                    return
            await anyio.sleep(0.1)
            ended.append(task.value)
            assert task.attempt == 1

        id_ = await tasks.insert("q", 0)
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await anyio.sleep(1)
            await store.force(id_, queue="elsewhere")
            tasks._pools[0].intake._ahead = 3  # so that others wait for this runner
            await tasks.put("q", range(1, 4))
            await until(lambda: len(ended) == 4)
            tasks.stop()
        assert sorted(ended) == [-1, 1, 2, 3]
        assert sorted(began) == [0, 1, 2, 3]
        assert await store.sizes() == {"elsewhere": 1}


@BACKENDS
@in_virtual_time
async def test_a_worker_whose_session_lapsed_goes_on_with_other_tasks(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        began: list[tuple[int, int]] = []
        cancelled: list[int] = []

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> None:
            began.append((task.value, task.attempt))
            try:
                await anyio.sleep(30)
            except anyio.get_cancelled_exc_class():
                cancelled.append(task.value)
                raise

        await tasks.put("q", range(2))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(tasks.run, until_empty=True))
            await until(lambda: len(began) == 2)
            await store.lapse()
            await until(lambda: len(cancelled) == 2)
            await tasks.put("q", [2])
        assert sorted(began) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
        assert tasks._outcomes == {"lost": 2, "done": 3}
        assert await store.rows() == []


@in_virtual_time
async def test_a_thousand_claims_ahead_that_are_lost_are_only_lost() -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        seen: Counter[int] = Counter()

        @tasks.worker("q", concurrency=1, max_attempts=None)
        async def work(task: Task) -> None:
            seen[task.value] += 1
            if task.value == 5000 and task.attempt == 1:
                await store.lapse()
                tasks._session().lapsed()
                assert sum(len(pool.intake.waiting) for pool in tasks._pools) > 990

        await tasks.put("q", range(100))
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: len(seen) == 100)
            await tasks.put("q", [5000])
            await tasks.put("q", [*range(200, 2200)])
            await tasks.wait_empty("q")
            tasks.stop()
        assert len(seen) == 2101


@BACKENDS
@in_virtual_time
async def test_the_loss_of_a_task_that_was_not_begun_interrupts_no_other(backend: str) -> None:
    """Its attempts were used up, and another client changed it during the move to the dead-letter queue."""
    store = FakeStore(delay=0.01)
    spent: set[str] = set()

    async def change(command: Command[Any]) -> None:
        for part in command.settled if isinstance(command, Work) else ():
            if part.id in spent:
                spent.remove(part.id)
                await store.force(part.id, queue="elsewhere")

    store.before = change
    begun: list[int] = []
    async with handle(store) as tasks:

        @tasks.worker("q", max_attempts=3, concurrency=16)
        async def work(task: Task) -> None:
            begun.append(task.value)
            await anyio.sleep(1)

        for number in range(8):
            await tasks.insert("q", number)
            spent.add(id_ := await tasks.insert("q", "spent"))
            await store.force(id_, attempt=3)
        await tasks.run(until_empty=True)
        assert await store.sizes() == {"elsewhere": 8}
    assert sorted(begun) == [*range(8)]


@BACKENDS
@in_virtual_time
async def test_stop_lets_what_runs_end_and_begins_nothing(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        ended: list[int] = []

        @tasks.worker("q", concurrency=3)
        async def work(task: Task) -> None:
            await anyio.sleep(5)
            ended.append(task.value)

        await tasks.put("q", range(9))
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await anyio.sleep(1)
            tasks.stop()
            before = anyio.current_time()
            while tasks._pools:
                await anyio.sleep(0.01)
            assert anyio.current_time() - before < 4.1
        assert len(ended) == 3
        rows = await store.rows()
        assert len(rows) == 6
        assert {(row.session, row.attempt) for row in rows} == {(None, 0)}
        assert await store.sessions() == 0


@BACKENDS
@in_virtual_time
async def test_stop_begins_nothing_that_waits_for_its_slot(backend: str) -> None:
    store = FakeStore()
    queue = IntervalQueue("p", interval=10, store=MemoryStore(clock=virtual_micros))
    async with handle(store) as tasks, queue:
        begun: list[int] = []

        @tasks.worker("q", queue=queue, concurrency=5)
        async def work(task: Task) -> None:
            begun.append(task.value)
            tasks.stop()
            await anyio.sleep(25)

        await tasks.put("q", range(8))
        before = anyio.current_time()
        await tasks.run()
        assert len(begun) == 1
        assert anyio.current_time() - before < 26
        assert {row.attempt for row in await store.rows()} == {0}
        assert all(row.ready == row.created for row in await store.rows())
        await queue.run(partial(anyio.sleep, 0))
        assert anyio.current_time() - before < 36, "their slots are free for others"


@BACKENDS
@in_virtual_time
async def test_stop_when_nothing_runs_is_at_once(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        tasks.worker("q")(nothing)
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await anyio.sleep(1.01)
            before = anyio.current_time()
            tasks.stop()
            while tasks._pools:
                await anyio.sleep(0.001)
            assert anyio.current_time() - before < 0.01


@BACKENDS
@pytest.mark.parametrize("how", ["grace", "cancel", "close"])
@in_virtual_time
async def test_what_still_runs_at_the_end_is_cancelled_and_given_back(backend: str, how: str) -> None:
    store = FakeStore()
    tasks = handle(store)
    cancelled: list[int] = []

    @tasks.worker("q", concurrency=3)
    async def work(task: Task) -> None:
        try:
            await anyio.sleep(500)
        except anyio.get_cancelled_exc_class():
            cancelled.append(task.value)
            raise

    await tasks.put("q", range(9))
    async with anyio.create_task_group() as group:
        group.start_soon(partial(tasks.run, grace=10))
        await anyio.sleep(1)
        before = anyio.current_time()
        if how == "grace":
            tasks.stop()
        elif how == "cancel":
            group.cancel_scope.cancel()
        else:
            await tasks.aclose()
    took = anyio.current_time() - before
    assert took <= (10.1 if how == "grace" else 0.1)
    assert len(cancelled) == 3
    rows = await store.rows()
    assert len(rows) == 9
    assert {(row.session, row.attempt) for row in rows} == {(None, 0)}
    assert await store.sessions() == 0
    await tasks.aclose()


@BACKENDS
@in_virtual_time
async def test_until_empty_waits_for_delayed_tasks_and_the_store(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        done: list[int] = []

        @tasks.worker("q")
        async def work(task: Task) -> None:
            done.append(task.value)

        await tasks.insert("q", 1)
        await tasks.insert("q", 2, delay=100)
        begun = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(partial(tasks.run, until_empty=True))
            await anyio.sleep(5)
            store.is_down = True
            await anyio.sleep(10)
            store.is_down = False
        assert done == [1, 2]
        assert 100 <= anyio.current_time() - begun <= 102


@in_virtual_time
async def test_a_second_run_at_the_same_time_is_refused() -> None:
    tasks = handle(FakeStore())
    with pytest.raises(InvalidOption, match="nothing to run"):
        await tasks.run()
    tasks.worker("q")(nothing)
    async with tasks, anyio.create_task_group() as group:
        group.start_soon(tasks.run)
        await anyio.sleep(1)
        with pytest.raises(InvalidOption, match="already running"):
            await tasks.run()
        with pytest.raises(InvalidOption, match="before run"):
            tasks.worker("q")(nothing)
        tasks.stop()
    await tasks.run(until_empty=True)  # one after the other is fine
    await tasks.aclose()


@pytest.mark.parametrize("kind", [Work, Count])
@BACKENDS
@in_virtual_time
async def test_a_store_that_cannot_be_worked_with_ends_the_run_with_its_own_error(
    backend: str, kind: type[Command[Any]]
) -> None:
    store = FakeStore()
    tasks = handle(store)
    tasks.worker("q")(nothing)
    tasks.worker("r")(nothing)
    refuses = once(kind)
    store.fails = lambda command: CorruptState("fake", "broken") if refuses(command) else None
    with pytest.raises(CorruptState):
        await tasks.run(until_empty=kind is Count)
    await tasks.aclose()


@BACKENDS
@in_virtual_time
async def test_a_task_whose_end_was_refused_is_free_though_its_session_goes_on(backend: str) -> None:
    store = FakeStore(delay=0.001)
    tasks = handle(store)

    @tasks.worker("q")
    async def work(_task: Task) -> None:
        await anyio.sleep(1)

    id_ = await tasks.insert("q", 1)
    await tasks.insert("hand", 2)
    claim = await tasks.claim("hand")
    is_end = once(Work, lambda command: command.settled)
    store.fails = lambda command: CorruptState("fake", "no") if is_end(command) else None
    with pytest.raises(CorruptState):
        await tasks.run()
    await claim.ack()
    assert (await store.row(id_)).session is None
    await tasks.aclose()


@BACKENDS
@in_virtual_time
async def test_workers_outlive_a_store_that_is_away(backend: str) -> None:
    store = FakeStore()
    async with handle(store, expiry=600) as tasks:
        done: Counter[int] = Counter()

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> object:
            done[task.value] += 1
            await anyio.sleep(1)
            return tasks.new("results", task.value) if task.value % 2 else None

        await tasks.put("q", range(10))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(tasks.run, until_empty=True))
            for pause in (0.5, 30):
                await anyio.sleep(pause)
                store.is_down = not store.is_down
        assert done == dict.fromkeys(range(10), 1)
        assert await store.sizes() == {"results": 5}
