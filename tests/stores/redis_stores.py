"""Stores of queues on Redis, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from intervalq import errors
from intervalq.rules import Command
from intervalq_stores.redis.queues import RedisStore
from servers import redis_client

Open = Callable[[str], RedisStore]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """A function that opens stores, which are closed at the end."""
    stores: list[RedisStore] = []

    def open_one(url: str) -> RedisStore:
        stores.append(RedisStore(url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


async def refused_and_kept(
    url: str, store: RedisStore, take: Command, broken: Mapping[Any, str | bytes], command: Command
) -> None:
    """A command on a record with broken fields is refused, and the record stays as it is."""
    key = "intervalq:{broken}"
    with redis_client(url) as client:
        client.delete(key)
        await store.apply("broken", take)
        client.hset(key, mapping=dict(broken))
        before = client.hgetall(key)
        with pytest.raises(errors.CorruptState):
            await store.apply("broken", command)
        assert client.hgetall(key) == before
        client.delete(key)
