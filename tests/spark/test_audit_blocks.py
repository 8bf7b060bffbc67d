"""How an audit divides a log, by numbers alone."""

from __future__ import annotations

import numpy as np
import pytest

from intervalq.spark._audit.facts import Facts, QueueFacts, set_blocks
from intervalq.spark._audit.scan.groups import places


@pytest.mark.parametrize(("rows", "block"), [(100_000, 524_288), (100_000_000, 524.288), (10**12, 4)])
def test_a_block_of_a_crowded_log_has_few_rows(rows: int, block: float) -> None:
    queue = QueueFacts(0, "q", rows=rows, first=0.0, last=100_000.0, interval=1.0)
    facts = Facts(set(), rows, {"q": queue}, [], 60, 1, 0, 0)
    set_blocks(facts, 1 << 19, least=4)
    assert queue.block == pytest.approx(block)


def test_columns_of_very_different_numbers_are_told_apart() -> None:
    far = np.arange(16) << 57
    _, first = places([np.repeat(far, 16), np.tile(far, 16)])
    assert len(first) == 256
