"""Helpers with sessions of tasks on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.lowlevel
import psycopg
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Insert,
    Modify,
    Row,
    Session,
    Sessions,
    Work,
)
from intervalq_stores.postgres.tasks import PostgresTaskStore

CANARY: Final = "canary-7Hq2"
ME: Final = "from pg_stat_activity where datname = current_database() and application_name = 'intervalq'"


@pytest.fixture
def url(empty_postgres_url: str) -> str:
    return empty_postgres_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTaskStore]:
    async with aclosing(PostgresTaskStore(url)) as store:
        await store.apply(Sessions())
        yield store


def sql(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def with_options(url: str, *options: str) -> str:
    return f"{url}?options={quote(' '.join(f'-c {option}' for option in options))}"


async def caught(call: Awaitable[object]) -> BaseException:
    with pytest.raises(errors.IntervalqError) as caught:
        await call
    return caught.value


async def begun(store: PostgresTaskStore, *sessions: str, expiry: int = 3600 * SECOND) -> None:
    for session in sessions:
        await store.apply(Begin(Session(session, "host", 7, expiry=expiry)))


async def claim(store: PostgresTaskStore, session: str, limit: int = 1, **more: Any) -> tuple[Row, ...]:
    return (await store.apply(Work(session, queues=("q",), limit=limit, begins=2, **more))).claimed


def inserts(*ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", f'"{id_}"', id_, **more) for id_ in ids))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()
