"""Part of the suite of task stores: an idle session is woken when there is something to claim."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import checkpoint

from intervalq.tasks._session.demand import CHECK
from intervalq.tasks.rules import SECOND, Beat, Cancel, Change, Command, Delete, End, Modify, Work, Worked
from intervalq.tasks.store import TaskStore, Waking
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import PATIENCE, Names, TaskSuiteBase, claim, insert, put


class Listener:
    """Counts how often a session was woken."""

    def __init__(self, store: TaskStore, session: str) -> None:
        self.session = session
        self.times = 0
        self.cancelled: tuple[Delete, ...] = ()
        self._store = store
        self._changed = anyio.Event()

    async def listen(self, woken: Callable[[], Awaitable[Worked | None]]) -> None:
        """Count until cancelled."""
        while True:
            worked = await woken()
            self.cancelled += worked.cancelled if worked is not None else ()
            self.times += 1
            self._changed.set()
            self._changed = anyio.Event()

    async def idle(self, *queues: str) -> None:
        """Find nothing to claim, and become idle."""
        worked = await self._store.apply(Work(self.session, queues=queues, limit=1, idle=True))
        assert (worked.alive, worked.claimed) == (True, ())

    async def woken(self, times: int) -> None:
        """Wait until it was woken this many times."""
        while self.times < times:
            await self._changed.wait()


async def first_of(*listeners: Listener) -> Listener:
    """The listener that is woken first."""
    found: list[Listener] = []
    async with anyio.create_task_group() as group:

        async def wait(listener: Listener) -> None:
            await listener.woken(1)
            found.append(listener)
            group.cancel_scope.cancel()

        for listener in listeners:
            group.start_soon(wait, listener)
    return found[0]


class WakingTaskSuite(TaskSuiteBase):
    """One of the sessions that wait for a queue is woken."""

    @pytest.fixture
    def waking(self, store: TaskStore) -> Waking:
        """The store, which declares this ability."""
        assert isinstance(store, Waking), "this store wakes nobody"
        return store

    @asynccontextmanager
    async def _listeners(
        self, store: TaskStore, waking: Waking, names: Names, number: int
    ) -> AsyncIterator[list[Listener]]:
        listeners: list[Listener] = []
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for _ in range(number):
                    listener = Listener(store, await names.begun(store))
                    entered = anyio.Event()

                    async def listen(listener: Listener = listener, entered: anyio.Event = entered) -> None:
                        async with waking.wakeups(listener.session) as woken:
                            entered.set()
                            await listener.listen(woken)

                    group.start_soon(listen)
                    await entered.wait()
                    listeners.append(listener)
                yield listeners
                group.cancel_scope.cancel()

    tells_cancelled: bool = True
    """A wake-up informs a session at once which of its claims were cancelled. False: a heartbeat does."""

    @in_portal
    async def test_a_session_is_told_at_once_what_was_cancelled(
        self, store: TaskStore, waking: Waking, names: Names
    ) -> None:
        """Only the session that claimed the task, though it isn't idle; also of several tasks at once."""
        if not self.tells_cancelled:
            return
        queue = names.queue()
        await put(store, *(insert(queue, n) for n in range(5)))
        async with self._listeners(store, waking, names, 3) as (one, two, three):
            first = await claim(store, one.session, queue, limit=3)
            second = await claim(store, two.session, queue)
            await claim(store, three.session, queue)
            await store.apply(Cancel(tuple(row.id for row in (*first[:2], *second))))
            while len(one.cancelled) < 2 or not two.cancelled:
                await checkpoint()
            assert sorted(one.cancelled) == sorted(Delete(row.id, row.version + 1) for row in first[:2])
            assert two.cancelled == tuple(Delete(row.id, row.version + 1) for row in second)
            assert three.times == 0

    @in_portal
    async def test_whatever_makes_a_task_ready_wakes(
        self, store: TaskStore, waking: Waking, names: Names
    ) -> None:
        """An insert, a change, the next of a key, a session that ends or lapses."""
        queue, other = names.queue(), names.queue()
        worker = await names.begun(store)
        later = insert(queue, delay=3600 * SECOND)
        lapsed = await names.begun(store, expiry=1)
        ended = await names.begun(store)
        await put(store, insert(queue, key="k"), insert(queue, key="k"), later, insert(other), insert(other))
        (held,) = await claim(store, worker, queue)
        for session in (lapsed, ended):
            assert len(await claim(store, session, other)) == 1
        commands = [
            Modify(inserts=(insert(queue),)),
            Modify(changes=(Change(later.id, 0, delay=0),)),
            Work(worker, (Delete(held.id, held.version),)),
            End(ended),
            Beat(worker),
        ]
        async with self._listeners(store, waking, names, 1) as (listener,):
            for number, command in enumerate(commands, 1):
                await listener.idle(names.queue(), queue, other)
                await store.apply(command)
                await listener.woken(number)
                await claim(store, worker, queue, other, limit=100)

    @pytest.mark.parametrize("kind", ["cancelled", "deleted", "done", "keyed", "dead"])
    @in_portal
    async def test_the_end_of_a_batch_wakes(
        self, store: TaskStore, waking: Waking, names: Names, kind: str
    ) -> None:
        """However its last task ends."""
        if not self.follows_up:
            return
        queue, then, worker = names.queue(), names.queue(), await names.begun(store)
        last = insert(then, awaits=1)
        part = insert(queue, follow_up=last.id, key="k" if kind == "keyed" else None)
        await put(store, last, part)
        ends: Command[Any] = Cancel((part.id,))
        if kind == "deleted":
            ends = Modify(deletes=(Delete(part.id, 0),))
        elif kind != "cancelled":
            (row,) = await claim(store, worker, queue)
            dead = Change(part.id, row.version, queue=f"{names.queue()}.dead", attempt=1, error="no")
            ends = Work(worker, (dead if kind == "dead" else Delete(part.id, row.version),))
        async with self._listeners(store, waking, names, 1) as (listener,):
            await listener.idle(then)
            await store.apply(ends)
            await listener.woken(1)
        assert len(await claim(store, worker, then)) == 1

    @in_portal
    async def test_what_becomes_ready_before_an_idle_session_looks_wakes(
        self, store: TaskStore, waking: Waking, names: Names
    ) -> None:
        """Tasks for a time before sessions poll again: without a wake-up they would be late."""
        queue, soon = names.queue(), round((CHECK - 0.5) * SECOND)
        later = insert(queue, delay=3600 * SECOND)
        await put(store, later)
        commands = [
            Modify(inserts=(insert(queue, delay=soon),)),
            Modify(inserts=(insert(queue, key="k", delay=soon),)),
            Modify(changes=(Change(later.id, 0, delay=soon),)),
        ]
        async with self._listeners(store, waking, names, 1) as (listener,):
            for number, command in enumerate(commands, 1):
                await listener.idle(queue)
                await store.apply(command)
                await listener.woken(number)

    @in_portal
    async def test_one_insert_wakes_one(self, store: TaskStore, waking: Waking, names: Names) -> None:
        """Only one of two is woken, and the next insert wakes the other."""
        queue, mark = names.queue(), names.queue()
        async with self._listeners(store, waking, names, 2) as listeners:
            for listener in listeners:
                await listener.idle(queue)
            await put(store, insert(queue))
            first = await first_of(*listeners)
            (second,) = [listener for listener in listeners if listener is not first]
            assert len(await claim(store, first.session, queue)) == 1
            await second.idle(mark)
            assert second.times == 0, "both were woken"
            await put(store, insert(mark))
            await second.woken(1)
            assert [first.times, second.times] == [1, 1]
            await claim(store, first.session, mark)
            await second.idle(queue)
            await put(store, insert(queue))
            await second.woken(2)
            assert [first.times, second.times] == [1, 2]

    @in_portal
    async def test_a_woken_one_that_finds_nothing_waits_again(
        self, store: TaskStore, waking: Waking, names: Names
    ) -> None:
        """A session that another one was faster than becomes idle again, and is woken again."""
        queue, faster = names.queue(), await names.begun(store)
        async with self._listeners(store, waking, names, 1) as (listener,):
            for times in (1, 2, 3):
                await listener.idle(queue)
                await put(store, insert(queue))
                await listener.woken(times)
                assert len(await claim(store, faster, queue)) == 1

    def test_only_who_is_idle_is_woken(
        self, portal: BlockingPortal, store: TaskStore, waking: Waking, names: Names
    ) -> None:
        """A session isn't woken after it claimed, ended, or asked other queues, nor for tasks for later."""

        async def scenario() -> None:
            queue, other = names.queue(), names.queue()
            async with self._listeners(store, waking, names, 4) as (busy, ended, elsewhere, idle):
                await busy.idle(queue)
                await put(store, insert(other))
                assert len(await claim(store, busy.session, other)) == 1
                await ended.idle(queue)
                await store.apply(End(ended.session))
                await elsewhere.idle(other)
                await idle.idle(queue)
                await put(store, insert(queue, delay=3600 * SECOND))
                assert await claim(store, busy.session, queue) == ()
                for _ in range(10):
                    await checkpoint()
                assert idle.times == 0, "woken for what is not ready"
                await put(store, insert(queue))
                await idle.woken(1)
                await put(store, insert(other))
                await elsewhere.woken(1)
                assert [one.times for one in (busy, ended, elsewhere, idle)] == [0, 0, 1, 1]

        for _ in range(6):  # a wrong wake-up happens only by chance
            portal.call(scenario)
