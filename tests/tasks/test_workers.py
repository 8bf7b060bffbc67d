"""Workers: each task once, concurrency, failures, ways to end, the pace, and claiming ahead."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from functools import partial

import anyio
import anyio.to_thread
import pytest

from intervalq.errors import InvalidOption
from intervalq.tasks import Reject, Task, Tasks
from tasks.fake_store import FakeStore, RangingStore, handle
from virtual_store import BACKENDS, gather, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_every_task_once_and_never_more_at_a_time_than_allowed(backend: str) -> None:
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


@in_virtual_time
async def test_five_workers_on_queues_of_different_sizes_are_fair() -> None:
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
    await gather(*[partial(tasks.run, until_empty=True) for tasks in handles])
    assert Counter(order) == {"large": 300, "middle": 60, "small": 20}
    last = {queue: place for place, queue in enumerate(order)}
    assert last["small"] < len(order) / 3
    assert last["middle"] < len(order) * 3 / 4


def test_the_decorator_gives_the_function_back() -> None:
    tasks = Tasks("memory://")

    async def work(task: Task, *, more: int = 1) -> None:
        pass

    def plain(task: Task) -> None:
        pass

    assert tasks.worker("q")(work) is work
    assert tasks.worker("other")(plain) is plain
    assert str(inspect.signature(work)) == "(task: 'Task', *, more: 'int' = 1) -> 'None'"
    for bad in ({"concurrency": 0}, {"max_attempts": 0}, {"concurrency": True}):
        with pytest.raises(InvalidOption):
            tasks.worker("q", **bad)
    with pytest.raises(InvalidOption):
        tasks.worker()


def test_a_queue_has_one_worker_of_a_handle() -> None:
    def work(_task: object) -> None:
        pass

    tasks = Tasks("memory://")
    tasks.worker("a", "b")(work)
    for another in (tasks.worker("c", "b"), tasks.worker("c", "b", batch=2)):
        with pytest.raises(InvalidOption, match="queue 'b' already has a worker"):
            another(work)
    tasks.worker("c")(work)  # the refused one has taken nothing
    Tasks("memory://").worker("b")(work)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_plain_functions_run_in_threads_as_many_as_allowed(backend: str) -> None:
    import threading

    async def scenario() -> None:
        store = Tasks(f"memory://threads-{backend}")
        barrier = threading.Barrier(50, timeout=60)  # more than the shared threads
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


@pytest.mark.parametrize("seed", range(10))
@in_virtual_time
async def test_plain_tasks_of_a_range_end_in_any_order_and_each_once(seed: int) -> None:
    """Some take long, so their starts and the ends of others are reported while the range goes on."""
    draw, store = random.Random(seed), RangingStore(delay=0.001)
    ends = {n: (draw.choice((0.0, 0.001, 0.03, 1.0)), draw.random() < 0.3) for n in range(40)}
    done: list[int] = []
    async with handle(store) as tasks:

        @tasks.worker("q", concurrency=6)
        async def work(task: Task) -> None:
            took, fails = ends[task.value]
            await anyio.sleep(took)
            if fails:
                raise Reject("no")
            done.append(task.value)

        await tasks.put("q", range(40))
        await tasks.run(until_empty=True)
        dead = sorted(task.value for task in await tasks.tasks("q.dead"))
    assert dead == [n for n, (_, fails) in ends.items() if fails]
    assert sorted(done) == [n for n, (_, fails) in ends.items() if not fails]
    assert {*map(int, store.done)} <= {*done}
