"""Random backlogs under limits: no window is over, and an oracle without cells is hardly faster."""

from __future__ import annotations

import pytest

from intervalq._spec import windows
from intervalq.rules import Limit, State
from window_backlogs import LEAST, Backlog

RUNS = range(100)


def over() -> list[str]:
    """What a server saw too much of."""
    return [line for seed in RUNS for line in Backlog(seed, fixed=seed % 2 == 1).run().over()]


def test_no_window_is_over_and_the_limits_are_used() -> None:
    """`window_backlogs` does many more runs."""
    runs = [Backlog(seed, fixed=seed % 2 == 1).run() for seed in RUNS]
    assert [line for run in runs for line in run.over()] == []
    shares = [run.share() for run in runs]
    assert sum(shares) / len(shares) >= 0.99
    assert min(shares) >= LEAST


def test_the_judges_see_planted_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    span = windows._span

    def too_short(limit: Limit, state: State) -> int:
        return span(limit, state) - windows.lateness(state)

    def too_long(limit: Limit, state: State) -> int:
        return span(limit, state) + 2 * limit.block

    with monkeypatch.context() as patch:
        patch.setattr(windows, "_span", too_short)
        assert len(over()) >= 5
    monkeypatch.setattr(windows, "_span", too_long)
    shares = [Backlog(seed).run().share() for seed in RUNS[:50]]
    assert sum(share < LEAST for share in shares) >= 20
