"""Windows of keys and of their queue, judged by brute force."""

from __future__ import annotations

from keyed_window_oracle import run


def test_no_window_is_exceeded_on_either_level() -> None:
    """`keyed_window_oracle` does many more runs."""
    assert [line for seed in range(30) for line in run(seed).over()] == []
