"""Claims and looks stay cheap, however many tasks wait, are delayed, claimed or dead: plans and buffers."""

from __future__ import annotations

import secrets
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from intervalq.tasks.rules import DAY, Delete, Insert, Modify, Select, Work
from intervalq_stores.postgres._schema import statements
from intervalq_stores.postgres._task.statements import uuid_of
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions
from stores import watched as million
from stores.postgres_sessions import begun
from stores.watched import CLAIMED, DEAD, FILL, LINES, WAITING, Watched

server = million.server
watched = million.watched
url = postgres_sessions.url
store = postgres_sessions.store


def test_a_claim_among_a_million_looks_at_what_it_takes(watched: Watched) -> None:
    for limit, pages in ((1, 60), (500, 12_000)):
        tasks: list[tuple[Any, ...]] = []
        for _ in range(3):
            ids, versions = [row[1] for row in tasks], [row[2] for row in tasks]
            tasks = watched.work("deep", limit, ids=ids, versions=versions)
            assert len(tasks) == limit
            assert {scan for scan in watched.scans() if scan[0] == "tasks"} <= {
                ("tasks", "Index Scan"),
                ("tasks", "Index Only Scan"),
                ("tasks", "Tid Scan"),
            }
            assert watched.buffers() < pages, (limit, watched.buffers())
        watched.work("deep", ids=[row[1] for row in tasks], versions=[row[2] for row in tasks])


def test_a_step_of_a_line_looks_at_few_however_many_wait(watched: Watched) -> None:
    """The first is claimed, one is inserted, the first is done, and the next becomes claimable."""
    [first] = watched.work("line", 1)
    assert watched.rows() < 70
    for _ in range(3):
        assert watched.insert("k", 2 * LINES)[0][0] == "i"
        assert watched.rows() < 70
        [second] = watched.work("line", 1, ids=[uuid_of(first[1])], versions=[first[2]])
        assert watched.rows() < 70
        first = second


@pytest.mark.parametrize("queue", ["deep", "line"])
def test_a_look_at_a_few_looks_at_few(watched: Watched, queue: str) -> None:
    watched.plans.clear()
    found = watched.connection.execute(
        "select id from intervalq.tasks_of(%s, null, null, true, 5)", [queue]
    ).fetchall()
    assert len(found) == 5
    assert watched.rows() < 120


STATS: Final = "select size, claimed, ready, future, inbox, exact from intervalq.stats(%s, '{}', null, %s)"


def _stats(watched: Watched, queue: str, now: int) -> tuple[Any, ...]:
    watched.plans.clear()
    [found] = watched.connection.execute(STATS.encode(), [[queue], now]).fetchall()
    return found


def test_few_are_counted_in_indexes_alone(watched: Watched) -> None:
    watched.connection.execute(FILL.format(at="n", queue="few", number=2_000).encode())
    assert _stats(watched, "few", 0) == (2_000, 0, 0, 2_000, 0, True)
    assert watched.rows() < 20_000
    scans = {scan for scan in watched.scans() if scan[0] in {"tasks", "plain", "ranges"}}
    assert scans <= {
        (table, f"Index{only} Scan") for table in ("tasks", "plain", "ranges") for only in ("", " Only")
    }
    assert ("tasks", "Index Only Scan") in scans


@pytest.mark.parametrize(("number", "exact"), [(2_001, True), (10_000, True), (10_001, False)])
def test_up_to_ten_thousand_are_counted(watched: Watched, number: int, exact: bool) -> None:
    watched.connection.execute(FILL.format(at="n", queue=f"n{number}", number=number).encode())
    size, claimed, ready, future, inbox, is_exact = _stats(watched, f"n{number}", 0)
    assert (claimed, ready, inbox, is_exact) == (0, 0, 0, exact)
    assert size == future
    assert size == number if exact else size >= number


