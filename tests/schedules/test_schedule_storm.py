"""Storms of a few seconds; the long form has more of everything, all stores, and clocks that are set."""

from __future__ import annotations

import pytest

from schedules.storm import Plan, run


@pytest.mark.parametrize("store", ["sqlite", "redis-aof"])
def test_each_occurrence_of_a_durable_schedule_is_inserted_once(store: str) -> None:
    found = run(Plan(store=store, schedules=20, processes=3, seconds=0, every=1, faults=6))
    assert not found.doubled
    assert not found.lost
    assert found.went_on
    assert len(found.came) >= 40


@pytest.mark.parametrize("store", ["sqlite", "redis-aof"])
def test_functions_are_called_at_most_once_and_what_was_missed_is_reported(store: str) -> None:
    plan = Plan(store=store, schedules=4, processes=3, seconds=0, every=0.2, faults=6, overlap="allow")
    found = run(plan)
    assert not found.doubled
    assert not found.lost
    assert found.went_on
    assert len(found.came) >= 8
