"""The handle: the process and event loop that it belongs to, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from intervalq.errors import (
    InboxFull,
    InvalidInterval,
    InvalidOption,
    InvalidTask,
    UnknownStore,
    WrongLoop,
)
from intervalq.tasks import Task, Tasks
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, handle


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_nothing_is_left_behind(backend: str) -> None:
    async def scenario() -> None:
        before = _tasks(backend)
        tasks = Tasks(f"memory://left-{backend}")

        @tasks.worker("q")
        async def work(task: Task) -> None:
            pass

        async with tasks:
            await tasks.put("q", range(50))
            await tasks.run(until_empty=True)
            claim = await _claimed(tasks)
            await claim.in_progress()
            with anyio.move_on_after(0):
                await tasks.claim("q")
            assert await tasks.pull("q", name="me").fetch(no_wait=True) == []
            assert len(await tasks.sessions()) == 2
            await claim.ack()
        assert await Tasks(f"memory://left-{backend}").sessions() == []
        for _ in range(10):  # ended tasks are removed in the next turns of the event loop
            await anyio.lowlevel.checkpoint()
        assert _tasks(backend) == before

    # Threads of earlier tests may end meanwhile, so only new ones count.
    threads = set(threading.enumerate())
    anyio.run(scenario, backend=backend)
    assert not set(threading.enumerate()) - threads


def test_a_store_that_holds_no_tasks_is_refused_at_once() -> None:
    wrong: Any = MemoryStore()
    with pytest.raises(
        InvalidOption, match=r"MemoryStore.* not tasks: give Tasks a URL, a path or a store of"
    ):
        Tasks(wrong)
    wrong = 5
    with pytest.raises(InvalidOption, match="store=5 is not a store"):
        Tasks(wrong)


async def _claimed(tasks: Tasks) -> Any:
    await tasks.insert("q", 1)
    return await tasks.claim("q")


def _tasks(backend: str) -> int:
    if backend == "trio":
        import trio

        return trio.lowlevel.current_statistics().tasks_living
    loop: Any = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]
    return len(asyncio.all_tasks()) + len(timers)


_ENDS = """
import sys, anyio
from intervalq.tasks import Tasks
tasks = Tasks("memory://")

async def main():
    await tasks.insert("q", 1)
    claim = await tasks.claim("q")
    pull = tasks.pull("r", name="me")
    assert await pull.fetch(no_wait=True) == []
    {end}

async def after():
    assert [task.claimant for task in await tasks.tasks("q")] == [None]
    assert await tasks.sessions() == []
    claim = await tasks.claim("q")
    await claim.ack()
    await tasks.aclose()
    print("fine")

try:
    anyio.run(main, backend=sys.argv[1])
except ZeroDivisionError:
    pass
anyio.run(after, backend=sys.argv[2])
"""


@pytest.mark.parametrize("end", ["pass", "1 / 0", "await claim.in_progress(60)"])
@pytest.mark.parametrize(("first", "second"), [("asyncio", "asyncio"), ("trio", "trio"), ("asyncio", "trio")])
def test_an_event_loop_may_end_without_a_close(first: str, second: str, end: str) -> None:
    """It neither hangs nor warns, its claims are given back, and the handle can be used in the next loop."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", _ENDS.format(end=end), first, second],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stdout.strip(), process.stderr) == (0, "fine", "")


def test_a_handle_lives_in_one_event_loop_at_a_time() -> None:
    tasks = Tasks("memory://loops")

    async def use() -> None:
        await tasks.insert("q", 1)
        await (await tasks.claim("q")).ack()

    async def elsewhere() -> None:
        with pytest.raises(WrongLoop):
            await tasks.insert("q", 1)
        with pytest.raises(WrongLoop):
            await tasks.claim("q")
        await tasks.aclose()  # which it must not close

    async def scenario() -> None:
        await use()
        await anyio.to_thread.run_sync(partial(anyio.run, elsewhere))
        assert len(await tasks.sessions()) == 1
        await tasks.aclose()
        await anyio.to_thread.run_sync(partial(anyio.run, use))  # once closed, it may move to another loop

    anyio.run(scenario)
    anyio.run(use)
    anyio.run(use, backend="trio")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_handle_that_was_used_is_not_used_in_a_fork() -> None:
    code = """
import os, anyio
from intervalq.errors import ForkedError
from intervalq.tasks import Tasks
tasks = Tasks("memory://")

async def main():
    await tasks.insert("q", 1)
    claim = await tasks.claim("q")
    pid = os.fork()
    if pid == 0:
        async def child():
            try:
                await tasks.claim("q")
            except ForkedError:
                await tasks.aclose()
                other = Tasks("memory://")
                await other.insert("q", 2)
                await other.aclose()
                os._exit(7)
        import threading
        thread = threading.Thread(target=anyio.run, args=(child,))
        thread.start()
        thread.join()
        os._exit(1)
    _, status = await anyio.to_thread.run_sync(os.waitpid, pid, 0)
    await claim.ack()
    await tasks.aclose()
    print(os.waitstatus_to_exitcode(status))

anyio.run(main)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.stdout.strip(), process.stderr) == ("7", "")


def test_a_handle_travels_as_its_settings() -> None:
    tasks = Tasks("memory://pickled", expiry="2s", max_bytes=100)
    again = pickle.loads(pickle.dumps(tasks))
    assert (again._url, again._expiry, again._form) == ("memory://pickled", 2.0, (100, None))
    with pytest.raises(InvalidTask):
        again.new("q", "x" * 100)
    assert pickle.loads(pickle.dumps(Tasks()))._url is None
    assert repr(
        Tasks("postgresql://me:secret@host/db")
    ) == "Tasks('postgresql://me@host/db')" or "secret" not in repr(Tasks("postgresql://me:secret@host/db"))
    with pytest.raises(TypeError, match="give it a URL"):
        pickle.dumps(handle(FakeStore()))


def test_a_handle_is_made_without_an_event_loop_and_says_what_is_wrong() -> None:
    Tasks("memory://")
    Tasks(Path("somewhere.db"))
    for expiry in (0, 0.05, "2h", "soon"):
        with pytest.raises(InvalidInterval, match="expiry"):
            Tasks("memory://", expiry=expiry)

    async def scenario() -> None:
        with pytest.raises(UnknownStore, match=r"package that provides it .*intervalq\.task_stores\b"):
            await Tasks("unknown://").insert("q", 1)
        with pytest.raises(UnknownStore, match="for durable tasks use one of the others") as caught:
            await Tasks("file:///state.json").insert("q", 1)
        assert {"memory", "sqlite", "postgresql", "redis", "nats"} <= set(caught.value.known)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    anyio.run(scenario)


def test_a_handle_that_is_dropped_is_collected() -> None:
    import weakref

    async def scenario() -> None:
        tasks = Tasks("memory://dropped")
        await tasks.insert("q", 1)
        await tasks.aclose()
        gone = weakref.ref(tasks)
        del tasks
        gc.collect()
        assert gone() is None

    anyio.run(scenario)


async def test_an_inbox_is_full_behind_several_that_may_run() -> None:
    async with Tasks("memory://") as tasks:
        for number in range(12):
            await tasks.insert("q", number, key="k", concurrency_per_key=10, inbox=2)
        with pytest.raises(InboxFull):
            await tasks.insert("q", 12, key="k", concurrency_per_key=10, inbox=2)
