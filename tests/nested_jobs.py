"""Jobs that wait for other jobs, for the tests of deadlocks."""

from __future__ import annotations

import secrets

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from intervalq import IntervalQueue

url = "memory://"
"""URLs of stores whose records all handles of this process share."""


@pytest.fixture
def name() -> str:
    """The name of a queue that only this test uses."""
    return f"q{secrets.token_hex(8)}"


async def nothing() -> int:
    return 7


async def by_run(queue: IntervalQueue) -> object:
    return await queue.run(nothing)


async def turns() -> None:
    """Let all other tasks run until each of them waits for something."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
