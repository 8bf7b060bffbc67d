"""Tasks that a store claims for an idle session by itself: run at once, and never lost or run twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import anyio
import pytest

from intervalq.errors import StoreUnavailable
from intervalq.tasks import Claim, Task
from intervalq.tasks.rules import Command, Insert, Modify, Row, Select, Work, Worked
from tasks.fake_store import FakeStore, claimed, handle, once, until
from virtual_store import BACKENDS, in_virtual_time

A = TypeVar("A")


class HandingStore(FakeStore):
    """A store whose inserts claim for the session that was idle last; a test may change the notices."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: Work | None = None
        self.handed: list[Worked | None] = []
        self.listens = 0
        self._rung = anyio.Event()
        self._is_cut = False

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        answer = await super().apply(command, now)
        if isinstance(command, Work) and command.idle and command.limit:
            self.idle = None if cast("Worked", answer).claimed else command
        return answer

    async def hand(self, queue: str = "q", **fields: Any) -> Worked:
        """Insert a task, and claim it for the idle session; returns its notice."""
        assert self.idle is not None
        idle, self.idle = self.idle, None
        await self.behind.apply(Modify(inserts=(Insert(queue, "1", "handed", **fields),)))
        claim = Work(idle.session, queues=idle.queues, limit=1, lease=idle.lease)
        return await self.behind.apply(claim)

    def tell(self, worked: Worked | None) -> None:
        self.handed.append(worked)
        self._rung.set()

    def cut(self) -> None:
        self._is_cut = True
        self._rung.set()

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        del session
        self.listens += 1

        async def woken() -> Worked | None:
            while not self.handed:
                await self._rung.wait()
                self._rung = anyio.Event()
                if self._is_cut:
                    self._is_cut = False
                    raise StoreUnavailable(self.url, "the connection is lost: wait")
            return self.handed.pop(0)

        yield woken


async def _worked(
    store: HandingStore, scenario: Callable[[list[str]], Awaitable[None]], **options: Any
) -> None:
    """Run a scenario beside an idle worker that notes what it runs."""
    ran: list[str] = []
    async with handle(store) as tasks:

        @tasks.worker("q", concurrency=1)
        async def run(task: Task) -> None:
            ran.append(task.id)

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: store.idle is not None)
            await scenario(ran)
            await until(lambda: store.idle is not None)
            group.cancel_scope.cancel()
    assert await store.sessions() == 0


@BACKENDS
@in_virtual_time
async def test_what_is_handed_runs_without_a_call(backend: str) -> None:
    store = HandingStore()

    async def hands(ran: list[str]) -> None:
        before = len(store.calls)
        store.tell(await store.hand())
        await until(lambda: store.idle is not None)
        first = next(call for call in store.calls[before:] if isinstance(call, Work))
        assert [part.id for part in first.settled] == ["handed"]
        assert ran == ["handed"]
        assert await store.rows() == []

    await _worked(store, hands)
    assert store.sent(Select) == 0


@BACKENDS
@in_virtual_time
async def test_who_got_less_than_it_wanted_is_soon_idle(backend: str) -> None:
    """The others don't wait for the next poll, because they would learn late of the next tasks."""
    store = HandingStore()
    async with handle(store) as tasks:
        begun: list[float] = []

        @tasks.worker("q", concurrency=3)
        async def run(task: Task) -> None:
            begun.append(anyio.current_time())
            await anyio.sleep(100)

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: store.idle is not None)
            await store.behind.apply(Modify(inserts=(Insert("q", "1", "one"),)))
            store.tell(None)
            await until(lambda: len(begun) == 1)
            await until(lambda: store.idle is not None)
            assert anyio.current_time() - begun[0] < 1
            group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_what_is_told_while_a_call_is_under_way_is_not_forgotten(backend: str) -> None:
    """The store has found nothing, and a task arrives before that answer is known here."""
    store = HandingStore()
    looks = once(Work, lambda command: command.idle)

    async def insert(command: Command[Any]) -> None:
        if looks(command):
            await store.behind.apply(Modify(inserts=(Insert("q", "1", "one"),)))
            store.tell(None)
            await anyio.sleep(0.1)

    store.after = insert
    async with handle(store) as tasks:
        ran: list[float] = []

        @tasks.worker("q")
        async def run(task: Task) -> None:
            ran.append(anyio.current_time())
            tasks.stop()

        before = anyio.current_time()
        await tasks.run()
        assert ran[0] - before < 1


