"""The pacing report of a run: computed from its starts and a few figures. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from intervalq._show import exact, seconds
from intervalq._watch.log import percentile

SHORT: Final = 0.9
"""A gap is called short if it is less than this share of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a run besides its starts."""

    interval: float | None
    """In seconds; None: the queue has only limits."""
    shards: int
    jobs: int
    """Jobs that have a result."""
    failed: int
    """Those of them that did not exit with 0."""
    skipped: int
    """Jobs that were already done (--resume)."""
    not_run: int | None
    """Jobs that were read and have no result, because the run was stopped; None: the number is unknown."""
    issued: int | None
    """Tickets that the queue issued during the run, to anybody; None: unknown."""
    spanned: int
    """Slots (without an interval: tickets) from the first used one to the last; returned ones are later."""
    calls: int
    """Commands that the shards sent to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How well a run was paced. Times are in seconds; None: there were too few starts, or no interval."""

    jobs: int
    failed: int
    skipped: int
    not_run: int | None
    starts: int
    """The number of starts: one for each attempt."""
    shards: int
    interval: float | None
    rate: float | None
    """Starts per second, from the first to the last."""
    rate_possible: float | None
    rate_share: float | None
    """The share of the possible rate that was reached."""
    gap_smallest: float | None
    gap_p1: float | None
    gap_p50: float | None
    gap_p99: float | None
    gaps_short: float | None
    """The share of gaps under 0.9 of the interval."""
    in_order: bool
    """Whether jobs started in the order of their tickets."""
    inversions: int
    """Pairs of starts in the wrong order."""
    slots_unused: int | None
    """Slots that stayed empty or were used by others: issued tickets minus used and returned ones."""
    calls_per_job: float | None
    """Commands to the store for each start."""

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return asdict(self)


def report(started: Sequence[float], tickets: Sequence[int], figures: Figures) -> Report:
    """The report of a run whose starts were at these instants with these tickets, in any order."""
    order = sorted(range(len(started)), key=lambda i: (started[i], tickets[i]))
    times = [started[i] for i in order]
    gaps = sorted(b - a for a, b in pairwise(times))
    span = times[-1] - times[0] if gaps else 0.0
    rate = len(gaps) / span if span > 0 else None
    inversions = count_inversions([tickets[i] for i in order])
    interval = figures.interval
    return Report(
        jobs=figures.jobs,
        failed=figures.failed,
        skipped=figures.skipped,
        not_run=figures.not_run,
        starts=len(times),
        shards=figures.shards,
        interval=interval,
        rate=_rounded(rate),
        rate_possible=_rounded(None if interval is None else 1 / interval),
        rate_share=_rounded(None if rate is None or interval is None else rate * interval),
        gap_smallest=_rounded(gaps[0] if gaps else None),
        gap_p1=_rounded(percentile(gaps, 1)),
        gap_p50=_rounded(percentile(gaps, 50)),
        gap_p99=_rounded(percentile(gaps, 99)),
        gaps_short=_share_short(gaps, interval),
        in_order=inversions == 0,
        inversions=inversions,
        slots_unused=(
            None if figures.issued is None else max(0, min(figures.issued, figures.spanned) - len(times))
        ),
        calls_per_job=_rounded(figures.calls / len(times) if times else None),
    )


def _share_short(gaps: Sequence[float], interval: float | None) -> float | None:
    """The share of gaps, which are sorted, that are short."""
    if not gaps or interval is None:
        return None
    # Times are whole microseconds, so a gap of exactly 0.9 intervals must not count as shorter.
    return bisect_left(gaps, SHORT * interval - 5e-7) / len(gaps)


def count_inversions(numbers: Sequence[int]) -> int:
    """The number of pairs in descending order, counted by a merge sort."""
    if len(numbers) < 2:
        return 0
    middle = len(numbers) // 2
    left, right = list(numbers[:middle]), list(numbers[middle:])
    count = count_inversions(left) + count_inversions(right)
    left.sort()
    right.sort()
    at = 0
    for number in right:
        while at < len(left) and left[at] <= number:
            at += 1
        count += len(left) - at
    return count


def lines(made: Report) -> list[tuple[str, str]]:
    """The report as names and values, for people."""
    failed = f", {made.failed} failed" if made.failed else ""
    skipped = f", {made.skipped} already done" if made.skipped else ""
    not_run = f", {made.not_run} not run" if made.not_run else ""
    rows = [("jobs", f"{made.jobs}{failed}{skipped}{not_run}")]
    if made.starts != made.jobs:
        rows.append(("starts", f"{made.starts}, including further attempts"))
    if made.rate is not None:
        rows.append(("rate", _reached(made.rate, made.rate_possible, made.rate_share)))
        gaps = (made.gap_smallest, made.gap_p1, made.gap_p50, made.gap_p99)
        rows.append(("gaps", "smallest {}, 1% {}, median {}, 99% {}".format(*map(seconds, gaps))))
        if made.interval is not None:
            short = f"{made.gaps_short:.2%} of gaps under {SHORT} x {exact(made.interval)}"
            rows.append(("too short", short))
    if not made.starts:
        return rows
    pairs = "pair" if made.inversions == 1 else "pairs"
    rows.append(("order", "kept" if made.in_order else f"not kept: {made.inversions} {pairs} out of order"))
    unused = "not known" if made.slots_unused is None else str(made.slots_unused)
    calls = "" if made.calls_per_job is None else f"; store calls per job: {made.calls_per_job:.2f}"
    rows.append(("slots unused", unused + calls))
    return rows


def _reached(rate: float, possible: float | None, share: float | None) -> str:
    """The rate of a run, in words."""
    if possible is None or share is None:
        return f"{_per_time(rate)} (the queue has no interval, only limits)"
    late = " (the first of few starts was late, within the tolerance)" if share > 1 else ""
    return f"{_per_time(rate)}, {share:.1%} of the queue's {_per_time(possible)}{late}"


def _per_time(rate: float) -> str:
    """A rate per second, or per longer unit if that reads better."""
    for unit, length in (("s", 1), ("min", 60), ("h", 3_600), ("day", 86_400)):
        if rate * length >= 1 or unit == "day":
            return f"{rate * length:.4g}/{unit}"
    raise AssertionError


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
