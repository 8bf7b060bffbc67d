"""The event loop of these tests, and fixtures for NATS; other stores have theirs under the same names."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import nats
import pytest

from intervalq.tasks import Tasks
from stores.nats_plain_client import PlainClient


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Drivers of servers need asyncio; tests of files run on both, see `backends`."""
    return "asyncio"


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"q.{secrets.token_hex(6)}"


@pytest.fixture
async def tasks(nats_url: str) -> AsyncIterator[Tasks]:
    async with Tasks(nats_url, expiry=60) as tasks:
        yield tasks


@pytest.fixture
async def others(nats_url: str) -> AsyncIterator[Tasks]:
    """Stores as if in other processes."""
    async with Tasks(nats_url, expiry=60) as tasks:
        yield tasks


@pytest.fixture
async def plain(nats_url: str, queue: str) -> AsyncIterator[PlainClient]:
    client = await nats.connect(nats_url)
    yield PlainClient(client, queue)
    await client.close()
