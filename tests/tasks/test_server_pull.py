"""Claims of a store with pull consumers at its server: each is settled by a call of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq.errors import ClaimLost, StoreUnavailable, Unauthorized
from intervalq.tasks.rules import Begin, Command, End, Row, Work
from intervalq.tasks.store import Pulled
from tasks.fake_store import FakeStore, claimed, handle, until
from virtual_store import BACKENDS, in_virtual_time


class PullingStore(FakeStore):
    """A store at which callers wait."""

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        end = anyio.current_time() + seconds
        while True:
            rows = (await self.apply(work)).claimed
            if rows or anyio.current_time() >= end:
                return rows
            await anyio.sleep(0.1)

    async def pulled(self, queues: tuple[str, ...]) -> Mapping[str, Pulled]:
        del queues
        return {}


@pytest.mark.parametrize("answer", ["an answer", "no answer"])
@BACKENDS
@in_virtual_time
async def test_what_is_settled_when_its_session_lapses_is_lost_and_the_next_session_goes_on(
    backend: str, answer: str
) -> None:
    store = PullingStore()
    async with handle(store) as tasks:
        batcher = tasks._session().batcher
        claim = await claimed(tasks)
        before = batcher.session
        is_settling = anyio.Event()

        def settles(command: Command[Any]) -> bool:
            return isinstance(command, Work) and bool(command.settled) and command.session == before

        async def lapse(command: Command[Any]) -> None:
            if settles(command):
                await store.lapse()

        async def hold(command: Command[Any]) -> None:
            if settles(command):
                is_settling.set()
                await until(lambda: batcher.session != before and bool(batcher.claims))

        store.before, store.after = lapse, hold
        store.loses = lambda command: settles(command) and answer == "no answer"
        async with anyio.create_task_group() as group:

            async def acknowledge() -> None:
                with pytest.raises(ClaimLost):
                    await claim.ack()

            group.start_soon(acknowledge)
            await is_settling.wait()
            await until(lambda: batcher.session != before)
            again = await tasks.claim("q")
        assert again.id == claim.id
        assert batcher.session == again.claimant
        await again.ack()
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_who_has_waited_long_still_waits_a_minute_for_a_store_that_is_away(backend: str) -> None:
    store = PullingStore()
    async with handle(store, expiry=3600) as tasks:
        asked = partial(tasks.claim, "q")

        async def fail_twice() -> None:
            for _ in range(2):  # each is an outage of its own
                await anyio.sleep(100)
                store.is_down = True
                await anyio.sleep(40)
                store.is_down = False
            await tasks.insert("q", 1)

        async with anyio.create_task_group() as group:
            group.start_soon(fail_twice)
            await (await asked()).ack()
        store.is_down = True
        before = anyio.current_time()
        with pytest.raises(StoreUnavailable):
            await asked()
        assert 60 <= anyio.current_time() - before <= 62
        store.is_down = False


@BACKENDS
@in_virtual_time
async def test_a_session_that_is_refused_is_told_to_its_caller_who_may_try_again(backend: str) -> None:
    store = PullingStore()
    store.fails = lambda command: Unauthorized(store.url, "no rights") if isinstance(command, Begin) else None
    async with handle(store) as tasks:
        await tasks.insert("q", 1)
        for _ in range(2):
            with pytest.raises(Unauthorized):
                await tasks.claim("q")
        store.fails = lambda _: None
        await (await tasks.claim("q")).ack()
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_who_comes_while_no_session_can_begin_waits_no_longer_than_others(backend: str) -> None:
    store = PullingStore()
    store.is_down = True
    async with handle(store) as tasks:
        for timeout, least in ((0.0, 0), (1.0, 1), (None, 60)):
            before = anyio.current_time()
            with pytest.raises(StoreUnavailable):
                await tasks.claim("q", timeout=timeout)
            assert least <= anyio.current_time() - before <= least + 2
        store.is_down = False
        await tasks.insert("q", 1)
        await (await tasks.claim("q")).ack()


@BACKENDS
@in_virtual_time
async def test_who_comes_while_a_session_ends_gets_a_task_of_the_next_one(backend: str) -> None:
    """The store knows nothing of a session that has ended, so its caller waited for half a minute."""
    store = PullingStore()
    async with handle(store) as tasks:
        await (await claimed(tasks)).ack()
        await tasks.insert("q", 2)
        is_ending = anyio.Event()

        async def end_slowly(command: Command[Any]) -> None:
            if isinstance(command, End):
                is_ending.set()
                await anyio.sleep(1)

        store.after = end_slowly
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.aclose)
            await is_ending.wait()
            before = anyio.current_time()
            claim = await tasks.claim("q")
            assert anyio.current_time() - before <= 2
            await claim.ack()


@pytest.mark.parametrize("ends", [False, True])
@BACKENDS
@in_virtual_time
async def test_who_waits_for_a_session_that_ends_before_it_could_begin_gets_the_next_one(
    backend: str, ends: bool
) -> None:
    store = PullingStore()
    async with handle(store) as tasks:
        await tasks.insert("q", 1)
        store.is_down, session = True, tasks._session()
        session.begin()
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as group:
            if ends:
                group.start_soon(tasks.aclose)
                await until(lambda: session._closing)
            group.start_soon(_back, store)
            await (await tasks.claim("q", timeout=20)).ack()


async def _back(store: PullingStore) -> None:
    await anyio.sleep(1)
    store.is_down = False
