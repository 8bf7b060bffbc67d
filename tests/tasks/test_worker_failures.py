"""Workers whose tasks fail: retried with backoff, rejected, or moved to the dead-letter queue."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread

from intervalq.tasks import Reject, Retry, Snooze, Task
from tasks.fake_store import FakeStore, handle
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_a_failed_task_is_tried_again_and_then_dead(backend: str) -> None:
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


@in_virtual_time
async def test_the_backoff_grows_with_jitter_up_to_a_minute() -> None:
    store = FakeStore()
    begins: dict[str, list[float]] = {}
    async with handle(store) as tasks:

        @tasks.worker("q", max_attempts=10, concurrency=200)
        async def work(task: Task) -> None:
            begins.setdefault(task.id, []).append(anyio.current_time())
            raise ValueError

        await tasks.put("q", range(200))
        await tasks.run(until_empty=True)
    pauses = [[later - earlier for earlier, later in pairwise(times)] for times in begins.values()]
    assert len(pauses) == 200
    for attempt in range(9):
        limit = min(60.0, 2.0**attempt)
        ones = sorted(pause[attempt] for pause in pauses)
        assert ones[-1] <= limit + 1  # and the poll
        assert ones[-1] > 0.8 * limit
        assert ones[0] < 0.2 * limit + 0.6
        assert len({round(one, 3) for one in ones}) > 20


@BACKENDS
@in_virtual_time
async def test_retry_and_reject(backend: str) -> None:
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
        assert rows[0].error == "intervalq.tasks.Reject: never"
        assert rows[1].error == "intervalq.tasks.Retry: not yet"


@in_virtual_time
async def test_attempts_that_killed_their_worker_count() -> None:
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


@BACKENDS
@in_virtual_time
async def test_an_attempt_that_takes_too_long_has_failed(backend: str) -> None:
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


@BACKENDS
@in_virtual_time
async def test_a_snoozed_task_runs_again_after_its_time_and_no_attempt_counts(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        runs: list[tuple[int, str, float]] = []

        @tasks.worker("q", max_attempts=2)
        async def work(task: Task) -> None:
            runs.append((task.attempt, task.error, anyio.current_time()))
            if len(runs) == 1:
                raise Retry("not yet", delay=0)
            if len(runs) < 6:
                await anyio.sleep(1)  # the store is told that it began: that has to be taken back
                raise Snooze("5m")

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert [(attempt, error) for attempt, error, _ in runs] == [
            (1, ""),
            *[(2, "intervalq.tasks.Retry: not yet")] * 5,
        ]
        pauses = [later - earlier for (*_, earlier), (*_, later) in pairwise(runs[1:])]
        assert all(301 <= pause < 302 for pause in pauses)
        assert tasks._outcomes == {"failed": 1, "snoozed": 4, "done": 1}


@BACKENDS
@in_virtual_time
async def test_plain_functions_and_callers_can_snooze_too(backend: str) -> None:
    async with handle(FakeStore()) as tasks:
        began: list[float] = []

        @tasks.worker("q", max_attempts=1)
        def work(task: Task) -> None:
            began.append(task.attempt)
            if len(began) == 1:
                raise Snooze(60)

        await tasks.put("q", [1])
        await tasks.run(until_empty=True)
        assert began == [1, 1]
        await tasks.insert("r", 1)
        claim = await tasks.claim("r")
        before = anyio.current_time()
        await claim.snooze("1h")
        again = await tasks.claim("r")
        assert again.attempt == 1
        assert 3600 <= anyio.current_time() - before < 3601
        await again.ack()
