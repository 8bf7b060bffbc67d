"""Records that shards of this version and of an earlier one change, whose cells were three times as long."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from intervalq._spec import windows
from intervalq.rules import Answer, Command, Limit, Usage
from window_oracle import Run

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
