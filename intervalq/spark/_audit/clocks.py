"""Clocks of hosts against the store's: how far each is off at any time, judged by its starts and their slots.

The soonest starts after their slots show a host's clock: they are its *envelope*. Each window of time gives a
point of it, and between two points a clock drifts steadily. Where it moves faster than clocks drift, it was
set: the rows in between show when. A window in which delays vary more than usual says that the host was busy,
and nothing about its clock. What starts and slots can't tell apart (a clock, or starts that are all early or
late by as much) is a note.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LEAST: Final = 30
"""The starts that a point of the envelope needs; windows with fewer are merged."""
PARTS: Final = 20
"""Quantiles of a window's delays. The first one is the envelope: the smallest delay may be an outlier, and
longer ones include waiting."""
_DRIFT: Final = 1e-4
"""Seconds a second by which a clock may drift. Usual ones stay below 50 ppm; what moves faster was set."""
_BLUR: Final = (4.0, 0.001)
"""How many usual spreads of delays, and how many seconds more, two points may differ without a reason."""
_APART: Final = 3
"""So many windows without starts are too long for a line."""
ENOUGH: Final = 6_000_000
"""Starts from which clocks are judged, as many of each host; of a larger log, some."""
_MAX_WINDOWS: Final = 20_000
"""So a window of a larger log still has about 300 of these starts. With 60, the first of 20 quantiles may be
too high by a tenth of all delays, and starts that are just within the tolerance would look early."""
_MAX_ROWS: Final = 500_000
"""Rows that the driver reads to find when clocks were set: beyond, it was in the middle."""


@dataclass(frozen=True, slots=True)
class Window:
    """The delays of one host from slot to start, in one or more windows of time."""

    due: float
    """The mean of the slots; seconds since 1970. Then the first and the last of them."""
    first: float
    last: float
    delays: tuple[float, ...]
    """Their `PARTS` quantiles, in ascending order."""
    starts: int

    @property
    def low(self) -> float:
        """The envelope: how far the clock is ahead, with the shortest delay."""
        return self.delays[0]

    @property
    def spread(self) -> float:
        """How far the delays are from the envelope."""
        return self.delays[PARTS // 2 - 1] - self.low


@dataclass(frozen=True, slots=True)
class Line:
    """How far a clock is ahead, from one instant on."""

    since: float
    due: float
    """An instant of the line, and how far the clock is ahead then."""
    ahead: float
    slope: float = 0.0

    def at(self, due: float) -> float:
        """How far the clock is ahead at an instant."""
        return self.ahead + self.slope * (due - self.due)


@dataclass(slots=True)
class HostClock:
    """A host's clock. All in seconds."""

    host: str
    offset: float
    """How far it was ahead, usually, with the shortest delay from slot to start."""
    starts: int
    lines: list[Line] = field(default_factory=list)
    jumps: list[tuple[float, float]] = field(default_factory=list)
    """When it was set, and by how much."""


@dataclass(slots=True)
class Break:
    """Two points between which a clock was set."""

    host: str
    before: Line
    after: Line
    first: float
    last: float
    rows: int
    """The approximate number of rows between them; 0: there are none."""
    at: float
    """When; infinite: it was not set, but moved steadily."""


# --- in Spark -------------------------------------------------------------------------------------------


def clocks_of(log: DataFrame, starts: Mapping[str, int], piece: float) -> list[HostClock]:
    """The clock of each host.

    Args:
        log: starts with plausible slots: `host` (not null), `due`, `late` (from slot to start).
        starts: how many each host has.
        piece: the length of a window, seconds.
    """
    each = ENOUGH / max(1, len(starts))
    share = {host: min(1.0, each / max(1, count)) for host, count in starts.items()}
    rows, most = log, max(share.values(), default=1.0)
    if most < 1:
        rows = rows.where(F.rand(1) < most)
    if min(share.values(), default=1.0) < most:
        parts = [(host, part / most) for host, part in share.items()]
        table = log.sparkSession.createDataFrame(parts, "of string, share double")
        rows = rows.join(F.broadcast(table), F.col("host") == F.col("of")).where(F.rand(2) < F.col("share"))
    shares = [(number + 1) / PARTS for number in range(PARTS)]
    found = rows.groupBy("host", F.floor(F.col("due") / piece).alias("piece")).agg(
        F.avg("due").alias("due"),
        F.min("due").alias("first"),
        F.max("due").alias("last"),
        F.percentile_approx("late", shares, 1_000).alias("late"),
        F.count(F.lit(1)).alias("starts"),
    )
    by_host: dict[str, list[Window]] = defaultdict(list)
    for row in rows_of(found):
        window = Window(row["due"], row["first"], row["last"], tuple(row["late"]), row["starts"])
        by_host[row["host"]].append(window)
    points = {host: points_of(windows) for host, windows in by_host.items()}
    breaks = {host: list(breaks_of(host, found, piece)) for host, found in points.items()}
    _find(log, [one for ones in breaks.values() for one in ones if one.rows], share)
    return [clock_of(host, found, breaks[host]) for host, found in points.items()]


