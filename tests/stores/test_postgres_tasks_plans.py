"""Claims stay cheap, however many tasks wait, are for later, or are dead rows: plans and buffers."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from intervalq_stores import postgres_tasks
from intervalq_stores._postgres_commands import uuid_of

WAITING: Final = 1_000_000
DEAD: Final = 100_000
FILL: Final = """
    insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
    select gen_random_uuid(), {at}, {at}, 0, 0, '{queue}', 'null' from generate_series(1, {number}) as n
"""
LINES: Final = 100_000
LINE: Final = """
    insert into intervalq.tasks
        (id, ready, at, created, modified, queue, json, own, key, place, waiting)
    select intervalq._id('k' || n), case n when 1 then 0 end, 0, 0, 0, 'line', 'null', 'k' || n, 'k', n, n > 1
    from generate_series(1, {number}) as n
"""
WORK: Final = """
    select kind, id, version, at from intervalq.work(
        's', %(ids)s::uuid[], %(versions)s::integer[], null, null, array[%(queue)s], %(limit)s, null, null,
        false, array[%(since)s]::bigint[], array[%(since_id)s]::uuid[], 0, '{}', 1000000000
    )
"""


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[str]:
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute(postgres_tasks._FILE.read_bytes())
            # Nobody cleans up behind this test's back; one index is filled faster than it is built.
            inside.execute(b"alter table intervalq.tasks set (autovacuum_enabled = off)")
            inside.execute(b"set synchronous_commit = off")
            inside.execute(b"select intervalq.begin_session('s', '', 0, '', 1, 0)")
            inside.execute(FILL.format(at="n", queue="deep", number=WAITING // 2).encode())
            inside.execute(FILL.format(at="2000000000 + n", queue="deep", number=WAITING // 2).encode())
            inside.execute(FILL.format(at="n", queue="bloated", number=DEAD).encode())
            inside.execute(LINE.format(number=LINES).encode())
        yield url
        connection.execute(f"drop database {name} with (force)".encode())


class Watched:
    """A connection that tells the plans of the statements within functions."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.plans: list[dict[str, Any]] = []
        self.connection.add_notice_handler(self._hear)
        for setting in (
            *(
                "load 'auto_explain'",
                "set auto_explain.log_min_duration = 0",
                "set auto_explain.log_analyze = on",
            ),
            *("set auto_explain.log_buffers = on", "set auto_explain.log_nested_statements = on"),
            *("set auto_explain.log_format = json", "set client_min_messages = log"),
        ):
            self.connection.execute(setting.encode())

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        said = notice.message_primary or ""
        if "plan:" in said:
            self.plans.append(json.loads(said.partition("plan:")[2]))

    def work(self, queue: str, limit: int = 0, **more: Any) -> list[tuple[Any, ...]]:
        """The claimed tasks, and the plans of this call only."""
        asked = {"ids": None, "versions": None, "since": None, "since_id": None, **more}
        self.plans.clear()
        rows = self.connection.execute(WORK.encode(), {**asked, "queue": queue, "limit": limit}).fetchall()
        return [row for row in rows if row[0] == "t"]

    def insert(self, key: str, inbox: int) -> list[tuple[Any, ...]]:
        """What `modify` answers to an insert with a key, with the plans of this call only."""
        self.plans.clear()
        task = [str(uuid.uuid4()), None, "line", "1", key, None, 0, 0, "", False, None, 0, inbox, False]
        empty: dict[str, list[object]] = {"changes": [], "deletes": [], "depends": []}
        command = json.dumps({"session": "", "force": False, "inserts": [task], **empty})
        ask = b"select kind, place from intervalq.modify(%s, 0)"
        return self.connection.execute(ask, [command]).fetchall()

    def buffers(self) -> int:
        """How many pages the last call has looked at."""
        return sum(
            node["Shared Hit Blocks"] + node["Shared Read Blocks"]
            for node in (plan["Plan"] for plan in self.plans)
            if node["Node Type"] != "Function Scan"  # the call itself, which counts its statements again
        )

    def rows(self) -> float:
        """How many rows went through the plans of the last call, or were thrown away there."""

        def of(node: dict[str, Any]) -> float:
            removed = sum(number for name, number in node.items() if name.startswith("Rows Removed"))
            own: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
            return own + sum(map(of, node.get("Plans", [])))

        return sum(of(plan["Plan"]) for plan in self.plans)

    def scans(self) -> set[tuple[str, str]]:
        """By what the tables were looked at."""
        found: set[tuple[str, str]] = set()

        def walk(node: dict[str, Any]) -> None:
            if node["Node Type"] in {
                "Seq Scan",
                "Tid Range Scan",
                "Index Scan",
                "Index Only Scan",
                "Tid Scan",
                "Bitmap Heap Scan",
            }:
                found.add((node.get("Relation Name", ""), node["Node Type"]))
            for inner in node.get("Plans", []):
                walk(inner)

        for plan in self.plans:
            walk(plan["Plan"])
        return found


