from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from intervalq.errors import StoreError, VersionMismatch
from intervalq.ledger.rules import (
    Beat,
    Claim,
    Count,
    Drop,
    Ended,
    Expire,
    Forget,
    Leave,
    Look,
    Record,
    Verdict,
)
from intervalq_stores.postgres.ledgers import PostgresLedgerStore
from stores import postgres_sessions
from stores.postgres_sessions import sql

url = postgres_sessions.url

HOUR = 3_600_000_000
ROW = Record("s", HOUR, (Ended("a", "1"), Ended("b", "2", failed=True)))

READ = "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relname = 'ledger_rows'"
ENDING = """
    select from pg_stat_activity where datname = current_database() and application_name = 'intervalq'
"""


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresLedgerStore]:
    async with aclosing(PostgresLedgerStore(url)) as store:
        yield store


async def test_the_schema_is_made_once_more_when_it_is_gone_and_refused_when_it_is_newer(
    store: PostgresLedgerStore, url: str
) -> None:
    await store.apply("run", ROW)
    sql(url, "drop schema intervalq cascade")
    assert not (await store.apply("run", Count())).found
    await store.apply("run", ROW)
    sql(url, "update intervalq.ledgers_version set number = 2")
    await store.aclose()
    with pytest.raises(VersionMismatch, match="the ledgers of schema intervalq"):
        await store.apply("run", ROW)


async def test_counts_outlive_the_sessions_that_made_them(store: PostgresLedgerStore, url: str) -> None:
    async def counts() -> tuple[int, int]:
        summary = (await store.apply("run", Count())).summary
        assert summary is not None
        return summary.done, summary.failed

    await store.apply("run", ROW)
    await store.apply("run", Record("t", 1, (Ended("c", "3"),)))
    assert await counts() == (2, 1)
    await store.apply("run", Leave("s"))
    await store.apply("run", Beat("u", HOUR))  # a new session removes those that have lapsed
    assert sql(url, "select session from intervalq.ledger_sessions") == [("u",)]
    assert await counts() == (2, 1)
    await store.apply("run", Forget(("a", "b", "c"), ("done",)))
    assert await counts() == (0, 1)


async def test_what_is_left_of_dropped_and_expired_ledgers_is_swept_away(
    store: PostgresLedgerStore, url: str
) -> None:
    await store.apply("run", ROW)
    await store.apply("run", Drop())
    assert sql(url, "select count(*) from intervalq.ledger_rows") == [(0,)]
    now = (await store.apply("old", ROW)).now
    await store.apply("old", Expire(now))
    await store.apply("new", Beat("s", HOUR))
    assert sql(url, "select count(*) from intervalq.ledger_rows") == [(0,)]
    # After a minute, nothing can arrive any more.
    sql(url, "update intervalq.ledgers set dropped = dropped - interval '2 minutes'")
    await store.apply("new", Beat("t", HOUR))
    assert sql(url, "select name from intervalq.ledgers") == [("new",)]
    assert sql(url, "select session from intervalq.ledger_sessions order by 1") == [("s",), ("t",)]


async def test_texts_that_a_server_cannot_hold_are_refused(store: PostgresLedgerStore) -> None:
    for key in ("a\0", "\ud800"):
        with pytest.raises(StoreError, match="nothing was done"):
            await store.apply("run", Claim("s", HOUR, (key, "b")))
    assert (await store.apply("run", Claim("s", HOUR, ("b",)))).verdicts == (Verdict("mine", 1),)
    assert [row.key for row in (await store.apply("run", Look())).rows] == ["b"]


async def test_a_command_on_rows_reads_few_others(store: PostgresLedgerStore, url: str) -> None:
    """Whatever the statistics say, rows are found by their keys."""
    await store.apply("run", Record("s", HOUR, tuple(Ended(str(number), "1") for number in range(1000))))
    await store.apply("run", Claim("s", HOUR, ("a", "b", "1")))
    sql(url, "analyze")

    async def read() -> int:
        await store.aclose()
        while sql(url, ENDING):  # a connection reports its statistics at its end
            pass
        ((rows,),) = sql(url, READ)
        return int(rows)

    before = await read()
    for command in (
        Claim("t", HOUR, ("a", "c", "2")),
        Record("t", HOUR, (Ended("c", "1"), Ended("d", "2"))),
        Forget(("3", "c"), ("done",)),
        Look("5", 10),
    ):
        await store.apply("run", command)
    assert 0 < await read() - before < 60
