"""The handle: where it lives, what it leaves behind, what it inserts and shows."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from intervalq.errors import (
    InvalidInterval,
    InvalidOption,
    InvalidTask,
    UnknownStore,
    UnsupportedOperation,
    WrongLoop,
)
from intervalq.tasks import DependencyError, InboxFull, Task, Tasks, WorkerSession
from intervalq.tasks.rules import Modify
from tasks.fake_store import BACKENDS, FakeStore, TransactionStore, handle, scene


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
        for _ in range(10):  # what has ended is taken away in the next turns of the loop
            await anyio.lowlevel.checkpoint()
        assert _tasks(backend) == before

    # Threads of tests before this one may end meanwhile, so that only those that came count.
    threads = set(threading.enumerate())
    anyio.run(scenario, backend=backend)
    assert not set(threading.enumerate()) - threads


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
    """It neither hangs nor warns, its claims are given back, and the handle can be used in the next one."""
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
        await tasks.aclose()  # which is not its to close

    async def scenario() -> None:
        await use()
        await anyio.to_thread.run_sync(partial(anyio.run, elsewhere))
        assert len(await tasks.sessions()) == 1
        await tasks.aclose()
        await anyio.to_thread.run_sync(partial(anyio.run, use))  # once closed, it may live elsewhere

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
        with pytest.raises(UnknownStore, match=r"package that brings it .*intervalq\.task_stores\b"):
            await Tasks("unknown://").insert("q", 1)
        with pytest.raises(UnknownStore, match="for durable tasks use one of the others") as caught:
            await Tasks("file:///state.json").insert("q", 1)
        assert {"memory", "sqlite", "postgresql", "redis", "nats"} <= set(caught.value.known)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    anyio.run(scenario)


@BACKENDS
def test_inserts(backend: str) -> None:
    async def scenario() -> None:
        async with handle(FakeStore()) as tasks:
            assert await tasks.insert("q", 1, id="a") == "a"
            assert await tasks.insert("q", 2, id="a", skip=True) == "a"
            with pytest.raises(DependencyError) as caught:
                await tasks.insert("other", 2, id="a")
            assert caught.value.inserts == ("a",)
            first = await tasks.insert("q", 3, dedupe_key="once")
            assert await tasks.insert("q", 4, dedupe_key="once") == first
            await tasks.insert("box", 1, key="k")
            await tasks.insert("box", 2, key="k", inbox=1)
            with pytest.raises(InboxFull):
                await tasks.insert("box", 3, key="k", inbox=1)
            newest = await tasks.insert("box", 4, key="k", replace=True)
            assert [task.id for task in await tasks.tasks("box")] == [newest]
            late = await tasks.insert("late", 1, at=datetime(2040, 1, 1, tzinfo=UTC))
            (task,) = await tasks.tasks("late")
            assert (task.id, task.at) == (late, datetime(2040, 1, 1, tzinfo=UTC).timestamp())
            assert await tasks.try_claim("late") is None
            with pytest.raises(UnsupportedOperation, match="connection="):
                await tasks.insert("q", 1, connection=object())

    scene(scenario, backend=backend)


@BACKENDS
def test_changes_together(backend: str) -> None:
    async def scenario() -> None:
        async with handle(FakeStore()) as tasks:
            made = await tasks.modify(*[tasks.new("q", n, id=f"t{n}") for n in range(4)])
            zero, one, two, three = made.inserted
            done = await tasks.modify(
                zero.change(queue="r", value="new"), one.delete(), two.depend(), tasks.new("q", 9, id="t9")
            )
            assert [(task.queue, task.value, task.version) for task in done.changed] == [("r", "new", 1)]
            assert [task.id for task in done.inserted] == ["t9"]
            with pytest.raises(DependencyError) as caught:
                await tasks.modify(zero.change(1), one.delete(), three.delete(), two.depend())
            assert (caught.value.changes, caught.value.deletes, caught.value.depends) == (
                ("t0",),
                ("t1",),
                (),
            )
            assert {task.id for task in await tasks.tasks()} == {"t0", "t2", "t3", "t9"}
            with pytest.raises(InvalidOption, match="twice"):
                await tasks.modify(two.delete(), two.depend())
            with pytest.raises(InvalidOption, match="too many"):
                await tasks.modify(*[tasks.new("q", n) for n in range(1001)])

    scene(scenario, backend=backend)


def test_looks() -> None:
    async def scenario() -> None:
        async with handle(FakeStore()) as tasks:
            for n in (2, 0, 1):
                await tasks.insert("a.b", {"n": n}, id=f"t{n}")
            await tasks.put("a.c", range(5))
            assert [task.id for task in await tasks.tasks(ids=["t0", "t2"])] == ["t0", "t2"]
            assert [task.value for task in await tasks.tasks("a.b", values=False)] == [None] * 3
            assert len(await tasks.tasks("a.c", limit=2)) == 2
            assert len(await tasks.tasks(limit=None)) == 8
            assert [(stats.name, stats.size) for stats in await tasks.queues(prefix="a.")] == [
                ("a.b", 3),
                ("a.c", 5),
            ]
            assert [stats.name for stats in await tasks.queues("a.b", "nothing")] == ["a.b"]
            assert len(await tasks.queues(limit=1)) == 1
            claim = await tasks.claim("a.b")
            (stats,) = await tasks.queues("a.b")
            assert (stats.claimed, stats.ready, stats.most_claims) == (1, 2, 1)
            (session,) = await tasks.sessions()
            assert isinstance(session, WorkerSession)
            assert session[:4] == (claim.claimant, socket.gethostname(), os.getpid(), None)
            assert session.expiry == 5.0
            assert session.started == claim.modified
            await anyio.sleep(1.5)
            (session,) = await tasks.sessions()
            assert 1 <= session.beaten - session.started <= 1.5
            await tasks.pull("a.b", name="me").fetch(no_wait=True)
            assert {session.consumer for session in await tasks.sessions()} == {None, "me"}
            assert repr(claim) == f"<Claim {claim.id} of 'a.b', version 1>"

    scene(scenario)


def test_looks_by_ids() -> None:
    async def scenario() -> None:
        async with handle(FakeStore()) as tasks:
            ids = [f"t{n}" for n in range(150)]
            await tasks.modify(*(tasks.new("q", n, id=id_) for n, id_ in enumerate(ids)))
            assert len(await tasks.tasks("q")) == 100
            assert len(await tasks.tasks()) == 100
            assert len(await tasks.tasks(ids=None)) == 100
            assert len(await tasks.tasks("q", limit=None)) == 150
            assert [task.id for task in await tasks.tasks(ids=ids)] == ids
            assert [task.id for task in await tasks.tasks(ids=ids, limit=3)] == ids[:3]
            assert len(await tasks.tasks(ids=ids, limit=None)) == 150
            assert await tasks.tasks(ids=[]) == await tasks.tasks("q", ids=()) == []
            with pytest.raises(InvalidOption, match="limit"):
                await tasks.tasks(ids=[], limit=-1)

    scene(scenario)


def test_the_limit_of_a_value_is_that_of_the_handle() -> None:
    async def scenario() -> None:
        async with handle(FakeStore(), max_bytes=10) as small, handle(FakeStore(), max_bytes=1 << 20) as big:
            (made,) = (await small.modify(small.new("q", 1))).inserted
            (changed,) = (await small.modify(made.change(2))).changed
            (found,) = await small.tasks("q")
            claim = await small.claim("q")
            pulled = small.pull("q", name="me")
            for task in (made, changed, found, claim):
                assert task.change("x" * 8).json == f'"{"x" * 8}"'
                with pytest.raises(InvalidTask, match="10 are allowed"):
                    task.change("x" * 9)
            await claim.release()
            (claim,) = await pulled.fetch()
            with pytest.raises(InvalidTask, match="10 are allowed"):
                claim.change("x" * 9)
            (made,) = (await big.modify(big.new("q", "x" * 300_000))).inserted
            (changed,) = (await big.modify(made.change("y" * 300_000))).changed
            assert changed.value == "y" * 300_000

    scene(scenario)


@BACKENDS
def test_put_in_thousands(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            assert await tasks.put("q", (n for n in range(2_500))) == 2_500
            assert store.sent(Modify) == 3
            assert {task.value for task in await tasks.tasks("q", limit=None)} == set(range(2_500))
            assert await tasks.put("q", []) == 0
            with pytest.raises(InvalidTask):
                await tasks.put("r", [1, {2}])
            assert await tasks.tasks("r") == []

    scene(scenario, backend=backend)


@BACKENDS
def test_the_handle_hears_of_its_own_inserts_at_once(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks, anyio.create_task_group() as group:
            times: list[float] = []

            async def wait() -> None:
                await tasks.claim("q")
                times.append(anyio.current_time())

            group.start_soon(wait)
            await anyio.sleep(20.3)
            begun = anyio.current_time()
            await tasks.insert("q", 1)
            await anyio.sleep(1)
            assert times[0] - begun < 0.001

    scene(scenario, backend=backend)


def test_wait_empty() -> None:
    async def scenario() -> None:
        store = TransactionStore()
        async with handle(store) as tasks:
            await tasks.wait_empty("q")
            await tasks.insert("q", 1, delay=5)
            with pytest.raises(TimeoutError):
                await tasks.wait_empty("q", "r", timeout=2)
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.wait_empty, "q")
                await (await tasks.claim("q")).ack()
            async with tasks.transaction() as connection:
                await tasks.insert("q", 5, connection=connection)
            assert (await tasks.claim("q")).value == 5
        with pytest.raises(UnsupportedOperation):
            async with handle(FakeStore()).transaction():
                pass

    scene(scenario)


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
