"""Fixtures for tests of NATS; other kinds of stores have their own under some of these names."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import nats
import pytest

from intervalq.tasks import Tasks
from stores.nats_plain_client import PlainClient


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
