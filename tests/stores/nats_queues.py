"""Helpers that open, write and inspect queues on NATS."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from intervalq.rules import (
    Advance,
    Settings,
)
from intervalq_stores.nats._queue import stream as nats_queue_stream
from intervalq_stores.nats._queue.step import Plain
from intervalq_stores.nats.queues import NATSStore

HOURLY = Settings(interval=3_600_000_000)


QUICK = Settings(interval=1_000)


NOW = 1_000_000_000_000_000


CANARY = "c4n4ry"


LOG = "intervalq.log."


STATE = "intervalq.state."


Open = Callable[[str], NATSStore]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """A function that opens stores, which are closed at the end."""
    stores: list[NATSStore] = []

    def open_one(url: str) -> NATSStore:
        stores.append(NATSStore(url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


def fresh() -> str:
    return f"n{secrets.token_hex(8)}"


def take(settings: Settings = HOURLY, **more: Any) -> Advance:
    return Advance(**{"settings": settings, "nonce": secrets.token_hex(4), "take": 1, **more})


def history(store: NATSStore) -> nats_queue_stream.History:
    return store._history


async def log_of(store: NATSStore, queue: str) -> list[Any]:
    last = await history(store).last(queue)
    return [] if last is None else await history(store).tail(queue, last.sequence)


async def purge(store: NATSStore, stream: str, **which: Any) -> None:
    await history(store).server.ask(f"STREAM.PURGE.{stream}", which)


def plain_ones(log: list[Any]) -> int:
    return sum(isinstance(entry.step, Plain) for entry in log)
