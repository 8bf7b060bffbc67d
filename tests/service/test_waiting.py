"""Clients of a service that go away: what was claimed for them is free again."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import anyio
import pytest

from intervalq.service._entroq.claimants import Claimants
from intervalq.service._entroq.claims import Claims
from intervalq.service._entroq.waiting import Waiting
from intervalq.tasks.rules import SECOND, Command, Insert, Modify, Row, Select, Work
from intervalq_stores.memory.tasks import MemoryTaskStore

A = TypeVar("A")


async def test_what_was_claimed_for_a_client_that_went_away_meanwhile_is_given_back() -> None:
    asked, answered = anyio.Event(), anyio.Event()
    back: list[str] = []

    async def claim() -> Row:
        asked.set()
        await answered.wait()
        return Row("t", 1, "q", 0, "null")

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
