"""With a store that may forget claims, work begins on no task that others may have by now."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import anyio

from intervalq import IntervalQueue
from intervalq.tasks import Task
from intervalq.tasks.rules import Row, Work
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, handle, until
from virtual_store import BACKENDS, in_virtual_time


class ForgettingStore(FakeStore):
    """A store that says of each claim whether it is certain."""

    def __init__(self) -> None:
        super().__init__(delay=0.001)
        self.is_sure = True

    def holds(self, session: str, row: Row) -> bool:
        assert session == row.session
        return self.is_sure


@BACKENDS
@in_virtual_time
async def test_what_was_claimed_ahead_is_given_back_when_it_is_in_doubt(backend: str) -> None:
    store = ForgettingStore()
    async with handle(store) as tasks:
        begun: Counter[tuple[int, int, bool]] = Counter()
        ahead: list[int] = []

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> None:
            begun[task.value, task.attempt, store.is_sure] += 1
            await anyio.sleep(0.001)
            if task.value == 100:
                ahead.append(sum(row.session is not None for row in await store.rows()))
                store.is_sure = False

        await tasks.put("q", range(200))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(tasks.run, until_empty=True))
            await until(lambda: not store.is_sure)
            await anyio.sleep(0.5)
            assert tasks._outcomes["given back"] >= ahead[0] - 2 > 0
            store.is_sure = True
        assert begun == {(value, 1, True): 1 for value in range(200)}


@BACKENDS
@in_virtual_time
async def test_what_is_to_run_alone_does_not_when_it_is_in_doubt_by_then(backend: str) -> None:
    store = ForgettingStore()
    async with handle(store) as tasks:
        begun: list[bool] = []
        reported: list[Any] = []

        @tasks.worker("q")
        async def work(task: Task) -> None:
            begun.append(store.is_sure)
            await anyio.sleep(100 if len(begun) == 1 else 0)

        async def tell(command: Any) -> None:
            if isinstance(command, Work) and command.begun and len(begun) == 1 and not reported:
                reported.append(command.begun)
                store.is_sure = False

        await tasks.insert("q", 1)
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: bool(begun))
            await anyio.sleep(0.1)  # the store knows that it has begun
            await store.lapse()
            store.after = tell
            await until(lambda: bool(reported))
            await anyio.sleep(0.5)
            assert begun == [True]
            assert tasks._outcomes["given back"] > 0
            store.is_sure = True
            await tasks.wait_empty("q")
            tasks.stop()
        assert begun == [True, True]


@in_virtual_time
async def test_what_has_waited_for_its_slot_does_not_begin_when_it_is_in_doubt_by_then() -> None:
    store = ForgettingStore()
    pace = IntervalQueue("pace", interval=10, store=MemoryStore(clock=virtual_micros))
    async with handle(store) as tasks, pace:
        begun: list[tuple[int, bool]] = []

        @tasks.worker("q", queue=pace)
        async def work(task: Task) -> None:
            begun.append((task.value, store.is_sure))

        await tasks.put("q", range(3))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(tasks.run, until_empty=True))
            await until(lambda: len(begun) == 1)
            await anyio.sleep(5)
            store.is_sure = False
            await until(lambda: tasks._outcomes["given back"] > 0)
            store.is_sure = True
        assert sorted(begun) == [(0, True), (1, True), (2, True)]
