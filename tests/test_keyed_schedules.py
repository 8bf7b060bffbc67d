"""Random schedules of keys under one rate keep every promise."""

from __future__ import annotations

import pytest

from intervalq.testing.virtual import virtual_time
from keyed_schedules import Schedule, verdict


@pytest.mark.parametrize("seed", range(24))
def test_a_schedule_keeps_every_promise(seed: int) -> None:
    assert verdict(seed) == []


@pytest.mark.parametrize("seed", [*range(4), 165, 777_162])
def test_a_schedule_with_common_limits_keeps_every_promise(seed: int) -> None:
    assert verdict(seed, limited=True) == []


def test_slots_whose_places_late_grants_moved_are_waited_for_in_all_processes() -> None:
    """If a process asked sooner, slots of others would move behind its own: 284 seconds instead of 108."""
    schedule = Schedule(41, calm=False, limited=True)
    starts = sorted(virtual_time(schedule.run, horizon=1_000).starts)
    assert starts[-1][0] - starts[0][0] < 150_000_000
    assert schedule.verdict() == []
