"""Workers whose pace, or its costs, depend on the task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.errors import InvalidOption, TransactionConflict
from intervalq.tasks import Claim
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, handle, nothing
from virtual_store import BACKENDS, in_virtual_time


def paced(name: str = "pace", **options: Any) -> IntervalQueue:
    return IntervalQueue(name, store=MemoryStore(clock=virtual_micros), **options)


@BACKENDS
@in_virtual_time
async def test_each_key_has_its_own_pace(backend: str) -> None:
    begins: dict[str | None, list[float]] = defaultdict(list)
    pace = paced(interval=2)
    async with handle(FakeStore(delay=0.001)) as tasks:

        @tasks.worker("q", queue=lambda task: None if task.key is None else pace[task.key])
        async def work(task: Claim) -> None:
            begins[task.key].append(anyio.current_time())
            assert (task.slot is None) == (task.key is None)

        for _ in range(5):
            await tasks.modify(*[tasks.new("q", 1, key=key) for key in ("ada", "ben", None)])
        await tasks.run(until_empty=True)
    await pace.close()
    assert {key: len(times) for key, times in begins.items()} == {"ada": 5, "ben": 5, None: 5}
    for key in ("ada", "ben"):
        assert all(1.99 < later - earlier < 2.2 for earlier, later in pairwise(begins[key]))
    assert abs(begins["ada"][4] - begins["ben"][4]) < 1.9, "they waited for each other"
    assert begins[None][4] - begins[None][0] < 0.5


@in_virtual_time
async def test_costs_are_settled_by_what_the_function_learns() -> None:
    begins: list[float] = []
    pace = paced(limits=["100 tokens/min"])
    async with handle(FakeStore()) as tasks:

        @tasks.worker("q", queue=pace, cost=lambda task: {"tokens": task.value}, concurrency=1)
        async def work(task: Claim) -> None:
            begins.append(anyio.current_time())
            assert task.slot is not None
            task.slot.settle(tokens=10)

        for tokens in (90, 90, 90, 90):
            await tasks.insert("q", tokens)
        await tasks.run(until_empty=True)
    await pace.close()
    # Estimates alone would let one begin each minute. Each takes 10, so 90 don't fit only after the first.
    assert len(begins) == 4
    assert begins[1] - begins[0] < 10
    assert 50 < begins[3] - begins[0] < 130


@pytest.mark.parametrize("batch", [None, 2])
@in_virtual_time
async def test_a_call_that_is_repeated_after_a_conflict_has_another_slot(batch: int | None) -> None:
    begins: list[float] = []
    pace = paced(interval=1, limits=["1000 tokens/min"])
    async with handle(FakeStore()) as tasks:

        async def work(given: Any) -> int:
            claim = given[0] if batch else given
            begins.append(anyio.current_time())
            claim.slot.settle(tokens=5)
            if len(begins) == 1:
                raise TransactionConflict("fake", "it met another")
            return 5  # a chunk may return something, too

        options: dict[str, Any] = {"batch": batch} if batch else {}
        register: Any = tasks.worker("q", queue=pace, cost={"tokens": 9}, max_attempts=1, **options)
        register(work)
        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert tasks._outcomes == {"done": 1}
    await pace.close()
    assert len(begins) == 2
    assert begins[1] - begins[0] > 0.9


@in_virtual_time
async def test_a_chunk_pays_its_fixed_cost_and_its_tasks_share_its_slot() -> None:
    slots: list[set[object]] = []
    begins: list[float] = []
    pace = paced(interval=1)
    async with handle(FakeStore()) as tasks:

        @tasks.worker("q", batch=4, queue=pace, cost=3, concurrency=1)
        async def work(claims: list[Claim]) -> None:
            begins.append(anyio.current_time())
            slots.append({claim.slot for claim in claims})

        await tasks.modify(*[tasks.new("q", number) for number in range(12)])
        await tasks.run(until_empty=True)
    await pace.close()
    assert all(len(one) == 1 and None not in one for one in slots)
    assert len(set.union(*slots)) == len(slots) == 3
    assert all(2.9 < later - earlier < 3.2 for earlier, later in pairwise(begins))


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (lambda task: {"ada": None}[task.value], "KeyError: 'nobody'"),
        (lambda _task: "pace", "queue= returned a str for a task: return an IntervalQueue"),
    ],
)
@in_virtual_time
async def test_a_choice_that_fails_is_a_failed_attempt(choose: Callable[[Claim], Any], says: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        tasks.worker("q", queue=choose, max_attempts=2)(nothing)
        await tasks.insert("q", "nobody")
        await tasks.run(until_empty=True)
        (row,) = await store.rows()
        assert (row.queue, row.attempt) == ("q.dead", 2)
        assert says in row.error


@in_virtual_time
async def test_a_task_that_costs_more_than_a_limit_allows_fails_and_says_so() -> None:
    store = FakeStore()
    pace = paced(limits=["100 tokens/min"])
    async with handle(store) as tasks:
        tasks.worker("q", queue=pace, cost=lambda _: {"tokens": 101}, max_attempts=1)(nothing)
        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        (row,) = await store.rows()
        assert row.queue == "q.dead"
        assert "101" in row.error
    await pace.close()


def choice(_task: Claim) -> IntervalQueue:
    raise AssertionError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cost": 2}, "give queue="),
        ({"queue": "pace"}, "must be an intervalq.IntervalQueue"),
        ({"queue": choice, "batch": 10}, "can't be functions of a task"),
        ({"queue": paced(interval=1), "cost": lambda _: 1, "batch": 10}, "can't be functions of a task"),
        ({"queue": paced(interval=1), "cost": 0}, "cost"),
        ({"queue": paced(interval=1), "cost": {"tokens": 5}}, "tokens"),
    ],
)
def test_what_disagrees_is_refused_when_the_function_is_decorated(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        handle(FakeStore()).worker("q", **options)
