"""The pacing report: figures computed from starts."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq._watch.log import percentile
from intervalq.cli._run.report import Figures, Report, count_inversions, lines, report


def made(started: list[float], tickets: list[int] | None = None, **figures: Any) -> Report:
    given_figures: dict[str, Any] = {
        "interval": 0.1, "shards": 4, "jobs": len(started), "failed": 0, "skipped": 0, "not_run": 0,
        "issued": len(started), "spanned": 1000, "calls": 0,
    }  # fmt: skip
    return report(started, tickets or list(range(len(started))), Figures(**given_figures | figures))


def test_a_perfect_run() -> None:
    got = made([1.0, 1.1, 1.2, 1.3, 1.4], calls=10)
    assert got.rate == pytest.approx(10)
    assert got.rate_possible == 10
    assert got.rate_share == pytest.approx(1)
    assert got.gap_smallest == got.gap_p1 == got.gap_p50 == got.gap_p99 == pytest.approx(0.1)
    assert got.gaps_short == 0
    assert got.in_order
    assert got.slots_unused == 0
    assert got.calls_per_job == 2


def test_slots_are_unused_if_tickets_were_issued_and_not_given_back() -> None:
    assert made([1.0, 1.1], issued=10, spanned=4).slots_unused == 2
    assert made([1.0, 9.1], issued=3, spanned=82).slots_unused == 1, "nobody had a ticket in between"
    assert made([1.0, 1.1], issued=2, spanned=2).slots_unused == 0


def test_short_gaps_are_counted_and_those_of_just_nine_tenths_are_not() -> None:
    got = made([1.0, 1.09, 1.179, 1.279, 1.379])
    assert got.gaps_short == 0.25
    assert got.gap_smallest == pytest.approx(0.089)


def test_the_order_of_the_input_does_not_matter() -> None:
    assert made([3.0, 1.0, 2.0], [3, 1, 2]) == made([1.0, 2.0, 3.0], [1, 2, 3])


def test_starts_out_of_order_are_counted() -> None:
    got = made([1.0, 2.0, 3.0], [3, 1, 2])
    assert (got.in_order, got.inversions) == (False, 2)


@pytest.mark.parametrize("starts", [[], [1.0], [1.0, 1.0]])
def test_too_few_starts_have_no_rate(starts: list[float]) -> None:
    got = made(starts)
    assert got.rate is None
    assert dict(lines(got))["jobs"] == str(len(starts))


def test_what_people_read() -> None:
    got = made([1.0, 1.1, 1.2], jobs=2, failed=1, skipped=3, not_run=4, issued=5, calls=6)
    assert lines(got) == [
        ("jobs", "2, 1 failed, 3 already done, 4 not run"),
        ("starts", "3, including further attempts"),
        ("rate", "10/s, 100.0% of the queue's 10/s"),
        ("gaps", "smallest 100ms, 1% 100ms, median 100ms, 99% 100ms"),
        ("too short", "0.00% of gaps under 0.9 x 100ms"),
        ("order", "kept"),
        ("slots unused", "2; store calls per job: 2.00"),
    ]
    slow = dict(lines(made([0.0, 3600.0, 7200.0], [2, 1, 3], interval=3600.0, issued=None)))
    assert slow["rate"] == "1/h, 100.0% of the queue's 1/h"
    assert slow["gaps"] == "smallest 1h00m, 1% 1h00m, median 1h00m, 99% 1h00m"
    assert slow["order"] == "not kept: 1 pair out of order"
    assert slow["slots unused"].startswith("not known")


def test_without_an_interval_nothing_is_compared_with_one() -> None:
    got = made([1.0, 1.1, 1.2], interval=None, issued=5, spanned=4)
    assert lines(got) == [
        ("jobs", "3"),
        ("rate", "10/s (the queue has no interval, only limits)"),
        ("gaps", "smallest 100ms, 1% 100ms, median 100ms, 99% 100ms"),
        ("order", "kept"),
        ("slots unused", "1; store calls per job: 0.00"),
    ]
    assert (got.rate_possible, got.rate_share, got.gaps_short) == (None, None, None)


@given(st.lists(st.integers(0, 20)))
def test_inversions_are_pairs_in_falling_order(numbers: list[int]) -> None:
    assert count_inversions(numbers) == sum(a > b for a, b in combinations(numbers, 2))


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(0, 100))
def test_a_percentile_has_that_share_at_or_below_it(numbers: list[float], percent: int) -> None:
    numbers.sort()
    got = percentile(numbers, percent)
    assert got in numbers
    assert got is not None
    assert sum(number <= got for number in numbers) * 100 >= percent * len(numbers)
    assert sum(number < got for number in numbers) * 100 < max(1, percent) * len(numbers) or got == numbers[0]


@given(st.lists(st.floats(1e9, 2e9), max_size=30), st.none() | st.floats(1e-6, 1e6))
def test_any_run_has_a_report(starts: list[float], interval: float | None) -> None:
    got = made(starts, interval=interval)
    assert lines(got)
    assert got.to_dict()["starts"] == len(starts)
