"""Workers whose functions return changes, which are made with the acknowledgement, or are a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from intervalq.errors import DependencyError
from intervalq.tasks import Claim, Reject, Task
from intervalq.tasks.rules import Modify
from tasks.fake_store import FakeStore, handle
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@pytest.mark.parametrize("kind", [list, tuple, None])
@in_virtual_time
async def test_changes_that_are_returned_are_made_with_the_acknowledgement(
    backend: str, kind: Callable[[Any], Any] | None
) -> None:
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


@BACKENDS
@in_virtual_time
async def test_a_task_goes_from_worker_to_worker(backend: str) -> None:
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
        assert tasks._outcomes == {"done": 2, "failed": 2}
        assert await tasks.tasks(ids=[id_]) == []


@BACKENDS
@in_virtual_time
async def test_changes_that_cannot_be_made_are_no_failed_attempt(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        (settings,) = (await tasks.modify(tasks.new("settings", 1, id="settings"))).inserted
        calls: list[int] = []

        @tasks.worker("q", backoff=0)
        async def work(task: Task) -> object:
            calls.append(task.attempt)
            if len(calls) < 9:  # another client changes the task that it depends on
                await tasks.modify((await tasks.tasks("settings"))[0].change(2))
                return settings.depend()
            (now,) = await tasks.tasks(ids=["settings"])
            return [now.depend(), tasks.new("results", now.value)]

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert calls == [1] * 9
        assert [task.value for task in await tasks.tasks("results")] == [2]
        assert tasks._outcomes == {"given back": 8, "done": 1}


@BACKENDS
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("answer", ["changes", "nothing", "error"])
@in_virtual_time
async def test_changes_that_cannot_be_made_can_be_handled(
    backend: str, answer: str, *, is_async: bool
) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        (settings,) = (await tasks.modify(tasks.new("settings", 1, id="settings"))).inserted
        await tasks.modify(settings.change(2))
        reported: list[tuple[str, ...]] = []

        def refused(claim: Claim, error: DependencyError) -> object:
            reported.append(error.depends)
            if answer == "error" or len(reported) > 1:
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
        assert reported == [("settings",)] * (1 + (answer == "nothing"))
        expected = {"results": 1} if answer == "changes" else {"q.dead": 1}
        assert await store.sizes() == {"settings": 1, **expected}


@BACKENDS
@pytest.mark.parametrize("what", ["mixed", "own"])
@in_virtual_time
async def test_wrong_return_values_are_failures_that_say_so(backend: str, what: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", max_attempts=1)
        async def work(task: Task) -> object:
            return task.depend() if what == "own" else [tasks.new("results", 1), 5]

        id_ = await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        row = await store.row(id_)
        assert row.queue == "q.dead"
        assert row.error is not None
        assert ("named twice" if what == "own" else "a worker's function returned") in row.error


@in_virtual_time
async def test_changes_where_they_would_be_overlooked_are_refused() -> None:
    """They are in a generator, in a coroutine that nobody awaited, or among other values."""
    store = FakeStore()
    async with handle(store) as tasks:
        new = tasks.new("results", 1)

        @tasks.worker("q", max_attempts=1)
        async def work(task: Task) -> object:
            results = {"many": (new for _ in range(2)), "in a dict": {"a": new}, "in a list": [[new]]}
            return results[task.value]

        for what in ("many", "in a dict", "in a list"):
            await tasks.insert("q", what)
        await tasks.run(until_empty=True)
        assert await store.sizes() == {"q.dead": 3}
        assert all("a worker's function returned" in row.error for row in await store.rows())


@in_virtual_time
async def test_changes_of_a_function_that_settled_its_claim_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q")
        async def work(task: Claim) -> object:
            await task.ack()
            return tasks.new("results", 1)

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert await store.rows() == []
    assert "is lost" in caplog.text