def window_length(hosts: int, span: float, least: float) -> float:
    """The length of windows, in seconds, so that the driver can hold all of them."""
    return max(least, math.ceil(hosts * span / _MAX_WINDOWS / least) * least)


def windows(span: tuple[float, float], piece: float) -> tuple[float, float]:
    """When the first window begins, and when the last one ends."""
    return math.floor(span[0] / piece) * piece, (math.floor(span[1] / piece) + 1) * piece


def corrected(
    spark: SparkSession, rows: DataFrame, clocks: Sequence[HostClock], piece: float, span: tuple[float, float]
) -> tuple[DataFrame, Column]:
    """The rows with a column by which their host's clock is ahead at their slot, and that column."""
    if not clocks:
        return rows, F.lit(0.0)
    first, last = (math.floor(end / piece) for end in span)
    table = spark.createDataFrame(
        [
            (clock.host, number, since, until, line.due, line.ahead, line.slope)
            for clock in clocks
            for number, since, until, line in _by_window(clock.lines, piece, first, last)
        ],
        "on_host string, window bigint, since double, until double, line_due double, ahead double, "
        "slope double",
    )
    due = F.col("due")
    same = (
        (F.coalesce("host", F.lit("")) == F.col("on_host"))
        & (F.floor(due / piece) == F.col("window"))
        & (due >= F.col("since"))
        & (due < F.col("until"))
    )
    offset = F.coalesce(F.col("ahead") + F.col("slope") * (due - F.col("line_due")), F.lit(0.0))
    return rows.join(F.broadcast(table), same, "left"), offset


def _by_window(
    lines: Sequence[Line], piece: float, first: int, last: int
) -> Iterator[tuple[int, float, float, Line]]:
    """The lines that apply in each window, with the instants between which they do."""
    ends = [*(line.since for line in lines[1:]), math.inf]
    place = 0
    for number in range(first, last + 1):
        begin, end = number * piece, (number + 1) * piece
        while ends[place] <= begin:
            place += 1
        for index in range(place, len(lines)):
            yield number, max(begin, lines[index].since), min(end, ends[index]), lines[index]
            if ends[index] >= end:
                break


def _find(log: DataFrame, breaks: list[Break], share: Mapping[str, float]) -> None:
    """Find when clocks were set, by the rows between two points."""
    left, some = _MAX_ROWS, []
    for one in sorted(breaks, key=lambda one: -abs(one.after.ahead - one.before.ahead)):
        left -= int(one.rows / share[one.host])
        if left >= 0:
            some.append(one)
    if not some:
        return
    asked = [(number, one.host, one.first, one.last) for number, one in enumerate(some)]
    table = log.sparkSession.createDataFrame(asked, "number int, on_host string, first double, last double")
    inside = (F.col("host") == F.col("on_host")) & F.col("due").between(F.col("first"), F.col("last"))
    rows: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in rows_of(log.join(F.broadcast(table), inside).select("number", "due", "late")):
        rows[row["number"]].append((row["due"], row["late"]))
    for number, one in enumerate(some):
        one.at = when_set(one, sorted(rows[number]))


# --- pure -----------------------------------------------------------------------------------------------


def points_of(windows: Iterable[Window]) -> list[Window]:
    """The points of one host's envelope: of windows that have enough starts, without those of busy times."""
    groups: list[list[Window]] = []
    enough = 0
    for window in sorted(windows, key=lambda window: window.due):
        if enough < _LEAST and groups:
            groups[-1].append(window)
        else:
            groups.append([window])
            enough = 0
        enough += window.starts
    if enough < _LEAST and len(groups) > 1:
        groups[-2:] = [groups[-2] + groups[-1]]
    merged = [_merged(group) for group in groups]
    blur = _blur(merged)
    points: list[Window] = []
    for window in merged:
        if window.spread <= blur:
            points.append(window)
        elif points:
            points[-1] = replace(points[-1], last=window.last)  # there were starts all the time
    return points


