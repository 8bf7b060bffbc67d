from __future__ import annotations

from pathlib import Path

import pytest

from schedules import durable_storm
from schedules.storm import storm
from stores.kinds import url_of


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_kills_double_nothing_and_what_was_taken_is_reported(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, prefix = url_of(kind, request, tmp_path), f"{tmp_path.name}-"
    found = storm(url, prefix, tmp_path / "log", processes=3, schedules=4, kills=3)
    assert (found["doubled"], found["lost"]) == (0, 0), found
    assert found["taken"] <= 3 * 4, found
    assert found["fired"] > 3 * 4, found


@pytest.mark.parametrize("store", ["sqlite", "redis-aof"])
def test_each_occurrence_of_a_durable_schedule_is_inserted_once(store: str) -> None:
    """The long form has all stores, more faults, and clocks that are set."""
    plan = durable_storm.Plan(store=store, schedules=20, processes=3, seconds=0, every=1, faults=6)
    found = durable_storm.run(plan)
    assert not found.doubled
    assert not found.lost
    assert found.went_on
    assert len(found.inserted) >= 40
