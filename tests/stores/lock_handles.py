"""Handles that compete for a lock, for tests on every store."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from intervalq.tasks import Tasks

Open = Callable[[], Tasks]


@pytest.fixture
def name() -> str:
    return f"car.{secrets.token_hex(6)}"


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Open]:
    """A function that opens handles, each as if in a process of its own."""
    async with AsyncExitStack() as stack:

        def open_one() -> Tasks:
            tasks = Tasks(url)
            stack.push_async_callback(tasks.aclose)
            return tasks

        yield open_one
