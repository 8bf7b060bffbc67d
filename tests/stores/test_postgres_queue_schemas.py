"""Schemas of queues that earlier releases wrote in Postgres, with records of keys, and what comes of them."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from intervalq import IntervalQueue
from intervalq_stores.postgres.queues import SCHEMA, PostgresStore

FILES: Final = Path(__file__).parent
OWN: Final = ["5000 tokens/m"]
FUNCTIONS: Final = """
    select p.oid::regprocedure::text, p.prosrc from pg_proc p
    where pronamespace = 'intervalq'::regnamespace order by 1
"""


async def nothing() -> None:
    """A job."""


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


VERSIONS: Final = [(6, []), *((number, OWN) for number in (7, 10, 11, 12, 13, 14, 15))]


@pytest.mark.parametrize(("number", "own"), VERSIONS)
async def test_keys_and_their_queue_go_on(number: int, own: list[str], empty_postgres_url: str) -> None:
    """Keys a and b have begun three jobs.

    The files are what `pg_dump` wrote of databases of these versions, but functions have no bodies, because
    all are replaced.
    """
    url = empty_postgres_url
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
    fresh = sql(url, FUNCTIONS)
    sql(url, "drop schema intervalq cascade")
    sql(url, (FILES / f"queues_schema_{number}.postgres.sql").read_text())
    assert sql(url, "select number from intervalq.version") == [(number,)]
    each = ["shared", *own] if own else "shared"
    limits = ["600/min", "30_000 tokens/min"]
    before = dict(sql(url, "select name, generation from intervalq.queues where name in ('api', 'alone')"))
    async with IntervalQueue("api", rate="20/s", each=each, limits=limits, store=url) as queue:
        await queue["c"].run(nothing, cost={"tokens": 10})
        assert [limit.limit for limit in (await queue["c"].inspect()).limits] == [
            *own, "600/m", "30000 tokens/m",
        ]  # fmt: skip
        await queue["c"].configure(weight=3)
        assert (await queue["c"].inspect()).weight == 3
        common = await queue.inspect()
        assert (common.ticket, common.generation) == (4, before["api"])
    async with IntervalQueue("alone", store=url) as alone:
        await alone.run(nothing)
        assert ((await alone.inspect()).ticket, (await alone.inspect()).generation) == (2, before["alone"])
    assert sql(url, "select number from intervalq.version") == [(SCHEMA,)]
    assert sql(url, FUNCTIONS) == fresh
