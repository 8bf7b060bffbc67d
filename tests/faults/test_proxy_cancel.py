"""Calls that are cancelled in two ways at once while the store's answer is on its way."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from faults.proxy import Fault, proxied
from intervalq import IntervalQueue


@pytest.fixture(params=["redis", "postgres"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


async def _run(queue: IntervalQueue) -> None:
    await queue.run(anyio.lowlevel.checkpoint)


async def _add(queue: IntervalQueue) -> None:
    await (await queue.add(anyio.lowlevel.checkpoint))


async def _look(queue: IntervalQueue) -> None:
    await queue.inspect()


async def _pause(queue: IntervalQueue) -> None:
    await queue.pause()


@pytest.mark.parametrize("call", [_run, _add, _look, _pause])
@pytest.mark.parametrize("scope_first", [True, False])
async def test_a_call_cancelled_twice_in_one_turn_is_cancelled_and_the_next_one_works(
    server_url: str, call: Callable[[IntervalQueue], Awaitable[None]], scope_first: bool
) -> None:
    name = f"w{secrets.token_hex(8)}"
    async with proxied(server_url) as proxy, IntervalQueue(name, interval=0.01, store=proxy.url) as queue:
        await _run(queue)
        await proxy.begin(Fault.HOLD_ANSWERS)
        scope, went_on = anyio.CancelScope(), False

        async def cancelled() -> None:
            nonlocal went_on
            with scope:
                await call(queue)
                went_on = True
            await anyio.lowlevel.checkpoint()  # the task's own cancellation is still to come, or has come
            went_on = True

        task = asyncio.create_task(cancelled())
        await proxy.until(lambda: proxy.hits > 0)
        for cancel in (scope.cancel, task.cancel) if scope_first else (task.cancel, scope.cancel):
            cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not went_on
        await proxy.heal()
        await queue.resume()
        await _run(queue)
        await queue.drop()
