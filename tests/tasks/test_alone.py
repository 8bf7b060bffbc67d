"""A task that was lost with its session runs alone, charged only if it began; acknowledgements don't wait."""

from __future__ import annotations

import time
from collections import Counter

import anyio

from intervalq.tasks import Claim, Task
from intervalq.tasks._session.alone import PATIENCE
from intervalq.tasks._session.begun import REPORTED_AFTER, Begun
from intervalq.tasks._worker.intake import FIRST, SHARE
from intervalq.tasks.rules import Work
from intervalq_stores.memory.tasks import MemoryTaskStore
from tasks.fake_store import FakeStore, handle, until
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_what_a_lost_session_had_begun_runs_alone_and_others_wait(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:
        running: set[int] = set()
        beside: dict[int, set[int]] = {}
        begun: Counter[int] = Counter()

        async def work(task: Task) -> None:
            begun[task.value] += 1
            running.add(task.value)
            for value in running:
                beside.setdefault(value, set()).update(running)
            try:
                await anyio.sleep(0.5 + task.value % 7 / 10)
            finally:
                running.discard(task.value)

        tasks.worker("q", concurrency=4)(work)
        tasks.worker("other", concurrency=2)(work)
        await tasks.put("q", range(20))
        await tasks.put("other", range(100, 160))
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await anyio.sleep(0.45)
            lost = set(running)
            assert len(lost) == 6
            beside.clear()
            await store.lapse()
            assert {row.attempt for row in await store.rows() if row.alone} == {1}
            await tasks.wait_empty("q", "other")
            tasks.stop()
        again = {value for value, count in begun.items() if count > 1}
        assert again == lost
        assert {value: beside[value] for value in lost} == {value: {value} for value in lost}
        assert max(len(values) for values in beside.values()) > 3


@BACKENDS
@in_virtual_time
async def test_the_store_knows_what_runs_and_no_more_before_a_lapse(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> None:
            await anyio.sleep(0.001 if task.value < 200 else 100)

        await tasks.put("q", range(240))
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: tasks._outcomes["done"] >= 200)
            await anyio.sleep(20 * REPORTED_AFTER)
            rows = await store.rows()
            assert {(row.begun, row.attempt) for row in rows} == {(True, 1), (False, 0)}
            assert sum(row.session is not None for row in rows) > 2
            await store.lapse()
            rows = await store.rows()
            assert sum(row.attempt for row in rows) == 2
            assert {row.error.endswith("was lost") for row in rows if row.attempt} == {True}
            assert {row.error for row in rows if not row.attempt} == {""}
            group.cancel_scope.cancel()


@in_virtual_time
async def test_quick_tasks_are_marked_by_no_calls_of_their_own() -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:

        @tasks.worker("q")
        async def work(task: Task) -> None:
            await anyio.sleep(0.0001)

        await tasks.put("q", range(2000))
        await tasks.run(until_empty=True)
        calls = [call for call in store.calls if isinstance(call, Work)]
        assert sum(len(call.begun) for call in calls) == 0
        limits = [call.limit for call in calls if call.queues]
        done = 0
        for call in calls:
            assert call.limit <= 10 + FIRST + done // SHARE
            done += len(call.settled)
        assert limits[-1] > limits[0]


@in_virtual_time
async def test_a_task_that_runs_alone_for_long_holds_others_up_no_longer() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        begins: dict[int, list[float]] = {}

        @tasks.worker("q", concurrency=3)
        async def work(task: Task) -> None:
            begins.setdefault(task.value, []).append(anyio.current_time())
            if task.value == 1 and len(begins[1]) == 1:
                await store.lapse()
            await anyio.sleep(10 * PATIENCE if task.value == 1 else 0.01)

        await tasks.put("q", [1])
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: len(begins.get(1, [])) == 2)
            await tasks.put("q", [2])
            await until(lambda: 2 in begins)
            assert PATIENCE <= begins[2][0] - begins[1][1] <= 3 * PATIENCE
            group.cancel_scope.cancel()


def test_acknowledgements_leave_while_functions_give_the_loop_no_turn() -> None:
    """At each start, tasks that are done but still stored are counted. A busy machine makes that fewer."""

    async def scenario() -> None:
        store = MemoryTaskStore("memory://breath")
        done = 0
        late: list[int] = []
        async with handle(store) as tasks:

            @tasks.worker("q")
            async def work(task: Task) -> None:
                nonlocal done
                late.append(done - (1500 - len(store._tasks.table._rows)))
                end = time.monotonic() + 0.0005
                while time.monotonic() < end:
                    pass
                done += 1

            await tasks.put("q", range(1500))
            await tasks.run(until_empty=True)
        assert max(late) < 60

    anyio.run(scenario)


@BACKENDS
@in_virtual_time
async def test_who_waits_for_the_report_of_a_start_is_woken_when_the_session_has_ended(backend: str) -> None:
    begun, claim = Begun(), Claim.__new__(Claim)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(begun.first, claim)
            await anyio.sleep(1)
            begun.clear()
    assert begun.take(0) == []
