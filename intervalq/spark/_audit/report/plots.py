"""The charts of an audit, as SVG: starts over time, gaps, lateness, shards."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from intervalq._page.charts import RED, Chart, drawn, gaps, layers, legend, lines, shares, times
from intervalq.spark._audit.tally import Minute, Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS: Final = 600
"""The number of bins drawn; if there are more, they are merged, as a chart has no more pixels."""


def charts(tally: Tally) -> list[Chart]:
    """The panels that have something to show.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    panels = (("starts", _starts), ("gaps", _gaps), ("late", _late), ("shards", _shards))
    return drawn([(name, partial(panel, tally)) for name, panel in panels], what="the charts of an audit")


def _merged(tally: Tally) -> list[tuple[float, int, Minute]]:
    """Bins for drawing: where each begins, how many of the original bins it merges, and its figures."""
    if not tally.minutes:
        return []
    first, last = min(tally.minutes), max(tally.minutes)
    step = -(-(last - first + 1) // _MAX_POINTS)
    merged: dict[int, Minute] = {}
    for number, minute in tally.minutes.items():
        into = merged.setdefault((number - first) // step, Minute())
        into.starts += minute.starts
        into.short += minute.short
        into.possible += minute.possible
        into.late.merge(minute.late)
    nothing = Minute()
    count = (last - first) // step + 1
    return [((first + at * step) * tally.facts.bin, step, merged.get(at, nothing)) for at in range(count)]


def _starts(tally: Tally, axis: Axes) -> bool:
    bins = _merged(tally)
    if not bins or not tally.total.starts:
        return False
    width = bins[0][1] * tally.facts.bin
    minutes = width / 60  # starts a minute, however wide a bin is
    edges = times(axis, [at for at, _, _ in bins], width)
    starts = [minute.starts / minutes for _, _, minute in bins]
    highest = layers(axis, edges, [("starts", starts)], [minute.possible / minutes for _, _, minute in bins])
    wrong = [edges[at] for at, (_, _, minute) in enumerate(bins) if minute.short]
    if wrong:
        label, top = "has gaps that are too short", [1.05 * highest] * len(wrong)
        axis.plot(wrong, top, "v", color=RED, markersize=5, label=label)
    axis.set_title("Starts a minute, against those that were possible", loc="left", fontsize=10)
    legend(axis)
    return True


def _gaps(tally: Tally, axis: Axes) -> bool:
    part = tally.total
    judged = f"{part.short:,} of {part.gaps.count:,} too short" if "gap_short" in tally.live else "not judged"
    return gaps(axis, part.gaps.means(), 0.9, judged)


def _late(tally: Tally, axis: Axes) -> bool:
    bins = _merged(tally)
    if not bins or not tally.total.late.count:
        return False
    edges = times(axis, [at for at, _, _ in bins], bins[0][1] * tally.facts.bin)

    def percentiles(percent: float) -> list[float | None]:
        found = [minute.late.percentile(percent) for _, _, minute in bins]
        return [None if value is None else value * 1e3 for value in found]

    lines(axis, edges, [("median", percentiles(50)), ("99 %", percentiles(99))])
    axis.set_title("Milliseconds from slot to start", loc="left", fontsize=10)
    legend(axis)
    return True


def _shards(tally: Tally, axis: Axes) -> bool:
    return "shard_starved" in tally.live and shares(axis, dict(tally.total.shards))
