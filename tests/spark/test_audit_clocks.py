"""Clocks that drift, are set, or can't be told from starts that are early: by lines, and in whole audits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark import planted_logs as logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from intervalq.spark._audit.result import Audit

INTERVAL = 0.5
SPAN = 1_500
"""Seconds of a log."""

Clock = Callable[[float], float]
"""How far a clock is ahead after so many seconds."""


def rows_of(*clocks: Clock, seed: int = 1) -> list[logs.Row]:
    """A correct log of hosts with these clocks, whose starts are 0.2 to 6 ms late, and some up to 30 ms."""
    dice = random.Random(seed)
    rows = []
    for number in range(int(SPAN / INTERVAL)):
        due = logs.FIRST + number * INTERVAL
        host = number % len(clocks)
        late = 0.0002 + (dice.expovariate(1_000) if dice.random() < 0.97 else dice.uniform(0, 0.03))
        started = due + late + clocks[host](due - logs.FIRST)
        ended = due + 0.1 + clocks[host](due + 0.1 - logs.FIRST)
        key, shard = f"k{number}", f"s{host}"
        rows.append(
            logs.start("q", number)
            | {"due": due, "started": started, "ended": ended, "host": f"h{host}", "key": key, "shard": shard}
        )
        rows[-1] |= {"day": None}
    return rows


def judged(spark: SparkSession, rows: list[logs.Row], **options: Any) -> Audit:
    from intervalq.spark._audit.audit import audit

    return audit(spark, logs.frame(spark, rows).drop("day"), interval=INTERVAL, now=logs.NOW, **options)


def set_at(at: float, by: float) -> Clock:
    return lambda since: by if since >= at else 0.0


def test_clocks_that_are_set_or_drift_break_no_promise(spark: SparkSession) -> None:
    """Drifts of 20 ppm, steps in the middle of minutes, back and forth, and a clock that is slewed."""
    found = judged(
        spark,
        rows_of(
            lambda since: 20e-6 * since,
            lambda since: 3 - 20e-6 * since,
            set_at(431, 0.7),
            lambda since: set_at(707, -0.12)(since) + set_at(911, 0.35)(since),
            lambda since: min(0.09, max(0.0, (since - 600) * 500e-6)),
        ),
    )
    assert found.violations == {}
    assert found.notes["clock_jumped"].count == 3
    jumps = sorted(example.at or 0 for example in found.notes["clock_jumped"].examples)
    assert jumps == pytest.approx([logs.FIRST + at for at in (431, 707, 911)], abs=2 * 5 * INTERVAL)


def test_each_fault_is_found_once_whatever_the_clocks_do(spark: SparkSession) -> None:
    rows = rows_of(set_at(431, 0.7), lambda since: 2 - 20e-6 * since, seed=2)
    for number, by in ((700, 0.06), (1500, -0.07), (861, 0.06), (864, 0.06)):  # near a step, too
        rows[number]["started"] += by
    found = judged(spark, rows).violations
    assert {kind: one.count for kind, one in found.items()} == {
        "start_early": 1,
        "start_late": 3,
        "gap_short": 4,
    }


def test_what_can_not_be_told_is_said(spark: SparkSession) -> None:
    """A host is always 0.1 s early: or is its clock behind? Another one is late for ten minutes, or set."""
    found = judged(spark, rows_of(lambda _: -0.1, lambda _: 0.0, set_at(300, 0.2)))
    assert found.violations == {}
    (early,) = found.notes["host_early"].examples
    assert early.what.startswith("h0 -0.100 s")
    assert found.notes["clock_jumped"].count == 1
    (ahead,) = found.notes["clock_off"].examples
    assert ahead.what.startswith("h2 +0.200 s")  # as most of the time


def test_a_busy_minute_is_late_and_no_clock(spark: SparkSession) -> None:
    """Delays of that minute vary, so that the clock is taken from the minutes around it."""
    rows = rows_of(lambda _: 0.0, seed=3)
    dice = random.Random(4)
    busy = [row for row in rows if 600 <= row["due"] - logs.FIRST < 660]
    for row in busy:
        row["started"] += dice.uniform(0.02, 0.2)
    late = sum(row["started"] - row["due"] > INTERVAL / 10 for row in rows)
    found = judged(spark, rows)
    assert found.violations["start_late"].count == pytest.approx(late, abs=5)
    assert "clock_jumped" not in found.notes


def test_tickets_are_used_again_far_away(spark: SparkSession) -> None:
    """Early or late, by one that skips back or forth: each is one finding, and nothing else."""
    rows = rows_of(lambda _: 0.0)
    rows[2_000]["ticket"] = rows[20]["ticket"]
    rows[40]["ticket"] = rows[2_500]["ticket"]
    found = judged(spark, rows)
    assert {kind: one.count for kind, one in found.violations.items()} == {"ticket_twice": 2}
    assert {example.at for example in found.violations["ticket_twice"].examples} <= {
        rows[40]["due"], rows[2_000]["due"],
    }  # fmt: skip
    assert "tickets_unused" not in found.notes


def test_counters_of_the_past(spark: SparkSession) -> None:
    """A store was restored from a backup: 1,200 tickets are used again, each of which is a finding."""
    rows = rows_of(lambda _: 0.0)
    for row in rows[1_300:]:
        row["ticket"] -= 1_200
    found = judged(spark, rows)
    assert {kind: one.count for kind, one in found.violations.items()} == {"ticket_twice": 1_200}


def test_attempts_in_any_number_and_order(spark: SparkSession) -> None:
    rows = rows_of(lambda _: 0.0)
    for number in range(70):  # 70 attempts at one key
        rows[100 + number] |= {"key": "many", "attempt": number + 1, "status": "failed"}
    skipped = [dict(row) for row in rows]
    assert judged(spark, rows).violations == {}
    skipped[165] |= {"key": "another", "attempt": 1}
    for number in range(4):  # the third one before the second
        skipped[300 + number] |= {"key": "order", "attempt": (1, 3, 2, 4)[number]}
    skipped[400] |= {"key": "late"}
    skipped[401] |= {"key": "late", "attempt": 2}
    skipped[400]["ended"] += 1
    found = judged(spark, skipped).violations
    assert {kind: one.count for kind, one in found.items()} == {
        "attempt_skipped": 1, "attempt_order": 1, "attempt_overlap": 1,
    }  # fmt: skip


# --- lines ----------------------------------------------------------------------------------------------


def test_small_windows_are_one_point() -> None:
    from intervalq.spark._audit.clocks import PARTS, Window, breaks_of, clock_of, points_of

    windows = [Window(60.0 * n, 60.0 * n, 60.0 * n, (0.001 * (n % 3),) * PARTS, 1) for n in range(100)]
    points = points_of(reversed(windows))
    assert [point.starts for point in points] == [30, 30, 40]
    assert [point.low for point in points] == [0.0, 0.0, 0.0]
    assert list(breaks_of("h", points, 60.0)) == []
    clock = clock_of("h", points, [])
    assert (clock.offset, clock.starts, clock.jumps) == (0.0, 100, [])
    assert [line.at(3_000) for line in clock.lines] == [0.0, 0.0]


def test_nothing_is_drawn_over_a_night() -> None:
    from intervalq.spark._audit.clocks import PARTS, Window, breaks_of, clock_of

    points = [
        Window(at, at - 30, at + 30, (ahead,) * PARTS, 100)
        for at, ahead in ((30, 0.0), (90, 0.001), (36_030, 0.7), (36_090, 0.7))
    ]
    (found,) = breaks_of("h", points, 60.0)
    assert (found.rows, found.at) == (0, (120 + 36_000) / 2)
    clock = clock_of("h", points, [found])
    ((at, change),) = clock.jumps
    assert at == found.at
    assert change == pytest.approx(0.7 - 0.3, abs=0.01)
    by = {line.since: line for line in clock.lines}
    assert math.isclose(by[found.at].at(36_000), 0.7)


def test_of_a_log_of_three_days_enough_starts_are_looked_at_to_know_the_clocks() -> None:
    """Delays up to 0.8 of the tolerance don't make a start look early that is 0.9 of it before."""
    from intervalq.spark._audit.clocks import ENOUGH, PARTS, window_length

    hosts, span = 8, 250_000.0
    count = hosts * span / window_length(hosts, span, 60)
    first = (
        ENOUGH / count / PARTS
    )  # the place of the first quantile in a window, by which its clock is judged
    draws = random.Random(0)
    highest = max(draws.betavariate(first, (PARTS - 1) * first + 1) for _ in range(int(count)))
    assert 0.8 * highest < 0.1
