"""Random schedules of keys under one rate keep every promise, and the judges find each planted bug."""

from __future__ import annotations

import pytest

from keyed_bugs import BUGS, is_found
from keyed_schedules import verdict


@pytest.mark.parametrize("seed", range(24))
def test_a_schedule_keeps_every_promise(seed: int) -> None:
    assert verdict(seed) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_schedule_with_common_limits_keeps_every_promise(seed: int) -> None:
    assert verdict(seed, limited=True) == []


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """The schedule of a bug finds it, and finds nothing without the bug."""
    seed = BUGS[name].seed
    assert is_found(name, seed)
    assert verdict(seed) == []
