"""Clients of a service that go away: what was claimed for them is free again."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import TypeVar

import anyio
import pytest

from intervalq.service._entroq.claimants import Claimants
from intervalq.service._entroq.claims import Claims, Found
from intervalq.service._entroq.waiting import Waiting
from intervalq.tasks.rules import SECOND, Command, Insert, Modify, Row, Select, Work
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.tasks import MemoryTaskStore

A = TypeVar("A")


async def test_what_was_claimed_for_a_client_that_went_away_meanwhile_is_given_back() -> None:
    asked, answered = anyio.Event(), anyio.Event()
    back: list[str] = []

    async def claim() -> Found:
        asked.set()
        await answered.wait()
        return Found(Row("t", 1, "q", 0, "null"))

    async def give_back(row: Row) -> None:
        back.append(row.id)

    waiting = Waiting(MemoryTaskStore("memory://waiting"), give_back)
    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        async with anyio.create_task_group() as client:
            client.start_soon(waiting.wait, ("q",), claim)
            await asked.wait()
            client.cancel_scope.cancel()
        answered.set()
        assert (await waiting.wait(("q",), claim)).id == "t"
        group.cancel_scope.cancel()
    assert back == ["t"]


class Slow(MemoryTaskStore):
    """A store that answers a claim only when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.goes_on = anyio.Event(), anyio.Event()

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        answer = await super().apply(command, now)
        if isinstance(command, Work) and command.limit:
            self.asked.set()
            await self.goes_on.wait()
        return answer


async def test_what_the_store_claims_after_the_client_has_gone_is_given_back() -> None:
    """The request is cancelled as gRPC does it, by the task of the event loop."""
    store = Slow("memory://slow")
    await store.apply(Modify(inserts=(Insert("q", "1", "t"),)))
    claims = Claims(store, Claimants(store))
    request = asyncio.ensure_future(claims.claim("me", ("q",), 3_600 * SECOND))
    await store.asked.wait()
    (row,) = await store.apply(Select(ids=("t",)))
    assert row.session == "entroq:me"
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    store.goes_on.set()
    await claims.aclose()
    (row,) = await store.apply(Select(ids=("t",)))
    assert (row.session, row.claims) == (None, 1)


class Deaf:
    """A store without wake-ups: another process inserts, and nobody tells."""

    def __init__(self, store: MemoryTaskStore) -> None:
        self.url, self.apply, self.aclose = store.url, store.apply, store.aclose


async def when_claimed(store: MemoryTaskStore | Deaf, lines: int, *, others: bool) -> float:
    """When a task that another process inserts after 1 s, and that is ready after 3 s, reaches its client.

    It waits in one of so many lines; `others` come and go meanwhile.
    """
    claims = Claims(store, Claimants(store))
    waiting = Waiting(store, claims.give_back)

    async def client(queue: str) -> None:
        await waiting.wait((queue,), partial(claims.claim, "me", (queue,), SECOND))

    async def busy() -> None:
        for number in count():
            await store.apply(Modify(inserts=(Insert("busy", "1", f"busy-{number}"),)))
            waiting.notify(["busy"])
            await client("busy")
            await anyio.sleep(0.02)

    async def late() -> None:
        await anyio.sleep(1)
        await store.apply(Modify(inserts=(Insert("last", "1", "t", delay=2 * SECOND),)))

    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        for number in range(lines - 1):
            group.start_soon(client, f"q{number}")
        if others:
            group.start_soon(busy)
        group.start_soon(late)
        begun = anyio.current_time()
        await client("last")
        taken = anyio.current_time() - begun
        group.cancel_scope.cancel()
    return taken


@pytest.mark.parametrize(
    ("hears", "lines", "others"), [(True, 1, False), (True, 20, False), (False, 1, True), (False, 20, True)]
)
def test_a_task_that_is_ready_later_is_claimed_then(hears: bool, lines: int, others: bool) -> None:
    async def run() -> float:
        store = MemoryTaskStore("memory://later", clock=virtual_micros)
        return await when_claimed(store if hears else Deaf(store), lines, others=others)

    assert virtual_time(run, horizon=20) == pytest.approx(3, abs=0.02)
