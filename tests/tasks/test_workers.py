"""Workers: each task once, so many at a time, failures, ends of all kinds, pace, claims ahead."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import pytest

from intervalq import IntervalQueue
from intervalq.errors import CorruptState, DependencyError, InvalidOption, TransactionConflict
from intervalq.tasks import Claim, Reject, Retry, Task, Tasks
from intervalq.tasks.rules import Modify, Work
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import BACKENDS, FakeStore, TransactionStore, at_once, handle, once, scene, until


@BACKENDS
def test_every_task_once_and_never_more_at_a_time_than_allowed(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.002)
        async with handle(store) as tasks:
            seen: Counter[int] = Counter()
            running: Counter[str] = Counter()
            most: Counter[str] = Counter()

            async def work(task: Task) -> None:
                assert task.claims == 1
                running[task.queue] += 1
                most[task.queue] = max(most[task.queue], running[task.queue])
                seen[task.value] += 1
                await anyio.sleep(random.uniform(0, 0.02))
                running[task.queue] -= 1

            tasks.worker("a", concurrency=3)(work)
            tasks.worker("b")(work)
            await tasks.put("a", range(60))
            await tasks.put("b", range(100, 160))
            await tasks.run(until_empty=True, concurrency=7)
            assert most == {"a": 3, "b": 7}
            assert set(seen.values()) == {1}
            assert len(seen) == 120
            assert await store.rows() == []
            assert await store.sessions() == 0

    scene(scenario, backend=backend)


def test_five_workers_on_queues_of_different_sizes_are_fair() -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        order: list[str] = []
        handles = [handle(store.line(delay=0.001)) for _ in range(5)]
        for tasks in handles:

            @tasks.worker("large", "middle", "small", concurrency=1)
            async def work(task: Task) -> None:
                order.append(task.queue)
                await anyio.sleep(0.1)

        for queue, size in {"large": 300, "middle": 60, "small": 20}.items():
            await handles[0].put(queue, range(size))
        await at_once(*[partial(tasks.run, until_empty=True) for tasks in handles])
        assert Counter(order) == {"large": 300, "middle": 60, "small": 20}
        last = {queue: place for place, queue in enumerate(order)}
        assert last["small"] < len(order) / 3
        assert last["middle"] < len(order) * 3 / 4

    scene(scenario)


def test_the_decorator_gives_the_function_back() -> None:
    tasks = Tasks("memory://")

    async def work(task: Task, *, more: int = 1) -> None:
        pass

    def plain(task: Task) -> None:
        pass

    assert tasks.worker("q")(work) is work
    assert tasks.worker("q")(plain) is plain
    assert str(inspect.signature(work)) == "(task: 'Task', *, more: 'int' = 1) -> 'None'"
    for bad in ({"concurrency": 0}, {"max_attempts": 0}, {"concurrency": True}):
        with pytest.raises(InvalidOption):
            tasks.worker("q", **bad)
    with pytest.raises(InvalidOption):
        tasks.worker()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_plain_functions_run_in_threads_as_many_as_allowed(backend: str) -> None:
    import threading

    async def scenario() -> None:
        store = Tasks(f"memory://threads-{backend}")
        barrier = threading.Barrier(50, timeout=60)  # more than the threads that all share
        threads: set[int] = set()

        @store.worker("q", concurrency=50)
        def work(task: Task) -> None:
            threads.add(threading.get_ident())
            barrier.wait()

        async with store:
            await store.put("q", range(50))
            await store.run(until_empty=True)
        assert len(threads) == 50
        assert threading.get_ident() not in threads

    anyio.run(scenario, backend=backend)


@BACKENDS
def test_a_failed_task_is_tried_again_and_then_dead(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            attempts: list[tuple[int, str, float]] = []

            @tasks.worker("q", max_attempts=3, backoff=10)
            async def work(task: Task) -> None:
                attempts.append((task.attempt, task.error, anyio.current_time()))
                raise ValueError(f"no {task.attempt}")

            id_ = await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            assert [attempt for attempt, _, _ in attempts] == [1, 2, 3]
            assert [error for _, error, _ in attempts] == ["", "ValueError: no 1", "ValueError: no 2"]
            row = await store.row(id_)
            assert (row.queue, row.attempt, row.error) == ("q.dead", 3, "ValueError: no 3")

    scene(scenario, backend=backend)


def test_the_backoff_grows_with_jitter_up_to_a_minute() -> None:
    async def scenario() -> list[list[float]]:
        store = FakeStore()
        begins: dict[str, list[float]] = {}
        async with handle(store) as tasks:

            @tasks.worker("q", max_attempts=10, concurrency=200)
            async def work(task: Task) -> None:
                begins.setdefault(task.id, []).append(anyio.current_time())
                raise ValueError

            await tasks.put("q", range(200))
            await tasks.run(until_empty=True)
        return [[later - earlier for earlier, later in pairwise(times)] for times in begins.values()]

    pauses = scene(scenario)
    assert len(pauses) == 200
    for attempt in range(9):
        limit = min(60.0, 2.0**attempt)
        ones = sorted(pause[attempt] for pause in pauses)
        assert ones[-1] <= limit + 1  # and the poll
        assert ones[-1] > 0.8 * limit
        assert ones[0] < 0.2 * limit + 0.6
        assert len({round(one, 3) for one in ones}) > 20


@BACKENDS
def test_retry_and_reject(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            begins: list[tuple[Any, float]] = []

            @tasks.worker("q", max_attempts=3)
            async def work(task: Task) -> None:
                begins.append((task.value, anyio.current_time()))
                if task.value == "reject":
                    raise Reject("never")
                raise Retry("not yet", delay=20)

            ids = [await tasks.insert("q", value) for value in ("reject", "retry")]
            await tasks.run(until_empty=True)
            assert [value for value, _ in begins].count("reject") == 1
            retries = [when for value, when in begins if value == "retry"]
            assert len(retries) == 3
            assert all(19.99 <= later - earlier <= 21 for earlier, later in pairwise(retries))
            rows = [await store.row(id_) for id_ in ids]
            assert [(row.queue, row.attempt) for row in rows] == [("q.dead", 1), ("q.dead", 3)]
            assert rows[0].error.endswith("Reject: never")
            assert rows[1].error.endswith("Retry: not yet")

    scene(scenario, backend=backend)


def test_attempts_that_killed_their_worker_count() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            began: list[int] = []

            @tasks.worker("q", max_attempts=3)
            async def work(task: Task) -> None:
                began.append(task.value)
                if task.value == 13:
                    await store.lapse()  # as if this process had died
                    await anyio.sleep(100)

            id_ = await tasks.insert("q", 13)
            await tasks.put("q", range(5))
            await tasks.run(until_empty=True)
            assert began.count(13) == 3
            assert set(began) == {0, 1, 2, 3, 4, 13}
            row = await store.row(id_)
            assert row.queue == "q.dead"
            assert (row.attempt, row.error.endswith("was lost (3 attempts)")) == (3, True)

    scene(scenario)


@BACKENDS
def test_an_attempt_that_takes_too_long_has_failed(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            began: list[float] = []

            @tasks.worker("q", timeout=2, max_attempts=2, backoff=0)
            async def work(task: Task) -> None:
                began.append(anyio.current_time())
                await anyio.sleep(1000)

            id_ = await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            assert len(began) == 2
            assert 2 <= began[1] - began[0] <= 3
            assert (await store.row(id_)).error == "TimeoutError"

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("kind", [list, tuple, None])
def test_changes_that_are_returned_are_made_with_the_acknowledgement(
    backend: str, kind: Callable[[Any], Any] | None
) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        async with handle(store) as tasks:

            @tasks.worker("q")
            async def work(task: Task) -> object:
                part = tasks.new("results", task.value, id=f"r{task.value}")
                return kind([part]) if kind else part

            @tasks.worker("empty")
            async def nothing(task: Task) -> object:
                return []

            await tasks.put("q", range(20))
            await tasks.put("empty", range(20))
            await tasks.run(until_empty=True)
            assert {row.id for row in await store.rows()} == {f"r{n}" for n in range(20)}
            modifies = [call for call in store.calls if isinstance(call, Modify) and call.deletes]
            assert len(modifies) == 20
            assert all(len(call.inserts) == len(call.deletes) == 1 for call in modifies)

    scene(scenario, backend=backend)


@BACKENDS
def test_a_task_goes_from_worker_to_worker(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        async with handle(store) as tasks:
            seen: list[tuple[str, int, str]] = []

            @tasks.worker("q", backoff=0)
            async def first(task: Task) -> object:
                seen.append((task.queue, task.attempt, task.error))
                if task.attempt < 3:
                    raise ValueError("not yet")
                return task.change(task.value + 1, queue="next")

            @tasks.worker("next", max_attempts=1)
            async def second(task: Task) -> object:
                seen.append((task.queue, task.attempt, task.error))
                assert task.value == 2
                return [task.delete(), tasks.new("results", task.value)]

            id_ = await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            error = "ValueError: not yet"
            assert seen == [("q", 1, ""), ("q", 2, error), ("q", 3, error), ("next", 1, "")]
            assert await store.sizes() == {"results": 1}
            assert tasks.counts == {"done": 2, "failed": 2}
            assert await tasks.tasks(ids=[id_]) == []

    scene(scenario, backend=backend)


@BACKENDS
def test_changes_that_cannot_be_made_are_no_failed_attempt(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            (settings,) = (await tasks.modify(tasks.new("settings", 1, id="settings"))).inserted
            calls: list[int] = []

            @tasks.worker("q", backoff=0)
            async def work(task: Task) -> object:
                calls.append(task.attempt)
                if len(calls) < 9:  # somebody changes what it depends on
                    await tasks.modify((await tasks.tasks("settings"))[0].change(2))
                    return settings.depend()
                (now,) = await tasks.tasks(ids=["settings"])
                return [now.depend(), tasks.new("results", now.value)]

            await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            assert calls == [1] * 9
            assert [task.value for task in await tasks.tasks("results")] == [2]
            assert tasks.counts == {"given back": 8, "done": 1}

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("answer", ["changes", "nothing", "error"])
def test_changes_that_cannot_be_made_can_be_handled(backend: str, answer: str, *, is_async: bool) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            (settings,) = (await tasks.modify(tasks.new("settings", 1, id="settings"))).inserted
            await tasks.modify(settings.change(2))
            told: list[tuple[str, ...]] = []

            def refused(claim: Claim, error: DependencyError) -> object:
                told.append(error.depends)
                if answer == "error" or len(told) > 1:
                    raise Reject(f"{claim.attempt}")
                return tasks.new("results", claim.value) if answer == "changes" else None

            async def refused_later(claim: Claim, error: DependencyError) -> object:
                await anyio.sleep(1)
                return refused(claim, error)

            @tasks.worker("q", backoff=0, on_dependency=refused_later if is_async else refused)
            async def work(task: Task) -> object:
                return settings.depend()

            await tasks.insert("q", 5)
            await tasks.run(until_empty=True)
            assert told == [("settings",)] * (1 + (answer == "nothing"))
            expected = {"results": 1} if answer == "changes" else {"q.dead": 1}
            assert await store.sizes() == {"settings": 1, **expected}

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("what", ["done", 5, ["x"], {"a": 1}, "own"])
def test_wrong_return_values_are_failures_that_say_so(backend: str, what: object) -> None:
    async def scenario() -> str:
        store = FakeStore()
        async with handle(store) as tasks:

            @tasks.worker("q", max_attempts=1)
            async def work(task: Task) -> object:
                return task.depend() if what == "own" else what

            id_ = await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            row = await store.row(id_)
            assert row.queue == "q.dead"
            return row.error

    error = scene(scenario, backend=backend)
    assert ("named twice" if what == "own" else "a worker's function gave") in error


def test_changes_of_a_function_that_settled_its_claim_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:

            @tasks.worker("q")
            async def work(task: Claim) -> object:
                await task.ack()
                return tasks.new("results", 1)

            await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            assert await store.rows() == []

    scene(scenario)
    assert "they are lost" in caplog.text


@BACKENDS
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_function_that_ends_the_process_ends_the_run_in_good_order(
    backend: str, error: type[BaseException]
) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    async def scenario() -> None:
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
            await tasks.run(until_empty=True)  # the runners are all still there
            assert Counter(began) == dict.fromkeys(range(10), 2)
            assert await store.sizes() == {"q.dead": 10}

    scene(scenario)


@BACKENDS
def test_a_function_that_swallows_its_cancellation_harms_only_itself(backend: str) -> None:
    async def scenario() -> None:
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
                    except BaseException:  # noqa: BLE001 - what must be borne
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
                tasks._pools[0]._ahead = 3  # so that others wait for this runner
                await tasks.put("q", range(1, 4))
                await until(lambda: len(ended) == 4)
                tasks.stop()
            assert sorted(ended) == [-1, 1, 2, 3]
            assert sorted(began) == [0, 1, 2, 3]
            assert await store.sizes() == {"elsewhere": 1}

    scene(scenario, backend=backend)


@BACKENDS
def test_a_worker_whose_session_lapsed_goes_on_with_other_tasks(backend: str) -> None:
    async def scenario() -> None:
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
            assert tasks.counts == {"lost": 2, "done": 3}
            assert await store.rows() == []

    scene(scenario, backend=backend)


def test_a_thousand_claims_ahead_that_are_lost_are_only_lost() -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            seen: Counter[int] = Counter()

            @tasks.worker("q", concurrency=1, max_attempts=None)
            async def work(task: Task) -> None:
                seen[task.value] += 1
                if task.value == 5000 and task.attempt == 1:
                    await store.lapse()
                    tasks.session().lapsed()
                    assert sum(len(pool._waiting) for pool in tasks._pools) > 990

            await tasks.put("q", range(100))
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await until(lambda: len(seen) == 100)
                await tasks.put("q", [5000])
                await tasks.put("q", [*range(200, 2200)])
                await tasks.wait_empty("q")
                tasks.stop()
            assert len(seen) == 2101

    scene(scenario)


@BACKENDS
def test_stop_lets_what_runs_end_and_begins_nothing(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_stop_when_nothing_runs_is_at_once(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            tasks.worker("q")(_nothing)
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await anyio.sleep(1.01)
                before = anyio.current_time()
                tasks.stop()
                while tasks._pools:
                    await anyio.sleep(0.001)
                assert anyio.current_time() - before < 0.01

    scene(scenario, backend=backend)


async def _nothing(task: Task) -> None:
    pass


@BACKENDS
@pytest.mark.parametrize("how", ["grace", "cancel", "close"])
def test_what_still_runs_at_the_end_is_cancelled_and_given_back(backend: str, how: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_until_empty_waits_for_delayed_tasks_and_the_store(backend: str) -> None:
    async def scenario() -> float:
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
            return anyio.current_time() - begun

    assert 100 <= scene(scenario, backend=backend) <= 102


def test_a_second_run_at_the_same_time_is_refused() -> None:
    async def scenario() -> None:
        tasks = handle(FakeStore())
        with pytest.raises(InvalidOption, match="nothing to run"):
            await tasks.run()
        tasks.worker("q")(_nothing)
        async with tasks, anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await anyio.sleep(1)
            with pytest.raises(InvalidOption, match="run already"):
                await tasks.run()
            tasks.stop()
        await tasks.run(until_empty=True)  # one after the other is fine
        await tasks.aclose()

    scene(scenario)


@BACKENDS
def test_a_store_that_cannot_be_worked_with_ends_the_run_with_its_own_error(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        tasks = handle(store)
        tasks.worker("q")(_nothing)
        tasks.worker("r")(_nothing)
        refuses = once(Work)
        store.fails = lambda command: CorruptState("fake", "broken") if refuses(command) else None
        with pytest.raises(CorruptState):
            await tasks.run()
        await tasks.aclose()

    scene(scenario, backend=backend)


@BACKENDS
def test_workers_outlive_a_store_that_is_away(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


def test_quick_tasks_are_claimed_ahead_and_slow_ones_not() -> None:
    async def scenario(takes: float) -> int:
        store = FakeStore(delay=0.005)
        async with handle(store) as tasks:

            @tasks.worker("q", concurrency=2)
            async def work(task: Task) -> None:
                await anyio.sleep(takes)

            await tasks.put("q", range(100))
            await tasks.run(until_empty=True)
            return max(call.limit for call in store.calls if isinstance(call, Work))

    assert scene(scenario, 0.0001) > 20
    assert scene(scenario, 0.1) == 2


def test_what_was_claimed_ahead_and_does_not_begin_is_given_back() -> None:
    async def scenario() -> None:
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
                held = len(tasks.session().batcher.held)
                await anyio.sleep(2)
                assert len(tasks.session().batcher.held) == 1
                assert held > 1
                group.start_soon(others.run)
                await until(lambda: len(taken) == 50)
                tasks.stop()
                others.stop()

    scene(scenario)


def test_a_steady_stream_is_not_taken_for_stale() -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:

            @tasks.worker("q", concurrency=2)
            async def work(task: Task) -> None:
                await anyio.sleep(0.001)

            await tasks.put("q", range(8000))
            await tasks.run(until_empty=True)  # takes four seconds
            assert tasks.counts == {"done": 8000}

    scene(scenario)


@BACKENDS
@pytest.mark.parametrize("conflicts", [3, 5, 6])
def test_a_function_whose_transaction_met_another_is_run_again(backend: str, conflicts: int) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_a_worker_is_paced_over_two_handles_and_holds_its_claims_meanwhile(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


def test_workers_with_paces_of_their_own_in_one_handle() -> None:
    async def scenario() -> None:
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

    scene(scenario)


@BACKENDS
def test_a_pace_that_cannot_be_asked_is_no_failed_attempt(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_a_task_that_waits_for_a_slot_does_not_begin_after_a_stop(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            queue = IntervalQueue("p", interval=100, store=MemoryStore(clock=virtual_micros))
            begun: list[int] = []
            tasks.worker("q", queue=queue, concurrency=2)(lambda task: begun.append(task.value))
            async with queue.slot():
                pass
            id_ = await tasks.insert("q", 1)
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await anyio.sleep(1)
                assert (await store.row(id_)).session is not None
                since = anyio.current_time()
                tasks.stop()
            assert anyio.current_time() - since < 1, "it does not wait for the slot"
            row = await store.row(id_)
            assert (row.session, row.attempt, begun) == (None, 0, [])
            assert row.at <= virtual_micros(), "others may have it at once"
            await queue.close()

    scene(scenario, backend=backend)


@BACKENDS
def test_a_run_leaves_claims_and_calls_of_others_alone(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            tasks.worker("q")(_nothing)
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

    scene(scenario, backend=backend)


def test_a_task_whose_function_changed_it_by_itself_is_done() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:

            @tasks.worker("q")
            async def work(task: Task) -> None:
                await tasks.modify(task.delete(), tasks.new("results", task.value))
                await anyio.sleep(3)

            await tasks.insert("q", 1)
            await tasks.run(until_empty=True)
            assert tasks.counts == {"done": 1}
            assert await store.sizes() == {"results": 1}

    scene(scenario)


def test_errors_that_cannot_say_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def scenario() -> None:
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

    caplog.set_level(logging.CRITICAL)
    scene(scenario)
