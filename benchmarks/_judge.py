"""Computes figures from recorded starts, with pure functions.

Instants are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; gaps are in intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Start(NamedTuple):
    """One start, as the job recorded it."""

    at: int
    """Nanoseconds of CLOCK_MONOTONIC at the job's first instruction."""
    asked: int
    """When its caller began to wait."""
    ticket: int | None = None
    late: int | None = None
    """Nanoseconds after its slot, where the slot is known; negative: before it."""
    checked: int | None = None
    """When the library last read the clock before it released the job, where that is known."""
    process: int = 0


@dataclass(frozen=True)
class Window:
    """The measured window, common to all processes: starts outside of it don't count."""

    begin: int
    end: int

    def of(self, starts: Sequence[Start]) -> list[Start]:
        """The starts in the window, in the order in which they happened."""
        return sorted((start for start in starts if self.begin <= start.at < self.end), key=lambda s: s.at)

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return (self.end - self.begin) / 1e9


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: one of the values; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def gaps(starts: Sequence[Start], interval: float) -> list[float]:
    """The gaps between consecutive starts, in intervals."""
    return [(later.at - earlier.at) / 1e9 / interval for earlier, later in pairwise(starts)]


def short(found: Sequence[float], limit: float) -> float:
    """The share of gaps below `limit`, with a margin for rounding."""
    return sum(1 for gap in found if gap < limit - 1e-9) / len(found) if found else math.nan


def inversions(values: Sequence[int | None]) -> float:
    """The share of neighbouring starts in the wrong order; NaN where the order isn't known."""
    pairs = [(a, b) for a, b in pairwise(values) if a is not None and b is not None]
    return sum(1 for a, b in pairs if b < a) / len(pairs) if pairs else math.nan


def frozen(starts: Sequence[Start], interval: float, limit: float = 0.9) -> int | None:
    """How many gaps are short only because the machine stood still between the last check and the start.

    At the last checks the gap was long enough: nobody can pace what happens after that. None: not known.
    """
    if any(start.checked is None for start in starts):
        return None
    return sum(
        1
        for a, b in pairwise(starts)
        if b.at - a.at < limit * interval * 1e9
        and (b.checked or 0) - (a.checked or 0) >= limit * interval * 1e9 - 1_000  # checks are microseconds
    )


def fairness(starts: Sequence[Start], processes: int) -> float:
    """The starts of the slowest process, as a share of an equal share."""
    if not starts:
        return math.nan
    counts = [0] * processes
    for start in starts:
        counts[start.process] += 1
    return min(counts) * processes / len(starts)


def most_in(starts: Sequence[Start], seconds: float) -> int:
    """The maximum number of starts in any stretch of this length."""
    most = first = 0
    for last, start in enumerate(starts):
        while start.at - starts[first].at >= seconds * 1e9:
            first += 1
        most = max(most, last - first + 1)
    return most


def pace(starts: Sequence[Start], interval: float) -> float:
    """The mean rate from the first start to the last, as a share of the limit; exact for even starts."""
    if len(starts) < 2 or starts[-1].at == starts[0].at:
        return math.nan
    return (len(starts) - 1) * interval * 1e9 / (starts[-1].at - starts[0].at)


def judge(recorded: Sequence[Start], window: Window, interval: float, processes: int) -> dict[str, Any]:
    """All figures of one run. A figure that isn't known is NaN, or None if it is a count."""
    starts = window.of(recorded)
    between = gaps(starts, interval)
    late = [start.late / 1e3 for start in starts if start.late is not None]
    return {
        "jobs": len(starts),
        "rate": len(starts) * interval / window.seconds,
        "pace": pace(starts, interval),
        "gap_min": min(between, default=math.nan),
        "gap_p1": quantile(between, 0.01),
        "gap_p50": quantile(between, 0.50),
        "gap_p99": quantile(between, 0.99),
        "short": short(between, 0.9),
        "very_short": short(between, 0.5),
        "frozen": frozen(starts, interval),
        "ticket_inversions": inversions([start.ticket for start in starts]),
        "ask_inversions": inversions([start.asked for start in starts]),
        "late_p50": quantile(late, 0.50),
        "late_p99": quantile(late, 0.99),
        "late_max": max(late, default=math.nan),
        "wait_p50": quantile([(start.at - start.asked) / 1e6 for start in starts], 0.50),
        "wait_p99": quantile([(start.at - start.asked) / 1e6 for start in starts], 0.99),
        "fairness": fairness(starts, processes),
        "most_100ms": most_in(starts, 0.1),
    }


def medians(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row for several runs: the median of each figure over the runs in which it is known."""
    found: dict[str, Any] = dict(rows[0])
    for name, value in rows[0].items():
        known = [row[name] for row in rows if _is_number(row.get(name))]
        if known:
            found[name] = _median(known)
        elif _is_number(value, nan=True):
            found[name] = math.nan
    return found


def _is_number(value: object, *, nan: bool = False) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and (nan or not math.isnan(value))


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def ratio(value: float, base: float) -> float:
    """The ratio to the baseline; infinite if only the baseline has none, NaN if both have none."""
    if math.isnan(value) or math.isnan(base):
        return math.nan
    if base == 0:
        return math.nan if value == 0 else math.inf
    return value / base
