from __future__ import annotations

import os
import secrets
import sys
import time

import pytest

from backends import both_backends
from intervalq.tasks.rules import Begin, Count, Delete, Insert, Modify, Select, Session, Work
from intervalq.tasks.store import open_task_store
from intervalq.testing import TaskSuite, WakingTaskSuite
from intervalq_stores.memory import tasks as module
from intervalq_stores.memory._task_table import MemoryTable
from intervalq_stores.memory.tasks import MemoryTaskStore

anyio_backend = both_backends


class TestMemoryTaskStore(TaskSuite, WakingTaskSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"


async def test_a_sequence_of_the_suite_can_run_again() -> None:
    """It must not find the outcomes that the first run has left."""
    store = MemoryTaskStore()
    for _ in range(2):
        await TestMemoryTaskStore()._sequence(store, 242)


def put(*ids: str, at: int | None = None) -> Modify:
    return Modify(inserts=tuple(Insert("q", "1", id_, at=at) for id_ in ids))


async def test_stores_of_one_name_have_the_same_tasks_and_others_have_not() -> None:
    name = secrets.token_hex(4)
    await open_task_store(f"memory://{name}").apply(put("a"))
    assert len(await open_task_store(f"memory://{name}/").apply(Select())) == 1
    assert await open_task_store(f"memory://{name}-other").apply(Select()) == ()
    assert await MemoryTaskStore(f"memory://{name}", clock=lambda: 5).apply(Select()) == ()


async def test_a_clock_of_its_own_tells_the_time() -> None:
    store = MemoryTaskStore(clock=lambda: 42)
    assert (await store.apply(put("a"))).inserted[0].created == 42


async def test_a_claim_looks_at_few_of_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryTaskStore(clock=lambda: 10**6)
    for first in range(0, 20_000, 1000):
        await store.apply(put(*(str(n) for n in range(first, first + 1000)), at=1))
    await store.apply(Begin(Session("s")))
    looked: list[str] = []
    is_right = MemoryTable._is_right

    def counted(self: MemoryTable, queue: str, priority: int, entry: tuple[int, str]) -> bool:
        looked.append(entry[1])
        return is_right(self, queue, priority, entry)

    monkeypatch.setattr(MemoryTable, "_is_right", counted)
    for _ in range(10):
        (row,) = (await store.apply(Work("s", queues=("q",), limit=1))).claimed
        assert (await store.apply(Work("s", (Delete(row.id, row.version),)))).lost == ()
    assert len(looked) < 10 * 40


async def test_what_was_renewed_often_takes_no_room() -> None:
    now = 0
    store = MemoryTaskStore(clock=lambda: now)
    await store.apply(put("a"))
    await store.apply(Begin(Session("s", expiry=10**12)))
    for now in range(1, 1000):  # noqa: B007 - the clock reads it
        await store.apply(Work("s", queues=("q",), limit=1, lease=1))
    assert (await store.apply(Count()))[0].most_claims == 999
    assert sum(map(len, store._tasks.table._heaps.values())) < 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_finds_the_lock_free() -> None:
    name = secrets.token_hex(4)
    store = MemoryTaskStore(f"memory://{name}")
    with module._PROCESS._lock, store._tasks.lock:
        child = os.fork()
        if not child:
            free = store._tasks.lock.acquire(blocking=False) and module._PROCESS._lock.acquire(blocking=False)
            os._exit(0 if free else 1)
    end = time.monotonic() + 20
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < end, f"the child hangs, on {sys.platform}"
    assert found[1] == 0
