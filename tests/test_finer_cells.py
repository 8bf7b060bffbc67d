"""Cells of windows: slots that share one, and records of an earlier version, with cells thrice as long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from intervalq._spec import windows
from intervalq.rules import Advance, Answer, Command, Hold, Limit, Settings, Usage
from rule_steps import do
from window_oracle import SECOND, T0, Run

BLOCK = Limit(1, 640)
"""Its blocks are 10 microseconds long, and its cells 4, 4 and 2."""


@pytest.mark.parametrize(
    ("due", "end"), [(0, 4), (3, 4), (4, 8), (8, 10), (9, 10), (10, 14), (-1, 0), (-3, -2), (-10, -6)]
)
def test_a_block_has_three_cells(due: int, end: int) -> None:
    assert windows.end_of_cell(BLOCK, due) == end


def test_a_cell_as_long_as_a_block_may_have_the_last_granted_slot() -> None:
    assert windows.end_of_granted(BLOCK, Usage(ahead=((4, 1), (20, 1))), 2) == 4
    assert windows.end_of_granted(BLOCK, Usage(ahead=((10, 1), (20, 1))), 2) == 10


class Mixed(Run):
    """Every other shard has the earlier version; settings are changed by either."""

    version = 0

    def _advance(self, shard: int, *args: Any, **options: Any) -> None:
        self.version = shard % 2
        super()._advance(shard, *args, **options)

    def _other(self, shard: int) -> None:
        self.version = self.random.randrange(2)
        super()._other(shard)

    def _apply(self, command: Command) -> Answer:
        with mock.patch.object(windows, "CELLS", 3 if self.version else 1):
            return super()._apply(command)


def mixed(seed: int) -> list[str]:
    made = Mixed(seed)
    for _ in range(300):
        made.step()
        made.pass_time()
    return made.over()


@pytest.mark.parametrize("seed", range(30))
def test_no_limit_is_passed_while_both_versions_run(seed: int) -> None:
    assert mixed(seed) == []


@pytest.mark.parametrize("granted", [1, 5, 9])
def test_slots_that_share_a_cell_with_a_granted_one_count_where_a_hold_moves_them(
    granted: int,
) -> None:
    """The hold is longer than the window: granted slots need not count any more, but others must."""
    limit = Limit(10, SECOND)
    settings = Settings(1, tolerance=1, limits=(limit,))
    command = Advance(settings=settings, nonce="g", generation=None, take=10)
    state, answer = do(None, command, T0)
    slots = answer.taken
    assert len({windows.end_of_cell(limit, slot.due) for slot in slots}) == 1
    command = replace(command, take=0, generation="g", slots=slots[:granted])
    state, answer = do(state, command, T0)
    assert answer.granted == tuple(slot.ticket for slot in slots[:granted])
    state, _ = do(state, Hold(length=2 * SECOND), T0 + 1)
    now = T0 + 1 + 2 * SECOND
    state, answer = do(state, replace(command, slots=slots[granted:]), now)
    assert len(answer.granted) == 10 - granted
    _, answer = do(state, replace(command, slots=(), take=10), now)
    soon = [slot for slot in answer.taken if slot.due + state.held_total < now + SECOND]
    assert len(soon) <= granted
