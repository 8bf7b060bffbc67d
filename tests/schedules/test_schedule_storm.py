"""Storms of a few seconds; the long form has more of everything, all stores, and clocks that are set."""

from __future__ import annotations

from schedules.storm import Plan, run


def test_each_occurrence_of_a_durable_schedule_is_inserted_once() -> None:
    found = run(Plan(store="redis-aof", schedules=20, processes=3, seconds=0, every=1, faults=5))
    assert not found.doubled
    assert not found.lost
    assert found.went_on
    assert len(found.came) >= 40


def test_functions_are_called_at_most_once_and_what_was_missed_is_reported() -> None:
    plan = Plan(store="sqlite", schedules=4, processes=3, seconds=0, every=0.2, faults=5, overlap="allow")
    found = run(plan)
    assert not found.doubled
    assert not found.lost
    assert found.went_on
    assert len(found.came) >= 8
