"""Sessions of tasks on NATS, as tests use them."""

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
    """Opens stores, each as if in a process of its own, and closes them at the end."""
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
    """What can be claimed; asked again, as an insert is answered before the consumer has heard of it."""
    for _ in range(_ASKS):
        if rows := (await store.apply(Work(session, queues=queues, limit=limit, **more))).claimed:
            return list(rows)
    return []


async def settled(store: NATSTaskStore, session: str, *parts: Delete | Change) -> tuple[str, ...]:
    """The ids of what was lost."""
    return (await store.apply(Work(session, parts))).lost


def done(*rows: Row) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)


async def ids_in(store: NATSTaskStore, queue: str) -> list[str]:
    return sorted(row.id for row in await store.apply(Select(queue=queue)))