@pytest.fixture
def watched(server: str) -> Iterator[Watched]:
    watched = Watched(server)
    yield watched
    watched.connection.close()


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
    """The first is claimed, one comes, the first is done and the next is fed."""
    [first] = watched.work("line", 1)
    assert watched.rows() < 60
    for _ in range(3):
        assert watched.insert("k", 2 * LINES)[0][0] == "i"
        assert watched.rows() < 60
        [second] = watched.work("line", 1, ids=[uuid_of(first[1])], versions=[first[2]])
        assert watched.rows() < 60
        first = second


@pytest.mark.parametrize("queue", ["deep", "line"])
def test_a_look_at_a_few_looks_at_few(watched: Watched, queue: str) -> None:
    watched.plans.clear()
    found = watched.connection.execute(
        "select id from intervalq.tasks_of(%s, null, null, 5, true)", [queue]
    ).fetchall()
    assert len(found) == 5
    assert watched.rows() < 120


STATS: Final = "select size, claimed, ready, future, inbox, exact from intervalq.stats(%s, '{}', null, %s)"


def _stats(watched: Watched, queue: str, now: int) -> tuple[Any, ...]:
    watched.plans.clear()
    [found] = watched.connection.execute(STATS.encode(), [[queue], now]).fetchall()
    return found


def test_few_are_counted_in_indexes_alone(watched: Watched) -> None:
    watched.connection.execute(FILL.format(at="n", queue="few", number=10_000).encode())
    assert _stats(watched, "few", 0) == (10_000, 0, 0, 10_000, 0, True)
    assert watched.rows() < 50_000
    scans = {scan for scan in watched.scans() if scan[0] in {"tasks", "plain", "ranges"}}
    assert scans <= {
        (table, f"Index{only} Scan") for table in ("tasks", "plain", "ranges") for only in ("", " Only")
    }
    assert ("tasks", "Index Only Scan") in scans


@pytest.mark.parametrize("now", [8_000, 1_000_000_000])
def test_a_million_are_estimated_by_a_look_at_few(watched: Watched, now: int) -> None:
    """Those that are ready, or for later, exactly where they are few."""
    size, claimed, ready, future, inbox, exact = _stats(watched, "deep", now)
    assert (claimed, inbox, exact) == (0, 0, False)
    # Rows are 60 to a page, and the queue's pages are next to each other: the samples have 1 % of them.
    assert abs(size - WAITING) < WAITING // 20
    if now == 8_000:
        assert 6_000 < ready <= 8_000  # other tests have claimed some
    else:
        assert abs(ready - WAITING // 2) < WAITING // 20
    assert size == ready + future
    assert watched.rows() < 150_000
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


def test_who_finds_nothing_does_not_look_at_the_tasks_of_later(watched: Watched) -> None:
    watched.connection.execute(FILL.format(at="2000000000 + n", queue="later", number=10_000).encode())
    assert watched.work("later", 100) == []
    assert watched.buffers() < 60


def test_dead_rows_are_passed_once_and_not_by_each_claim(server: str, watched: Watched) -> None:
    """Another session holds an old snapshot, so that nothing can clean them away."""
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
    """As after a night without tasks: plans made then must not be quadratic in the morning."""
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute(postgres_tasks._FILE.read_bytes())
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
