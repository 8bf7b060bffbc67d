"""Commands of many queues of one store are in flight together; waiting takes nothing of a time limit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest

from faults.proxy import Fault, Proxy, proxied
from intervalq.rules import Advance, Answer, Settings
from intervalq.store import stopwatch
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats import queues as nats_queues
from intervalq_stores.nats.queues import NATSStore

LIMIT = 0.05
"""Seconds that a command may take, in a test where that passes before its turn."""

NEW = Advance(settings=Settings(interval=1_000_000), nonce="n", take=1)


@pytest.fixture
async def proxy(nats_url: str) -> AsyncIterator[Proxy]:
    async with proxied(nats_url) as proxy:
        yield proxy


def some(count: int) -> list[str]:
    """Names of queues that no other test uses."""
    return [f"{secrets.token_hex(8)}.{number}" for number in range(count)]


async def tickets(store: NATSStore, queues: list[str]) -> list[int]:
    """Take a ticket of each queue, all at the same time."""

    async def own(queue: str) -> Answer:
        return await store.apply(queue, NEW)

    answers = await asyncio.gather(*map(own, queues))
    return [slot.ticket for answer in answers for slot in answer.taken]


def count(proxy: Proxy, what: bytes) -> int:
    """How often something was sent and passed on."""
    return b"".join(data for _, data in proxy.passed).count(what)


async def test_commands_of_many_queues_are_in_flight_together(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are delayed until all commands have arrived at the server, however long that takes."""
    for limit in ("WITHIN", "_AGAIN"):
        monkeypatch.setattr(nats_server, limit, 60)
    queues = some(100)
    async with aclosing(NATSStore(proxy.url)) as store:
        assert await tickets(store, queues) == [1] * 100
        proxy.passed.clear()
        await proxy.begin(Fault.HOLD_ANSWERS)
        asked = asyncio.create_task(tickets(store, queues))
        with anyio.fail_after(60):  # only a guard against a hang
            await proxy.until(lambda: count(proxy, b"HPUB intervalq.log.") == 100)
        assert not asked.done()
        await proxy.heal()
        assert await asked == [2] * 100
    assert proxy.connections == 1


async def test_many_that_begin_together_prepare_the_streams_once(proxy: Proxy) -> None:
    async with aclosing(NATSStore(proxy.url)) as store:
        assert await tickets(store, some(50)) == [1] * 50
    assert count(proxy, b"STREAM.CREATE.") == 2


async def test_the_time_limit_begins_when_a_command_has_its_turn(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that waits longer than its own limit for its turn is sent after that."""
    monkeypatch.setattr(nats_queues, "_IN_FLIGHT", 1)
    one, two = some(2)
    async with aclosing(NATSStore(proxy.url)) as store:
        await tickets(store, [one])
        monkeypatch.setattr(nats_server, "WITHIN", 60)
        await proxy.begin(Fault.HOLD_ANSWERS)
        held = asyncio.create_task(tickets(store, [one]))
        await proxy.until(lambda: proxy.hits == 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nats_server, "WITHIN", LIMIT)
            waiting = asyncio.create_task(tickets(store, [two]))
            await anyio.wait_all_tasks_blocked()
        over = stopwatch() + 2 * LIMIT * 1e6
        while stopwatch() < over:
            await anyio.lowlevel.checkpoint()
        assert not held.done()
        await proxy.heal()
        assert (await held, await waiting) == ([2], [1])