@pytest.mark.parametrize("now", [8_000, 1_000_000_000])
def test_a_million_are_estimated_by_a_look_at_few(watched: Watched, now: int) -> None:
    """Ready or delayed tasks are counted exactly if they are few."""
    size, claimed, ready, future, inbox, exact = _stats(watched, "deep", now)
    assert (claimed, inbox, exact) == (0, 0, False)
    # Rows are 60 to a page, and the queue's pages are adjacent; the samples have 1 % of them.
    assert abs(size - WAITING) < WAITING // 20
    if now == 8_000:
        assert 6_000 < ready <= 8_000  # other tests have claimed some
    else:
        assert abs(ready - WAITING // 2) < WAITING // 20
    assert size == ready + future
    assert watched.rows() < 100_000
    assert ("tasks", "Tid Range Scan") in watched.scans()
    assert ("tasks", "Seq Scan") not in watched.scans()


def test_lines_and_plain_tasks_are_estimated_as_well(watched: Watched) -> None:
    watched.connection.execute(
        b"insert into intervalq.plain select 'plain', 0, n, 'null' from generate_series(1, 100000) as n"
    )
    size, _, ready, _, _, exact = _stats(watched, "plain", 0)
    assert (size, exact) == (ready, False)
    assert abs(size - 100_000) < 10_000
    size, claimed, _, _, inbox, exact = _stats(watched, "line", 0)
    assert not exact
    assert abs(inbox - LINES) < LINES // 5
    assert size - claimed - inbox <= 1


@pytest.fixture(scope="module")
def claimed(server: str) -> str:
    """All tasks of queue `gone` are claimed, and most of `claimed`, by two sessions in turns."""
    with psycopg.connect(server, autocommit=True) as inside:
        inside.execute(b"set synchronous_commit = off")
        inside.execute(b"select intervalq.begin_session('t', '', 0, '', 1, 0)")
        inside.execute(FILL.format(at="n", queue="claimed", number=CLAIMED).encode())
        inside.execute(FILL.format(at="n", queue="gone", number=CLAIMED).encode())
        for number, who in enumerate(("t", "s") * 10):
            queue = "claimed" if number < 10 else "gone"
            inside.execute(
                b"select count(*) from intervalq.work(%s, null, null, null, null, null, null, null,"
                b" array[%s], %s, null, null, false, array[null]::bigint[], array[null]::uuid[], 0, '{}',"
                b" 1000000000)",
                [who, queue, CLAIMED // 10],
            )
        inside.execute(FILL.format(at="n - 1", queue="claimed", number=3_000).encode())
    return server


def test_tasks_that_are_claimed_are_estimated_by_a_look_at_few(claimed: str, watched: Watched) -> None:
    del claimed
    found = _stats(watched, "claimed", 1_000_000_000)
    size, held, ready, future, inbox, exact = found
    assert (ready, future, inbox, exact) == (3_000, 0, 0, False)
    assert abs(held - CLAIMED) < CLAIMED // 5
    assert size == held + ready
    assert watched.rows() < CLAIMED // 2
    assert ("tasks", "Seq Scan") not in watched.scans()


def test_queues_whose_tasks_are_all_claimed_are_found_by_a_look_at_few(
    claimed: str, watched: Watched
) -> None:
    del claimed
    watched.plans.clear()
    found = watched.connection.execute(
        "select u from intervalq._queues('{}', '{c,g}', intervalq._holders()) as u"
    )
    assert {name for (name,) in found} == {"claimed", "gone"}
    assert watched.rows() < 400
    watched.plans.clear()
    found = watched.connection.execute("select name from intervalq.stats('{}', '{gone}', null, 1000000000)")
    assert found.fetchall() == [("gone",)]
    assert watched.rows() < CLAIMED // 3


def test_the_first_of_those_that_are_claimed_are_the_first(claimed: str, watched: Watched) -> None:
    """This holds for all states and sessions, by time, whatever comes behind."""
    del claimed
    for number, (queue, times) in enumerate((("claimed", [0, 1, 1, 2, 2, 3]), ("gone", [1, 2, 3, 4, 5, 6]))):
        watched.plans.clear()
        ask = "select at, session from intervalq.tasks_of(%s, null, null, true, 6)"
        found = watched.connection.execute(ask, [queue]).fetchall()
        assert [at for at, _ in found] == times, number
        assert {session for _, session in found} >= {"t"}
        assert watched.rows() < 200
        assert ("tasks", "Seq Scan") not in watched.scans()


def test_the_highest_number_of_claims_is_found_by_a_look_at_few(claimed: str, watched: Watched) -> None:
    """First claims are in no index for it; only repeated ones are."""
    ask = "select most_claims, seen from intervalq._counts('{gone}', %s, intervalq._holders(), 1000000000)"
    bounds = [10] * 5
    [(most, seen)] = watched.connection.execute(ask, [bounds]).fetchall()
    assert (most, seen) == (1, [0, 0, 0, 0, 21])
    with psycopg.connect(claimed) as inside:
        inside.execute(b"update intervalq.tasks set claims = 7 where queue = 'gone' and at = 150000")
    watched.plans.clear()
    [(most, _)] = watched.connection.execute(ask, [bounds]).fetchall()
    assert most == 7
    assert watched.rows() < 400
    ask = "select pg_relation_size('intervalq.tasks_again')"
    [(size,)] = watched.connection.execute(ask.encode()).fetchall()
    assert size < 1_000_000


@pytest.mark.parametrize(("number", "exact"), [(2_001, True), (9_997, True), (10_000, True), (10_001, False)])
@pytest.mark.parametrize("lease", [None, 5])
def test_up_to_ten_thousand_claims_are_counted(
    claimed: str, watched: Watched, number: int, lease: int | None, exact: bool
) -> None:
    """They are among very many of other queues, with delayed tasks beside them, and some that are ready."""
    del claimed
    queue = f"held{number}-{lease}"
    watched.connection.execute(b"set auto_explain.log_min_duration = -1")
    watched.connection.execute(FILL.format(at="n", queue=queue, number=number + 3).encode())
    watched.connection.execute(FILL.format(at="2000000000 + n", queue=queue, number=4).encode())
    assert len(watched.work(queue, number, lease=lease)) == number
    size, held, ready, future, inbox, is_exact = _stats(watched, queue, 1_000_000_000)
    assert (ready, future, inbox, is_exact) == (3, 4, 0, exact)
    assert size == held + 7
    assert held == number if exact else held >= number
    if lease is not None and number + 3 <= 10_000:
        # Claims that have ended are ready.
        assert _stats(watched, queue, 1_000_000_006) == (number + 7, 0, number + 3, 4, 0, True)


def test_a_look_at_very_many_queues_is_few_statements(watched: Watched) -> None:
    names = [f"many{number:04}" for number in range(2_500)]
    fill = FILL.replace("'{queue}'", "'many' || lpad((n - 1)::text, 4, '0')").format(at="n", number=2_500)
    watched.connection.execute(fill.encode())
    watched.plans.clear()
    found = watched.connection.execute(
        "select name, size from intervalq.stats('{}', '{many}', null, 1000000000)"
    ).fetchall()
    assert found == [(name, 1) for name in names]
    assert len(watched.plans) < 20
    watched.plans.clear()
    found = watched.connection.execute(
        "select name, size from intervalq.stats('{}', '{many}', 7, 1000000000)"
    ).fetchall()
    assert found == [(name, 1) for name in names[:7]]


def test_who_finds_nothing_does_not_look_at_the_tasks_of_later(watched: Watched) -> None:
    watched.connection.execute(FILL.format(at="2000000000 + n", queue="later", number=10_000).encode())
    assert watched.work("later", 100) == []
    assert watched.buffers() < 110


def test_dead_rows_are_passed_once_and_not_by_each_claim(server: str, watched: Watched) -> None:
    """Another session holds an old snapshot, so that dead rows can't be cleaned up."""
    with psycopg.connect(server) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select")
        other.execute("select count(*) from intervalq.sessions")
        watched.connection.execute(
            "delete from intervalq.tasks where queue = 'bloated' and ready <= %s", [DEAD - 5_000]
        )
        [first] = watched.work("bloated", 1)
        assert watched.buffers() > 1_000  # this one has looked from the start
        for limit in (1, 100):
            tasks = watched.work("bloated", limit, since=first[3], since_id=first[1])
            assert len(tasks) == limit
            assert watched.buffers() < 120 + 24 * limit, (limit, watched.buffers())


def test_claims_are_settled_one_by_one_even_if_the_planner_takes_the_table_for_empty(
    postgres_url: str,
) -> None:
    """After a night without tasks, plans that were made then must not be quadratic in the morning."""
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute(statements("tasks").encode())
            inside.execute(b"alter table intervalq.tasks set (autovacuum_enabled = off)")
            inside.execute(b"vacuum analyze intervalq.tasks")
            inside.execute(b"select intervalq.begin_session('s', '', 0, '', 1, 0)")
            inside.execute(FILL.format(at="n", queue="q", number=2_000).encode())
        watched = Watched(url)
        try:
            tasks: list[tuple[Any, ...]] = []
            for _ in range(3):
                ids, versions = [row[1] for row in tasks], [row[2] for row in tasks]
                tasks = watched.work("q", 500, ids=ids, versions=versions)
                assert len(tasks) == 500
                assert watched.rows() < 20 * 500
        finally:
            watched.connection.close()
        connection.execute(f"drop database {name} with (force)".encode())


ROWS: Final = b"""
    select sum(n_tup_ins + n_tup_upd + n_tup_del + seq_tup_read + coalesce(idx_tup_fetch, 0))
    from pg_stat_xact_user_tables where schemaname = 'intervalq'
"""


async def _rows(connection: psycopg.AsyncConnection) -> int:
    """How many rows of tasks it has read and written since it last told the server."""
    [(number,)] = await (await connection.execute(ROWS)).fetchall()
    return int(number)


@pytest.mark.parametrize("keep_for", [0, 7 * DAY])
async def test_an_end_costs_the_same_in_a_batch_of_any_size(store: PostgresTaskStore, keep_for: int) -> None:
    await begun(store, "s")
    costs: list[int] = []
    for queue, last, size in (("a", "last of a", 200), ("b", "last of b", 2_000)):
        parts = (Insert(queue, "0", f"{queue}{n}", follow_up=last, keep_for=keep_for) for n in range(size))
        await store.apply(Modify(inserts=(Insert("then", "0", last, awaits=size), *parts)))
        claimed = (await store.apply(Work("s", queues=(queue,), limit=100))).claimed
        async with store.transaction("read committed") as mine:
            before = await _rows(mine.connection)
            await mine.apply(Work("s", tuple(Delete(row.id, row.version) for row in claimed)))
            costs.append(await _rows(mine.connection) - before)
        [follow_up] = await store.apply(Select(ids=(last,)))
        assert follow_up.awaits == size - 100
    assert costs[1] <= 1.1 * costs[0], costs
