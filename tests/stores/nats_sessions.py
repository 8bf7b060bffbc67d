"""Helpers with sessions of tasks on NATS."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Change,
    Delete,
    Insert,
    Modify,
    Row,
    Select,
    Session,
    Work,
)
from intervalq_stores.nats.tasks import NATSTaskStore

Open = Callable[[], NATSTaskStore]

_ASKS = 20


@pytest.fixture
async def opened(nats_url: str) -> AsyncIterator[Open]:
    """A function that opens stores, each as if in another process; they are closed at the end."""
    stores: list[NATSTaskStore] = []

    def open_one() -> NATSTaskStore:
        stores.append(NATSTaskStore(nats_url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


@pytest.fixture
def store(opened: Open) -> NATSTaskStore:
    return opened()


def inserts(queue: str, *ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert(queue, f'"{id_}"', id_, **more) for id_ in ids))


async def begun(store: NATSTaskStore, expiry: int = 60 * SECOND) -> str:
    session = secrets.token_hex(8)
    await store.apply(Begin(Session(session, expiry=expiry)))
    return session


async def claim(store: NATSTaskStore, session: str, *queues: str, limit: int = 1, **more: Any) -> list[Row]:
    """Claim what there is; asked again, because an insert is answered before the consumer learns of it."""
    for _ in range(_ASKS):
        if rows := (await store.apply(Work(session, queues=queues, limit=limit, **more))).claimed:
            return list(rows)
    return []


async def settled(store: NATSTaskStore, session: str, *parts: Delete | Change) -> tuple[str, ...]:
    """Settle, and return the ids of lost claims."""
    return (await store.apply(Work(session, parts))).lost


def done(*rows: Row) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)


async def ids_in(store: NATSTaskStore, queue: str) -> list[str]:
    return sorted(row.id for row in await store.apply(Select(queue=queue)))
