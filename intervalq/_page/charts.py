"""Charts as SVG for pages, and as PNG: starts over time, gaps, lateness, shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from intervalq.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE: Final = "#1f6feb"
RED: Final = "#d1242f"
GREY: Final = "#9aa4ad"
_COLOURS: Final = (BLUE, "#d9822b", "#2da44e", "#8250df", "#bf3989", "#1b7c83", "#9a6700", GREY)
"""Of the layers of a chart; the last one is for all others."""

_SHARES: Final = 24
_GAP: Final = 0.05
"""The width of a bar in the histogram of gaps, in intervals."""

_MAX_BARS: Final = 12


class Chart(NamedTuple):
    """A chart to embed in a page."""

    name: str
    title: str
    svg: str
    """It has no background, and what is black in it takes the page's colour of text."""
    png: bytes
    """The same with its title, on white; empty unless asked for."""


Panel = Callable[["Axes"], bool]
"""Draws a chart; returns whether it has something to show."""


def drawn(panels: Iterable[tuple[str, Panel]], *, what: str, png: bool = False) -> list[Chart]:
    """The charts that have something to show.

    Args:
        panels: names, which must differ within a page, and what draws.
        what: what needs them, for the error.
        png: whether to make PNGs, too.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - which asks for no window system
    except ImportError as missing:
        raise MissingExtra(what, "report") from missing
    found = []
    for name, panel in panels:
        # Names of parts of a drawing must differ within a page.
        salt = f"intervalq-{name}"
        with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": salt}):
            figure = Figure(figsize=(4.6, 2.8), layout="constrained")  # text can be read on a phone
            axis: Axes = figure.subplots()
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if panel(axis):
                title = axis.get_title(loc="left")
                picture = BytesIO()
                if png:
                    figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
                axis.set_title("", loc="left")
                out = StringIO()
                figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
                found.append(Chart(name, title, _embedded(out.getvalue(), name), picture.getvalue()))
    return found


def _embedded(text: str, name: str) -> str:
    # Its head names a file of rules on the net, and a fixed size in points; the page chooses its own size.
    text = text[text.index("<svg") :]
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(id="|"#|url\(#)(?=[A-Za-z])', rf"\g<1>{name}-", text)
    return text.replace("#000000", "currentColor")


def times(axis: Axes, begins: Sequence[float], width: float) -> list[Any]:
    """The edges of bins on an axis of time: when each begins, and their common width, in seconds."""
    from matplotlib import dates  # noqa: PLC0415 - an extra

    # matplotlib without type hints counts as anything.
    make_locator: Any = dates.AutoDateLocator
    make_formatter: Any = dates.ConciseDateFormatter
    locator = make_locator(tz=UTC)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(make_formatter(locator, tz=UTC))
    axis.xaxis.get_offset_text().set_fontsize(8)
    axis.margins(x=0.005)
    return [datetime.fromtimestamp(at, UTC) for at in (*begins, begins[-1] + width)]


def layers(
    axis: Axes, edges: Sequence[Any], values: Sequence[tuple[str, Sequence[float]]], possible: Sequence[float]
) -> float:
    """Values in layers on top of each other, and what was possible as a line; returns the highest."""
    below = [0.0] * (len(edges) - 1)
    for place, (label, layer) in enumerate(values):
        top = [one + other for one, other in zip(below, layer, strict=True)]
        colour = _COLOURS[min(place, len(_COLOURS) - 1)]
        axis.stairs(top, edges, baseline=below, fill=True, color=colour, alpha=0.75, label=label)
        below = top
    if any(possible):
        axis.stairs(possible, edges, color="black", linewidth=1.1, baseline=None, label="possible")
    highest = max(*below, *possible, 0.0)
    axis.set_ylim(0, 1.22 * highest or 1)
    return highest


def gap_counts(means: Iterable[tuple[float, int]]) -> list[int]:
    """How many gaps there are by their length, in steps of a 20th of the interval; the last: 2 and more.

    A gap of about 1 is in the middle of its step. `means`: gaps in intervals, and how many there are of each.
    """
    counts = [0] * (round(2 / _GAP) + 1)
    for ratio, count in means:
        counts[min(len(counts) - 1, max(0, int(ratio / _GAP + 0.5)))] += count
    return counts


def gaps(axis: Axes, means: Sequence[tuple[float, int]], promise: float | None, verdict: str) -> bool:
    """Gaps from 0 to 2 intervals; longer ones are one bar at the end.

    Args:
        axis: where to draw.
        means: gaps in intervals, and how many there are of each.
        promise: the shortest gap that is promised, in intervals. None: none is.
        verdict: for the title.
    """
    if not means:
        return False
    counts, width = gap_counts(means), _GAP
    total = sum(counts)
    bars = [100 * count / total for count in counts]
    places = [at * width for at in range(len(counts))]
    # The bar at 0.9 begins at 0.875: short gaps were counted exactly, the colour only shows where to look.
    least = -1.0 if promise is None else promise - width / 4
    colours = [RED if place < least else BLUE for place in places[:-1]] + [GREY]
    axis.bar(places, bars, width=width * 0.9, color=colours)
    axis.set_yscale("symlog", linthresh=0.001)
    axis.set_ylim(0, 300)
    ticks = [0.001, 0.01, 0.1, 1, 10, 100]
    axis.set_yticks(ticks, [f"{tick:g} %" for tick in ticks])
    axis.minorticks_off()
    if promise is not None:
        axis.axvline(promise, color=RED, linewidth=0.9, linestyle=":")
    axis.axvline(1, color="black", linewidth=0.9)
    mark = [] if promise is None or not 0.1 < promise < 0.95 else [(promise, f"{promise:.2g}")]
    marks = sorted([(0, "0"), (0.5, "0.5"), *mark, (1, " 1"), (1.5, "1.5"), (2, "2 and more")])
    axis.set_xticks([at for at, _ in marks], [text for _, text in marks])
    axis.set_title(f"Gaps between starts, in intervals: {verdict}", loc="left", fontsize=10)
    axis.set_ylabel("share of gaps (logarithmic)", fontsize=8)
    return True


def lines(axis: Axes, edges: Sequence[Any], values: Sequence[tuple[str, Sequence[float | None]]]) -> None:
    """Values over time, one line each."""
    for place, (label, line) in enumerate(values):
        known = [float("nan") if value is None else value for value in line]
        colour = (BLUE, GREY)[place] if len(values) <= 2 else _COLOURS[min(place, len(_COLOURS) - 1)]
        axis.stairs(known, edges, color=colour, linewidth=1.2, baseline=None, label=label)
    least, most = axis.get_ylim()
    axis.set_ylim(min(0.0, least), most + 0.2 * (most - min(0.0, least)))  # room for the legend


def legend(axis: Axes) -> None:
    """What the colours mean."""
    axis.legend(fontsize=8, loc="upper right", ncols=3, frameon=False)


def shares(axis: Axes, counts: dict[str, int]) -> bool:
    """The share of each shard, the largest first, and what an even share is."""
    largest = sorted(counts.items(), key=lambda item: -item[1])
    if not largest:
        return False
    shown = largest[:_SHARES]
    total = sum(count for _, count in largest)
    axis.bar(
        [str(at) for at in range(len(shown))],
        [100 * count / total for _, count in shown],
        color=BLUE,
        alpha=0.75,
    )
    axis.axhline(100 / len(largest), color="black", linewidth=0.9, linestyle=":")
    axis.set_xticks(
        range(len(shown)), [_brief(name) for name, _ in shown], rotation=60, ha="right", fontsize=7
    )
    more = f", the largest {len(shown)} of {len(largest)}" if len(largest) > len(shown) else ""
    axis.set_title(f"Share of each shard in %{more} (dotted: an even share)", loc="left", fontsize=10)
    return True


def bars(axis: Axes, counts: dict[str, int], title: str) -> bool:
    """Counts by name, the largest at the top."""
    largest = sorted(((name, count) for name, count in counts.items() if count), key=lambda item: item[1])
    if not largest:
        return False
    shown = largest[-_MAX_BARS:]
    drawn_bars = axis.barh([name for name, _ in shown], [count for _, count in shown], color=BLUE, alpha=0.75)
    axis.bar_label(drawn_bars, [f" {count:,}" for _, count in shown], fontsize=8)
    axis.margins(x=0.15)
    axis.set_title(title, loc="left", fontsize=10)
    return True


def _brief(name: str) -> str:
    """The end of a name, which distinguishes shards."""
    return name if len(name) <= 14 else f"...{name[-12:]}"
