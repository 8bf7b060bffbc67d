"""The page about some queues: for each its verdict, figures, charts, shards and unused slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Final

from intervalq._page.charts import Chart, Panel, bars, drawn, gaps, layers, legend, lines, times
from intervalq._page.html import cards, document, pictures, plural, table
from intervalq._show import exact, seconds
from intervalq._watch.log import QueueLog, percentile
from intervalq.cli._report.figures import Figures, Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_LAYERS: Final = 7
"""Shards with a colour of their own; the others share one."""

_CAUSES: Final = {
    "late": "late: another shard had been granted a later slot",
    "away": "away: the store could not be reached",
    "stepped": "stepped: the store's clock was set",
    "revoked": "revoked: a pause, a longer interval, or reclaim",
    "thread": "thread: a plain function's thread was too late",
    "cheap": "cheap: taken for a job of a smaller cost",
}


def page(found: Iterable[tuple[QueueLog, Figures, list[Chart]]]) -> str:
    """The whole page."""
    parts = [part for queue, made, charts in found for part in _queue(queue, made, charts)]
    return document("Starts", ["<h1>Starts</h1>", *parts])


def charts_of(queue: QueueLog, made: Figures, number: int, *, png: bool) -> list[Chart]:
    """The charts of the queue with this number in the page.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    panels: list[tuple[str, Panel]] = [
        ("starts", partial(_starts, queue, made)),
        ("gaps", partial(_gaps, made)),
        ("late", partial(_late, made)),
        ("used", partial(_used, made)),
        ("unused", partial(_unused, made)),
        *((f"limit{place}", partial(_limit, queue, one)) for place, one in enumerate(made.windows, 1)),
    ]
    return drawn([(f"q{number}-{name}", panel) for name, panel in panels], what="a report", png=png)


def _queue(queue: QueueLog, made: Figures, charts: list[Chart]) -> Iterator[str]:
    first, last = (datetime.fromtimestamp(queue.started[at], UTC) for at in (0, -1))
    yield f"<h2>{escape(queue.name)}: {_verdict(made)}</h2>"
    spaced = "no interval, only limits" if made.interval is None else f"interval: {exact(made.interval)}"
    guessed = " (guessed from the slots: give --interval)" if queue.is_guessed else ""
    limits = queue.paces[-1].limits
    told = [
        f"{plural(len(queue.started), 'start')} by {plural(len(made.shards), 'shard')}",
        f"{spaced}{guessed}",
        *([f"limits: {', '.join(limits)}"] if limits else []),
        f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC",
    ]
    yield f'<div class="dim">{escape("; ".join(told))}</div>'
    yield from cards(_cards(queue, made))
    yield from pictures(charts)
    if len(made.shards) > 1 or queue.unused:
        yield from _shards(queue, made)


def _verdict(made: Figures) -> str:
    if made.promise is None:
        return '<span class="dim">gaps are not judged</span>'
    if made.short:
        return f'<span class="bad">{plural(made.short, "gap")} shorter than promised</span>'
    return '<span class="ok">the spacing was kept</span>'


def _cards(queue: QueueLog, made: Figures) -> Iterator[tuple[str, str, str]]:
    yield f"{len(queue.started):,}", "starts", ""
    if made.rate is not None:
        yield f"{made.rate:.4g}/s", "rate reached", ""
    if made.possible:
        yield f"{len(queue.started) / made.possible:.1%}", "of the possible slots were used", ""
    if made.smallest is not None:
        yield seconds(made.smallest), "smallest gap", "bad" if made.short else ""
    yield seconds(percentile(made.late, 50)), "from slot to start, median", ""
    yield seconds(percentile(made.late, 99)), "from slot to start, 99 %", ""
    yield f"{made.unused.total():,}", "slots unused here", ""
    for window in made.windows:
        fullest = max(window.taken)
        what = f"starts in the fullest window of {window.limit}"
        yield f"{fullest:,}", what, "bad" if fullest > window.most else ""
    if queue.refused:
        yield f"{queue.refused:,}", "jobs refused by the server", "bad"
    yield f"{made.inversions:,}", "pairs of starts out of order", ""
    if queue.failed:
        yield f"{queue.failed:,}", "attempts failed", "bad"


