"""Rows of an audit are grouped, however large their numbers are."""

from __future__ import annotations

import numpy as np

from intervalq.spark._audit.scan.groups import places


def test_columns_of_very_different_numbers_are_told_apart() -> None:
    far = np.arange(16) << 57
    _, first = places([np.repeat(far, 16), np.tile(far, 16)])
    assert len(first) == 256