@BACKENDS
@in_virtual_time
async def test_workers_of_several_queues_are_idle_together(backend: str) -> None:
    """A store wakes a session by its last request, so callers who wait beside each other ask together."""
    store = HandingStore()
    async with handle(store) as tasks:
        ran: list[str] = []
        for queue in ("a", "b"):

            @tasks.worker(queue, concurrency=2)
            async def run(task: Task) -> None:
                ran.append(task.queue)

        def all_idle() -> bool:
            return store.idle is not None and sorted(store.idle.queues) == ["a", "b", "c"]

        async with anyio.create_task_group() as group:

            async def call() -> None:
                claim = await tasks.claim("c")
                await anyio.sleep(1)
                row = await store.row(claim.id)
                assert (row.begun, row.attempt, claim.attempt) == (True, 1, 1)
                ran.append(claim.queue)
                await claim.ack()

            group.start_soon(tasks.run)
            group.start_soon(call)
            for times, queue in enumerate("abc", 1):
                with anyio.fail_after(2):
                    await until(all_idle)
                before = anyio.current_time()
                store.tell(await store.hand(queue))
                await until(lambda times=times: len(ran) == times)  # type: ignore[misc]
                assert anyio.current_time() - before < 2
            assert await tasks.try_claim("d") is None
            tasks.stop()
        assert ran == ["a", "b", "c"]


@BACKENDS
@in_virtual_time
async def test_what_is_claimed_for_several_goes_to_each(backend: str) -> None:
    store = HandingStore()
    async with handle(store) as tasks:
        ran: list[str] = []
        for queue in ("a", "b", "c"):

            @tasks.worker(queue, concurrency=2)
            async def run(task: Task) -> None:
                ran.append(task.queue)
                await anyio.sleep(100)

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await until(lambda: store.idle is not None and len(store.idle.queues) == 3)
            inserts = [Insert(queue, "1", f"{queue}{n}") for queue in "abc" for n in range(3)]
            await store.behind.apply(Modify(inserts=tuple(inserts)))
            store.tell(None)
            await until(lambda: len(ran) == 6)
            await anyio.sleep(3)
            assert sorted(ran) == ["a", "a", "b", "b", "c", "c"]
            assert sorted(row.id[0] for row in await store.rows() if row.session) == sorted(ran)
            group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_what_was_lost_on_its_way_is_given_back_when_it_hears_again(backend: str) -> None:
    store = HandingStore()

    async def loses(ran: list[str]) -> None:
        await store.hand()
        store.cut()
        await until(lambda: store.listens == 2 and bool(ran))
        assert ran == ["handed"]

    await _worked(store, loses)
    assert await store.rows() == []


@BACKENDS
@pytest.mark.parametrize("when", ["before it is given back", "after it was"])
@in_virtual_time
async def test_what_is_told_too_late_is_not_run_twice(backend: str, when: str) -> None:
    store = HandingStore()

    async def comes_late(ran: list[str]) -> None:
        handed = await store.hand()

        async def tells(command: Command[Any]) -> None:
            if isinstance(command, Work) and command.settled and not store.handed:
                store.before = _nothing
                store.tell(handed)
                await anyio.sleep(0.01)  # it is heard while the call is in flight

        if when.startswith("before"):
            store.before = tells
        store.cut()
        await until(lambda: bool(ran))
        store.tell(handed)
        await anyio.sleep(1)
        assert ran == ["handed"]

    await _worked(store, comes_late)
    assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_claim_whose_renewal_was_answered_to_nobody_is_kept(backend: str) -> None:
    """In the store, its version is one ahead when the session looks for unknown claims."""
    store = FakeStore()
    async with handle(store) as tasks, anyio.create_task_group() as group:
        held = await claimed(tasks)
        group.start_soon(tasks.claim, "other")
        await anyio.sleep(0.2)
        store.loses = once(Work, lambda work: work.settled and work.limit)
        await held.in_progress()
        assert store.sent(Select) == 1, "it did not look"
        assert (await store.row(held.id)).session is not None
        await held.ack()
        group.cancel_scope.cancel()
    assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_what_nobody_wants_any_more_is_given_back(backend: str) -> None:
    store = HandingStore()
    async with handle(store) as tasks:
        held = await tasks.insert("other", 1)
        await tasks.claim("other")
        with anyio.move_on_after(1):
            await tasks.claim("q")
        store.tell(await store.hand())
        await until(lambda: not store.handed)
        await anyio.sleep(0.1)
        row = await store.row("handed")
        assert (row.session, row.attempt) == (None, 0)
        assert (await store.row(held)).session is not None


@BACKENDS
@in_virtual_time
async def test_the_store_is_told_that_what_was_handed_has_begun(backend: str) -> None:
    store = HandingStore()

    async def begins(row: Callable[[], Awaitable[Row]]) -> None:
        await until(lambda: store.idle is not None)
        handed = await store.hand()
        assert (handed.claimed[0].begun, handed.claimed[0].attempt) == (False, 0)
        store.tell(handed)
        await anyio.sleep(1)
        seen = await row()
        assert (seen.begun, seen.attempt) == (True, 1)

    async with handle(store) as tasks:
        claims: list[Claim] = []

        async def calls() -> None:
            claims.append(await tasks.claim("q"))

        async with anyio.create_task_group() as group:
            group.start_soon(calls)
            await begins(lambda: store.row("handed"))
        assert [claim.attempt for claim in claims] == [1]
        await claims[0].ack()

        @tasks.worker("q", concurrency=1)
        async def run(_task: Task) -> None:
            await anyio.sleep(9)

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            await begins(lambda: store.row("handed"))
            group.cancel_scope.cancel()


async def _nothing(_command: Command[Any]) -> None:
    return
