"""Percentiles without a sort: values fall into buckets of a few percent, which add up over groups."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt

NONE: Final = -(1 << 20)
"""What stands for no bucket, bin or ticket in arrays of whole numbers. None of these is as low."""

GAP_BUCKETS: Final = 50
"""For gaps: each 2 % wide, fine enough to tell 0.9 of an interval from 0.92."""
LATE_BUCKETS: Final = 10

_LOWEST: Final = -400
_FINE_BELOW: Final = 4.0
"""From this many intervals on, buckets are ten times as wide, because pauses have any length."""


def buckets(ratios: npt.NDArray[np.float64], *, each: int) -> npt.NDArray[np.int64]:
    """The buckets of ratios, each of them 1/`each` of e wide; `NONE` where there is no ratio (NaN).

    All values that are not positive share one bucket. Finer buckets than needed cost groups, and so memory.
    """
    log = np.log(np.maximum(np.nan_to_num(ratios, nan=1.0), 1e-9))
    fine = np.maximum(np.floor(log * each), _LOWEST + 1)
    coarse = np.floor(log * (each / 10)) + 10 * each
    found = np.where(ratios < _FINE_BELOW, fine, coarse).astype(np.int64)
    found[ratios <= 0] = _LOWEST
    found[np.isnan(ratios)] = NONE
    return found


def bucket_of(ratio: float, *, each: int) -> int:
    """The bucket of one ratio."""
    if ratio <= 0:
        return _LOWEST
    log = math.log(max(ratio, 1e-9))
    return (
        max(math.floor(log * each), _LOWEST + 1)
        if ratio < _FINE_BELOW
        else math.floor(log * (each / 10)) + 10 * each
    )


def _nothing() -> list[float]:
    return [0, 0.0]


class Histogram:
    """Counts and sums by bucket: a percentile is the mean of the bucket that it falls into."""

    def __init__(self) -> None:
        self.buckets: dict[int, list[float]] = defaultdict(_nothing)
        self.least: float | None = None
        self.most: float | None = None

    def add(self, number: int, count: int, total: float, least: float, most: float) -> None:
        """The values of one bucket: their number, their sum, the smallest and the largest."""
        found = self.buckets[number]
        found[0] += count
        found[1] += total
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        if other.least is None or other.most is None:
            return
        for number, (count, total) in other.buckets.items():
            self.add(number, int(count), total, other.least, other.most)

    @property
    def count(self) -> int:
        """The number of values."""
        return int(sum(count for count, _ in self.buckets.values()))

    def percentile(self, percent: float) -> float | None:
        """A percentile: about this share of the values is not above it; None: there are no values."""
        left = self.count * percent / 100
        mean = None
        for number in sorted(self.buckets):
            count, total = self.buckets[number]
            mean = total / count
            left -= count
            if left <= 1e-9:
                break
        return mean

    def means(self) -> list[tuple[float, int]]:
        """Each bucket's mean and count, in ascending order."""
        return [(total / count, int(count)) for _, (count, total) in sorted(self.buckets.items())]
