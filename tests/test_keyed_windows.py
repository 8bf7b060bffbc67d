"""Windows of keys and of their queue, judged by brute force; and planted bugs, which must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from intervalq import keyed
from intervalq._keys import limits, store
from intervalq._spec.keys import fixed
from intervalq.rules import Command, Settings, Settled, Slot, State
from keyed_world import Commanded
from keyed_window_oracle import run


@pytest.mark.parametrize("part", range(2))
def test_no_window_is_exceeded_on_either_level(part: int) -> None:
    """`keyed_window_oracle` does many more runs."""
    assert [line for seed in range(20 * part, 20 * part + 20) for line in run(seed).over()] == []
