"""The charts of an audit, as SVG: starts over time, gaps, lateness, shards."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from intervalq.errors import MissingExtra
from intervalq.spark._audit.tally import Minute, Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE: Final = "#1f6feb"
_RED: Final = "#d1242f"
_GREY: Final = "#9aa4ad"
_MAX_POINTS: Final = 600
"""The number of bins drawn; if there are more, they are merged, as a chart has no more pixels."""
_MAX_SHARDS: Final = 24


def charts(tally: Tally) -> list[tuple[str, str]]:
    """The panels that have something to show: titles, and SVG to embed in a page, which loads nothing.

    They have no background, and what is black in them takes the page's colour of text.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - which asks for no window system
    except ImportError as missing:
        raise MissingExtra("the charts of an audit", "report") from missing
    found = []
    for name, panel in (("starts", _starts), ("gaps", _gaps), ("late", _late), ("shards", _shards)):
        # Names of parts of a drawing must differ within a page.
        salt = f"intervalq-{name}"
        with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": salt}):
            figure = Figure(figsize=(4.6, 2.8), layout="constrained")  # text can be read on a phone
            axis: Axes = figure.subplots()
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if panel(axis, tally):
                title = axis.get_title(loc="left")
                axis.set_title("", loc="left")
                out = StringIO()
                figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
                found.append((title, _embedded(out.getvalue(), name)))
    return found


def _embedded(text: str, name: str) -> str:
    # Its head names a file of rules on the net, and a fixed size in points; the page chooses its own size.
    text = text[text.index("<svg") :]
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(id="|"#|url\(#)(?=[A-Za-z])', rf"\g<1>{name}-", text)
    return text.replace("#000000", "currentColor")


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


def _times(axis: Axes, bins: list[tuple[float, int, Minute]], width: float) -> list[Any]:
    """The edges of the bins on an axis of time."""
    from matplotlib import dates  # noqa: PLC0415

    # matplotlib without type hints counts as anything.
    make_locator: Any = dates.AutoDateLocator
    make_formatter: Any = dates.ConciseDateFormatter
    locator = make_locator(tz=UTC)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(make_formatter(locator, tz=UTC))
    axis.xaxis.get_offset_text().set_fontsize(8)
    return [datetime.fromtimestamp(at, UTC) for at, _, _ in bins] + [
        datetime.fromtimestamp(bins[-1][0] + width, UTC)
    ]


def _starts(axis: Axes, tally: Tally) -> bool:
    bins = _merged(tally)
    if not bins or not tally.total.starts:
        return False
    width = bins[0][1] * tally.facts.bin
    minutes = width / 60  # starts a minute, however wide a bin is
    edges = _times(axis, bins, width)
    starts = [minute.starts / minutes for _, _, minute in bins]
    possible = [minute.possible / minutes for _, _, minute in bins]
    axis.stairs(starts, edges, fill=True, color=_BLUE, alpha=0.75, label="starts")
    axis.stairs(possible, edges, color="black", linewidth=1.1, baseline=None, label="possible")
    wrong = [edges[at] for at, (_, _, minute) in enumerate(bins) if minute.short]
    top = 1.05 * max(*starts, *possible)
    if wrong:
        axis.plot(
            wrong, [top] * len(wrong), "v", color=_RED, markersize=5, label="has gaps that are too short"
        )
    axis.set_ylim(0, 1.22 * max(*starts, *possible))
    axis.margins(x=0.005)
    axis.set_title("Starts a minute, against those that were possible", loc="left", fontsize=10)
    axis.legend(fontsize=8, loc="upper right", ncols=3, frameon=False)
    return True


def _gaps(axis: Axes, tally: Tally) -> bool:
    """Gaps from 0 to 2 intervals; longer ones are one bar at the end."""
    means = tally.total.gaps.means()
    if not means:
        return False
    width = 0.05
    counts = [0] * 41  # the last bar is for 2 and more; a gap of about 1 is in the middle of its bar
    for ratio, count in means:
        counts[min(40, max(0, int(ratio / width + 0.5)))] += count
    total = sum(counts)
    shares = [100 * count / total for count in counts]
    places = [at * width for at in range(41)]
    # The bar at 0.9 begins at 0.875: short gaps were counted exactly, the colour only shows where to look.
    colours = [_RED if place < 0.9 - width / 4 else _BLUE for place in places[:-1]] + [_GREY]
    axis.bar(places, shares, width=width * 0.9, color=colours)
    axis.set_yscale("symlog", linthresh=0.001)
    axis.set_ylim(0, 300)
    ticks = [0.001, 0.01, 0.1, 1, 10, 100]
    axis.set_yticks(ticks, [f"{tick:g} %" for tick in ticks])
    axis.minorticks_off()
    axis.axvline(0.9, color=_RED, linewidth=0.9, linestyle=":")
    axis.axvline(1, color="black", linewidth=0.9)
    axis.set_xticks([0, 0.5, 0.9, 1, 1.5, 2], ["0", "0.5", "0.9", " 1", "1.5", "2 and more"])
    part = tally.total
    verdict = f"{part.short:,} of {total:,} too short" if "gap_short" in tally.live else "not judged"
    axis.set_title(f"Gaps between starts, in intervals: {verdict}", loc="left", fontsize=10)
    axis.set_ylabel("share of gaps (logarithmic)", fontsize=8)
    return True


def _late(axis: Axes, tally: Tally) -> bool:
    bins = _merged(tally)
    if not bins or not tally.total.late.count:
        return False
    edges = _times(axis, bins, bins[0][1] * tally.facts.bin)
    for percent, colour in ((99, _GREY), (50, _BLUE)):
        values = [minute.late.percentile(percent) for _, _, minute in bins]
        known = [float("nan") if value is None else value * 1e3 for value in values]
        label = "median" if percent == 50 else f"{percent} %"
        axis.stairs(known, edges, color=colour, linewidth=1.2, baseline=None, label=label)
    least, most = axis.get_ylim()
    axis.set_ylim(min(0.0, least), most + 0.2 * (most - min(0.0, least)))  # room for the legend
    axis.margins(x=0.005)
    axis.set_title("Milliseconds from slot to start", loc="left", fontsize=10)
    axis.legend(fontsize=8, loc="upper right", ncols=2, frameon=False)
    return True


def _shards(axis: Axes, tally: Tally) -> bool:
    counts = sorted(tally.total.shards.items(), key=lambda item: -item[1])
    if not counts or "shard_starved" not in tally.live:
        return False
    shown = counts[:_MAX_SHARDS]
    total = sum(count for _, count in counts)
    even = 100 / len(counts)
    axis.bar(
        [str(at) for at in range(len(shown))],
        [100 * count / total for _, count in shown],
        color=_BLUE,
        alpha=0.75,
    )
    axis.axhline(even, color="black", linewidth=0.9, linestyle=":")
    axis.set_xticks(
        range(len(shown)), [_brief(name) for name, _ in shown], rotation=60, ha="right", fontsize=7
    )
    more = f", the largest {len(shown)} of {len(counts)}" if len(counts) > len(shown) else ""
    axis.set_title(f"Share of each shard in %{more} (dotted: an even share)", loc="left", fontsize=10)
    return True


def _brief(name: str) -> str:
    """The end of a name, which distinguishes shards."""
    return name if len(name) <= 14 else f"...{name[-12:]}"
