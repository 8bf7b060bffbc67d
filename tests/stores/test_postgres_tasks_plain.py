"""Plain tasks that are changed by id while others claim and finish them, each on its own connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import psycopg
import pytest

from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Count,
    Delete,
    Depend,
    Finished,
    Insert,
    Modify,
    Row,
    Select,
    Session,
    Work,
    Worked,
)
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions

url = postgres_sessions.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTaskStore]:
    async with aclosing(PostgresTaskStore(url)) as store:
        await store.apply(Begin(Session("s", "host", 7, expiry=3600 * SECOND)))
        yield store


def _put(connection: psycopg.Connection[Any], *numbers: int) -> None:
    """Insert plain tasks as one part, whose values are their numbers."""
    for number in numbers:
        connection.execute(b"insert into intervalq.plain values ('q', 0, %s, %s)", [number, str(number)])


async def _claim(store: PostgresTaskStore, **more: Any) -> Worked:
    return await store.apply(Work("s", queues=("q",), limit=100, **more))


def _values(worked: Worked) -> list[int]:
    return [json.loads(text) for _, tasks in worked.ranges for _, text in tasks] + [
        json.loads(row.json) for row in worked.claimed
    ]


@pytest.mark.parametrize("queue", ["q", None])
@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_pages_have_plain_tasks_and_others(
    url: str, store: PostgresTaskStore, queue: str | None, limit: int
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        _put(connection, *range(1, 10))
        connection.execute(b"insert into intervalq.plain values ('r', 1, 10, '10'), ('a b c', 1, 11, '11')")
    inserts = tuple(Insert(name, str(number), f"own-{number}") for number, name in enumerate("qqrraa", 20))
    await store.apply(Modify(inserts=inserts))
    found: list[Row] = []
    cursor = ""
    while True:
        rows, cursor = await store.page(queue, cursor, limit)
        assert len(rows) <= limit
        found += rows
        if not cursor:
            break
    expected = await store.apply(Select(queue=queue))
    assert sorted(found) == sorted(expected)
    assert len(found) == (11 if queue else 17)


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
@pytest.mark.parametrize("word", ["delete", "depend", "nothing"])
@pytest.mark.parametrize("is_new", [False, True])
async def test_nobody_claims_what_a_transaction_has_named(
    url: str, store: PostgresTaskStore, word: str, isolation: Any, *, is_new: bool
) -> None:
    """Other parts can be claimed once somebody has claimed from the queue before."""
    parts = {
        "delete": Modify(deletes=(Delete("plain-0-2", 0),)),
        "depend": Modify(depends=(Depend("plain-0-2", 0),)),
        "nothing": Modify(depends=()),
    }
    with psycopg.connect(url, autocommit=True) as connection:
        _put(connection, 1, 2, 3)
        connection.execute(b"insert into intervalq.plain values ('q', 1, 4, '4')")
        if not is_new:
            connection.execute(b"select intervalq._make_heads('q', true)")
    async with store.transaction(isolation) as transaction:
        await transaction.apply(parts[word])
        first = _values(await _claim(store))
    others = [] if is_new else [4]
    assert sorted(first) == ([1, 2, 3, 4] if word == "nothing" else others)
    rest = _values(await _claim(store))
    assert sorted([*first, *rest]) == ([1, 3, 4] if word == "delete" else [1, 2, 3, 4])


async def test_one_that_was_committed_late_does_not_stand_for_one_that_was_taken(
    url: str, store: PostgresTaskStore
) -> None:
    """There are as many tasks as were handed out, but not the same ones."""
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as late:
        _put(connection, 1, 2, 3, 4, 6, 7, 8, 9, 10)
        _put(late, 5)
        ((range_, tasks),) = (await _claim(store)).ranges
        assert [number for number, _ in tasks] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
        await store.apply(Modify(deletes=(Delete("plain-0-4", 1), Delete("plain-0-9", 1)), force=True))
        late.commit()
    part = Finished(range_, (), 8, 7)
    assert (await store.apply(Work("s", finished=(part,)))).lost_ranges == ()
    (stats,) = await store.apply(Count(names=("q",)))
    assert (stats.size, stats.claimed, stats.ready) == (2, 1, 1)
    rows = await store.apply(Select(queue="q"))
    assert {(row.id, row.session) for row in rows} == {("plain-0-5", None), ("plain-0-10", "s")}


async def test_one_that_was_committed_late_can_be_deleted_before_it_is_swept(
    url: str, store: PostgresTaskStore
) -> None:
    """It lies between others that are claimed, and nobody has claimed it."""
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as late:
        _put(connection, 1, 3)
        _put(late, 2)
        worked = await _claim(store)
        late.commit()
    (row,) = await store.apply(Select(ids=("plain-0-2",)))
    assert (row.session, row.version) == (None, 0)
    await store.apply(Modify(deletes=(Delete(row.id, row.version),)))
    finished = tuple(Finished(range_) for range_, _ in worked.ranges)
    assert (await store.apply(Work("s", finished=finished))).lost_ranges == ()
    assert await store.apply(Count(names=("q",))) == ()
