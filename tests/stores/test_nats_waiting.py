"""Calls that wait at a NATS for tasks: simultaneous arrivals, and calls that end beside them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq.errors import QueueClosed
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._session.handed import Handed
from intervalq_stores.nats._task.claims import Claims
from stores.nats_plain_client import PATIENCE, PlainClient

EACH = 100


async def test_of_several_queues_one_call_gets_no_more_than_it_asked_for(
    tasks: Tasks, others: Tasks, queue: str
) -> None:
    """Other tasks that arrive at that moment are not claimed for a call that doesn't take them, but free."""
    queues = [f"{queue}.{name}" for name in "abc"]
    for _ in range(5):
        found: list[Claim] = []

        async def claim(found: list[Claim] = found) -> None:
            found.append(await tasks.claim(*queues, timeout=PATIENCE))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(claim)
                info = tasks.pull(*queues, name="p").info
                while (await info()).waiting < len(queues):
                    pass
                await others.modify(*(others.new(name, name) for name in queues))
        rest = await others.pull(*queues, name="p").fetch(10, no_wait=True)
        assert sorted(one.value for one in found + rest) == queues
        assert {(one.attempt, one.claims) for one in found + rest} == {(1, 1)}
        for one in found + rest:
            await one.ack()
    assert tasks._session().batcher.claims == {}


async def test_a_session_in_which_a_call_waits_goes_on_when_the_workers_have_ended(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    tasks.worker(f"{queue}.work")(lambda _: None)
    await others.insert(f"{queue}.work", 1)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:

            async def claim() -> None:
                await (await tasks.claim(queue)).ack()

            group.start_soon(claim)
            await plain.until_waiting(1)
            await tasks.run(until_empty=True)
            await others.insert(queue, 2)
    assert await others.queues(queue) == []


async def test_a_call_that_waits_is_told_that_the_handle_is_closed(
    tasks: Tasks, queue: str, plain: PlainClient
) -> None:
    """It doesn't connect again."""
    reported: list[str] = []

    async def wait(name: str, call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(QueueClosed):
            await call()
        reported.append(name)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, "claim", partial(tasks.claim, queue))
            group.start_soon(wait, "fetch", partial(tasks.pull(queue, name="p").fetch, 1, PATIENCE))
            await plain.until_waiting(2)
            await tasks.aclose()
    assert sorted(reported) == ["claim", "fetch"]
    assert await plain.waiting() == 0


async def test_what_was_given_back_on_its_way_to_a_call_is_not_handed_out(
    tasks: Tasks, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of the same session look for unknown claims after a call without an answer."""
    await tasks.insert(queue, 1)
    looked = Claims._outdated
    count = 0

    async def outdated(self: Claims, *arguments: Any) -> set[str]:
        nonlocal count
        count += 1
        if count == 1:
            session = tasks._session().batcher.session
            await Handed().recover(tasks._here(), session, {})
        return await looked(self, *arguments)

    monkeypatch.setattr(Claims, "_outdated", outdated)
    claim = await tasks.claim(queue, timeout=PATIENCE)
    await claim.ack()
    assert (claim.value, claim.attempt) == (1, 1)
    assert await tasks.queues(queue) == []


async def test_calls_that_leave_keep_no_task_from_others(tasks: Tasks, others: Tasks, queue: str) -> None:
    """They may leave at any time: tasks delivered for them belong to nobody until the ack wait is over."""
    queues = [f"{queue}.{name}" for name in "abc"]
    draw = random.Random(7)
    done: list[int] = []

    async def call() -> None:
        for _ in range(EACH):
            with anyio.move_on_after(draw.uniform(0.0005, 0.02)):
                claim = await tasks.claim(*queues)
                with anyio.CancelScope(shield=True):
                    await claim.ack()
                    done.append(claim.value)

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(call)
        for number in range(EACH):
            await others.insert(draw.choice(queues), number)
    with anyio.fail_after(PATIENCE):  # half of the ack wait
        while await others.queues(*queues):
            for claim in await others.pull(*queues, name="p").fetch(EACH, timeout=1):
                await claim.ack()
                done.append(claim.value)
    assert sorted(done) == [*range(EACH)]