def _shards(queue: QueueLog, made: Figures) -> Iterator[str]:
    late: dict[str, list[float]] = {}
    for at, due, by in zip(queue.started, queue.due, queue.by, strict=True):
        late.setdefault(queue.shards[by], []).append(at - due)
    names = dict.fromkeys([*made.shards, *queue.unused])
    rows = [
        (
            name,
            f"{made.shards.get(name, 0):,}",
            f"{made.shards.get(name, 0) / len(queue.started):.1%}",
            *(seconds(percentile(sorted(late.get(name, ())), percent)) for percent in (50, 99)),
            ", ".join(f"{count:,} {cause}" for cause, count in queue.unused.get(name, {}).items()) or "-",
        )
        for name in names
    ]
    head = ("shard", "starts", "share", "late: median", "99 %", "slots given up, by cause")
    yield from table(head, rows, range(1, 5))


# --- charts -----------------------------------------------------------------------------------------


def _starts(queue: QueueLog, made: Figures, axis: Axes) -> bool:
    bins = made.bins
    edges = times(axis, bins.begins, bins.width)
    largest = sorted(range(len(queue.shards)), key=lambda shard: -sum(bins.by_shard[shard]))
    shown, others = sorted(largest[:_MAX_LAYERS]), largest[_MAX_LAYERS:]
    values = [
        (_short(queue.shards[shard]), [count / bins.width for count in bins.by_shard[shard]])
        for shard in shown
    ]
    if others:
        total = [sum(bins.by_shard[shard][at] for shard in others) for at in range(len(bins.begins))]
        values.append((f"{len(others)} others", [count / bins.width for count in total]))
    layers(axis, edges, values, [count / bins.width for count in bins.possible])
    axis.set_title("Starts a second, by shard", loc="left", fontsize=10)
    legend(axis)
    return True


def _gaps(made: Figures, axis: Axes) -> bool:
    means = [(ratio, 1) for ratio in made.gaps]
    judged = "not judged" if made.promise is None else f"{made.short:,} of {len(means):,} too short"
    return gaps(axis, means, made.promise, judged)


def _late(made: Figures, axis: Axes) -> bool:
    bins = made.bins

    def percentiles(percent: float) -> list[float | None]:
        found = [percentile(values, percent) for values in bins.late]
        return [None if value is None else value * 1e3 for value in found]

    edges = times(axis, bins.begins, bins.width)
    lines(axis, edges, [("median", percentiles(50)), ("99 %", percentiles(99))])
    axis.set_title("Milliseconds from slot to start", loc="left", fontsize=10)
    legend(axis)
    return True


def _used(made: Figures, axis: Axes) -> bool:
    bins = made.bins
    if not any(bins.possible):
        return False
    edges = times(axis, bins.begins, bins.width)
    shares = [
        100 * count / possible if possible else None
        for count, possible in zip(bins.starts, bins.possible, strict=True)
    ]
    lines(axis, edges, [("used", shares)])
    axis.axhline(100, color="black", linewidth=0.9, linestyle=":")
    axis.set_title("Used slots, in % of the possible ones", loc="left", fontsize=10)
    return True


def _unused(made: Figures, axis: Axes) -> bool:
    named = {cause.partition(":")[0]: count for cause, count in made.unused.items()}
    return bars(axis, named, "Slots that stayed unused, by cause")


def _limit(queue: QueueLog, window: Window, axis: Axes) -> bool:
    """The fullest window of each bin against the limit."""
    first, last = queue.started[0], queue.started[-1]
    width = max((last - first) / 200, 1e-3)
    fullest = [0] * (int((last - first) / width) + 1)
    for at, taken in zip(queue.started, window.taken, strict=True):
        place = min(len(fullest) - 1, int((at - first) / width))
        fullest[place] = max(fullest[place], taken)
    edges = times(axis, [first + at * width for at in range(len(fullest))], width)
    lines(axis, edges, [("starts in the window", [count or None for count in fullest])])
    axis.axhline(window.most, color="black", linewidth=1.1, label="limit")
    axis.set_ylim(0, 1.25 * max(window.most, *fullest))
    axis.set_title(f"Limit of {window.limit}: starts in the window that ends then", loc="left", fontsize=10)
    legend(axis)
    return True


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"...{name[-18:]}"
