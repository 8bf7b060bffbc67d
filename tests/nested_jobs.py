"""Jobs that wait for others, as tests of deadlocks use them."""

from __future__ import annotations

import secrets

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from intervalq import IntervalQueue

url = "memory://"
"""Of records that all handles of this process share."""


@pytest.fixture
def name() -> str:
    """Of a queue of the test's own."""
    return f"q{secrets.token_hex(8)}"


async def nothing() -> int:
    return 7


async def by_run(queue: IntervalQueue) -> object:
    return await queue.run(nothing)


async def turns() -> None:
    """Let others do what they can do by now."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