def _merged(windows: Sequence[Window]) -> Window:
    """Some windows as one; all at once, because quantiles of quantiles of quantiles are less exact."""
    starts = sum(window.starts for window in windows)
    weighted = sorted((delay, window.starts) for window in windows for delay in window.delays)
    sums = list(accumulate(weight for _, weight in weighted))
    delays, place = [], 0
    for part in range(1, PARTS + 1):
        while sums[place] * PARTS < sums[-1] * part:
            place += 1
        delays.append(weighted[place][0])
    due = sum(window.due * window.starts for window in windows) / starts
    first, last = min(window.first for window in windows), max(window.last for window in windows)
    return Window(due, first, last, tuple(delays), starts)


def _blur(points: Sequence[Window]) -> float:
    times, more = _BLUR
    return times * median(point.spread for point in points) + more


def breaks_of(host: str, points: Sequence[Window], piece: float) -> Iterator[Break]:
    """Where the envelope moves faster than a clock drifts, or has no starts for long; in order."""
    blur = _blur(points) if points else 0.0
    for index, (one, other) in enumerate(pairwise(points), 1):
        idle = other.first - one.last > max(_APART * piece, (one.last - one.first) / 2)
        if not idle and _drifts(one, other, blur):
            continue
        before = _line(points[max(0, index - 2) : index], blur, at=-1)
        after = _line(points[index : index + 2], blur, at=0)
        rows = 0 if idle else one.starts + other.starts
        yield Break(host, before, after, one.due, other.due, rows, (one.last + other.first) / 2)


def _drifts(one: Window, other: Window, blur: float) -> bool:
    return abs(other.low - one.low) <= max(blur, _DRIFT * (other.due - one.due))


def _line(points: Sequence[Window], blur: float, *, at: int) -> Line:
    """The line through two points, or through the one at this place if they don't make a line."""
    slope = 0.0
    if len(points) > 1 and _drifts(points[0], points[1], blur):
        slope = (points[1].low - points[0].low) / (points[1].due - points[0].due)
    return Line(-math.inf, points[at].due, points[at].low, max(-_DRIFT, min(_DRIFT, slope)))


def when_set(one: Break, rows: Sequence[tuple[float, float]]) -> float:
    """When a clock was set, by rows of slot and delay; infinite: it moved steadily instead."""
    if not rows:
        return one.at
    most = abs(one.after.ahead - one.before.ahead) / 2

    def costs(line: Line) -> list[float]:
        return [min(abs(late - line.at(due)), most) for due, late in rows]

    before = list(accumulate(costs(one.before), initial=0.0))
    after = list(accumulate(costs(one.after), initial=0.0))
    split = [cost + after[-1] - after[place] for place, cost in enumerate(before)]
    best = min(range(len(split)), key=split.__getitem__)
    slope = (one.after.ahead - one.before.ahead) / (one.after.due - one.before.due)
    if sum(costs(replace(one.before, slope=slope))) <= split[best]:
        return math.inf
    edges = [one.first, *(due for due, _ in rows), one.last]
    return (edges[best] + edges[best + 1]) / 2


def clock_of(host: str, points: Sequence[Window], breaks: Iterable[Break]) -> HostClock:
    """The lines from point to point, or to where the clock was set."""
    clock = HostClock(host, median(point.low for point in points), sum(point.starts for point in points))
    broken = {one.first: one for one in breaks if not math.isinf(one.at)}
    since = -math.inf
    for one, other in pairwise(points):
        if (found := broken.get(one.due)) is None:
            slope = (other.low - one.low) / (other.due - one.due)
            clock.lines.append(Line(since, one.due, one.low, slope))
        else:
            clock.lines += [replace(found.before, since=since), replace(found.after, since=found.at)]
            clock.jumps.append((found.at, found.after.at(found.at) - found.before.at(found.at)))
        since = other.due
    if len(points) == 1:
        clock.lines.append(Line(since, points[0].due, points[0].low))
    return clock
