"""Helpers with sessions of tasks on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import pytest

from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Delete,
    Insert,
    Modify,
    Row,
    Session,
    Work,
)
from intervalq_stores.redis.tasks import RedisTaskStore
from servers import Server, redis_client

TASKS, INDEX, SESSIONS, MARKS, META = (
    f"intervalq:{{tasks}}:{part}" for part in ("tasks", "index", "sessions", "marks", "meta")
)
KEYS: Final = (TASKS, INDEX, SESSIONS, MARKS, META)


@pytest.fixture
def server(own_redis: Callable[..., Server]) -> Server:
    """A server that the test may fill with anything."""
    return own_redis()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with redis_client(server.url) as client:
        yield client


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisTaskStore]:
    async with aclosing(RedisTaskStore(server.url)) as store:
        yield store


async def begun(store: RedisTaskStore, *sessions: str, expiry: int = 3600 * SECOND) -> None:
    for session in sessions:
        await store.apply(Begin(Session(session, "host", 7, expiry=expiry)))


async def claim(store: RedisTaskStore, session: str, limit: int = 1, **more: Any) -> tuple[Row, ...]:
    return (await store.apply(Work(session, queues=("q",), limit=limit, **more))).claimed


def inserts(*ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", f'"{id_}"', id_, **more) for id_ in ids))


def deleted(rows: tuple[Row, ...]) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)
