"""Steps on keys and counts cost the same however many tasks wait: steps of SQLite's machine are counted."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from intervalq.tasks.rules import (
    DAY,
    DONE,
    Begin,
    Count,
    Delete,
    Insert,
    Modify,
    OutcomeRow,
    Outcomes,
    QueueStats,
    Select,
    Session,
    Work,
)
from intervalq_stores.sqlite import _task_database as database
from intervalq_stores.sqlite import _task_table as table
from intervalq_stores.sqlite._task_batches import do
from intervalq_stores.sqlite._task_table import SQLiteTable

LINE: Final = """
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
    INSERT INTO intervalq_tasks
        (id, version, queue, at, json, key, place, waiting, claims, attempt, error, created, modified,
        dedupe_for, ready)
    SELECT 'k' || n, 0, 'q', 0, 'null', 'k', n, n > 1, 0, 0, '', 0, 0, 0, CASE n WHEN 1 THEN 0 END FROM n
"""
FREE: Final = """
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
    INSERT INTO intervalq_tasks
        (id, version, queue, at, json, place, waiting, claims, attempt, error, created, modified, dedupe_for,
        ready)
    SELECT 'f' || n, 0, 'free', n / 9, 'null', 0, 0, 0, 0, '', 0, 0, 0, n / 9 FROM n
"""


@contextmanager
def _opened() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        database.make(connection, None)
        yield connection


class Counted:
    """A table, and how many steps of SQLite's machine its commands take, in tens."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.steps = 0
        connection.set_progress_handler(self._step, 10)
        self.table = SQLiteTable(connection)

    def _step(self) -> int:
        self.steps += 1
        return 0


@pytest.mark.parametrize("waiting", [100, 100_000])
def test_a_step_of_a_line_is_small_however_many_wait(waiting: int) -> None:
    """The first is claimed, one is inserted, the first is done, and the next becomes claimable."""
    with _opened() as connection:
        connection.execute(LINE, [waiting])
        connection.execute("BEGIN")
        counted = Counted(connection)
        do(counted.table, Begin(Session("s")), 1)
        settled: tuple[Delete, ...] = ()
        for turn in range(3):
            more = Insert("q", "1", f"more{turn}", key="k", inbox=2 * waiting)
            assert len(do(counted.table, Modify(inserts=(more,)), 1).inserted) == 1
            claimed = do(counted.table, Work("s", settled, queues=("q",), limit=1), 1).claimed
            assert [row.id for row in claimed] == [f"k{turn + 1}"]
            settled = (Delete(claimed[0].id, claimed[0].version),)
        assert counted.steps < 300


@pytest.mark.parametrize("others", [3_000, 30_000])
def test_outcomes_of_a_queue_are_found_without_those_of_others(others: int) -> None:
    with _opened() as connection:
        counted = Counted(connection)
        for queue, count in (("rare", 3), ("q", others), ("rare", 2)):
            row = OutcomeRow("", queue, None, DONE, "1", "", 1, "", 0, 0, 0, "", 0, 9)
            counted.table.outcome_tables.put([row._replace(id=f"{queue}{n}") for n in range(count)])
        counted.steps = 0
        found = do(counted.table, Outcomes(queue="rare"), 1)
        assert [one.id for one in found] == ["rare1", "rare0", "rare2", "rare1", "rare0"]
        assert counted.steps < 3_000


@pytest.mark.parametrize("keep_for", [0, 7 * DAY])
def test_an_end_costs_the_same_in_a_batch_of_any_size(keep_for: int) -> None:
    def steps(size: int) -> int:
        with _opened() as connection:
            counted = Counted(connection)
            do(counted.table, Begin(Session("s")), 1)
            parts = (Insert("q", "1", f"{n}", follow_up="then", keep_for=keep_for) for n in range(size))
            do(counted.table, Modify(inserts=(Insert("q", "2", "then", awaits=size), *parts)), 1)
            claimed = do(counted.table, Work("s", queues=("q",), limit=100), 1).claimed
            counted.steps = 0
            do(counted.table, Work("s", tuple(Delete(row.id, row.version) for row in claimed)), 1)
            (follow_up,) = do(counted.table, Select(ids=("then",)), 1)
            assert follow_up.awaits == size - 100
            return counted.steps

    assert steps(10_000) < 1.1 * steps(200)


def test_a_look_at_a_few_is_small_however_many_there_are() -> None:
    with _opened() as connection:
        connection.execute(LINE, [1_000])
        connection.execute(FREE, [30_000])
        counted = Counted(connection)
        for queue in ("q", "free"):
            rows = do(counted.table, Select(queue=queue, limit=5), 1)
            assert [row.at for row in rows] == [0] * 5
        assert counted.steps < 200  # SQLite 3.40 takes 102 steps


def test_counts_are_of_indexes_alone() -> None:
    with _opened() as connection:
        for statement in (table._STATS, table._NEXT_QUEUE):
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?"))
            steps = [step for *_, step in plan]
            looks = [step for step in steps if "intervalq_tasks" in step]
            assert len(looks) == statement.count("FROM intervalq_tasks") + statement.count("JOIN")
            assert all("SEARCH" in look for look in looks), looks
            wide = [look for look in looks if "COVERING INDEX" not in look]
            assert all("_again" in look for look in wide), wide  # of which only the last one is looked up


def test_many_are_estimated_by_a_look_at_few() -> None:
    """These are a queue's tasks among others, ready and delayed, also with gaps between them."""
    with _opened() as connection:
        connection.execute(LINE, [100_000])
        connection.execute(FREE, [100_000])
        connection.execute("DELETE FROM intervalq_tasks WHERE queue = 'free' AND rowid % 4 = 0")
        counted = Counted(connection)
        free, line = counted.table.count(Count(), 3_000)
        assert (free.name, line.name) == ("free", "q")
        assert (free.exact, line.exact) == (False, False)
        assert abs(free.size - 75_000) < 7_500
        assert abs(free.ready - 20_250) < 3_000
        assert abs(line.inbox - 100_000) < 10_000
        assert (line.ready, line.future) == (1, 0)
        assert counted.steps < 60_000


def test_few_are_counted() -> None:
    with _opened() as connection:
        connection.execute(FREE, [10_000])
        connection.execute(LINE, [10_001])
        free, line = SQLiteTable(connection).count(Count(), 0)
        assert free == QueueStats("free", 10_000, ready=8, future=9_992)
        assert line == QueueStats("q", 10_001, ready=1, inbox=10_000)
