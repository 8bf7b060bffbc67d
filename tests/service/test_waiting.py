"""Clients that wait at a service: who is served, and what happens when one goes away."""

from __future__ import annotations

import anyio

from intervalq.service._entroq.waiting import Waiting
from intervalq.tasks.rules import Row
from intervalq_stores.memory.tasks import MemoryTaskStore


async def test_what_was_claimed_for_a_client_that_went_away_meanwhile_is_given_back() -> None:
    waiting = Waiting(MemoryTaskStore("memory://waiting"))
    asked, answered = anyio.Event(), anyio.Event()
    back: list[str] = []

    async def claim() -> Row:
        asked.set()
        await answered.wait()
        return Row("t", 1, "q", 0, "null")

    async def give_back(row: Row) -> None:
        back.append(row.id)

    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        async with anyio.create_task_group() as client:
            client.start_soon(waiting.wait, ("q",), claim, give_back)
            await asked.wait()
            client.cancel_scope.cancel()
        answered.set()
        assert (await waiting.wait(("q",), claim, give_back)).id == "t"
        group.cancel_scope.cancel()
    assert back == ["t"]
