"""The judges of keys under one rate, and of their limits, find each planted bug."""

from __future__ import annotations

import pytest

from keyed_bugs import BUGS, is_found


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """The seed of a bug finds it, and finds nothing without the bug."""
    bug = BUGS[name]
    assert is_found(name, bug.seed)
    assert bug.judge(bug.seed) == []
