"""The handle: what it inserts, changes and shows."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from intervalq.errors import (
    InvalidOption,
    InvalidTask,
    UnsupportedOperation,
)
from intervalq.tasks import DependencyError, InboxFull, WorkerSession
from intervalq.tasks.rules import Modify
from tasks.fake_store import FakeStore, TransactionStore, handle
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_inserts(backend: str) -> None:
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


@BACKENDS
@in_virtual_time
async def test_changes_together(backend: str) -> None:
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


@in_virtual_time
async def test_looks() -> None:
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


@in_virtual_time
async def test_looks_by_ids() -> None:
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


@in_virtual_time
async def test_the_limit_of_a_value_is_that_of_the_handle() -> None:
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


@BACKENDS
@in_virtual_time
async def test_put_in_thousands(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        assert await tasks.put("q", (n for n in range(2_500))) == 2_500
        assert store.sent(Modify) == 3
        assert {task.value for task in await tasks.tasks("q", limit=None)} == set(range(2_500))
        assert await tasks.put("q", []) == 0
        with pytest.raises(InvalidTask):
            await tasks.put("r", [1, {2}])
        assert await tasks.tasks("r") == []


@BACKENDS
@in_virtual_time
async def test_the_handle_hears_of_its_own_inserts_at_once(backend: str) -> None:
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


@in_virtual_time
async def test_wait_empty() -> None:
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
