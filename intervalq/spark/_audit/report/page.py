"""An audit as HTML: first charts, then findings, then figures. A page loads no other resources."""

from __future__ import annotations

from html import escape

from intervalq._page.charts import Chart
from intervalq._page.html import document, pictures, plural, table
from intervalq._show import seconds
from intervalq.spark._audit.kinds import BY_NAME, Found
from intervalq.spark._audit.outcome import Outcome
from intervalq.spark._audit.report.plots import charts
from intervalq.spark._audit.report.text import HEAD, days, place, verdict


def page(audit: Outcome) -> str:
    """The page of an audit alone.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    return document("Audit of starts", body(audit, charts(audit.tally)))


def body(audit: Outcome, drawn: list[Chart], heading: str = "h1") -> list[str]:
    """An audit, as parts of a page."""
    tally = audit.tally
    part = tally.total
    used = f", {part.starts / part.possible:.1%} of the possible slots" if part.possible else ""
    intervals = sorted({queue.interval for queue in tally.facts.queues.values()})
    spaced = f"{seconds(intervals[0])}" if len(intervals) == 1 else "different"
    starts = f"{plural(part.starts, 'start')} of {plural(len(tally.facts.queues), 'queue')}"
    summary = f"{starts}{used}; interval: {spaced}; times are UTC"
    return [
        f'<{heading} class="{"ok" if audit.ok else "bad"}">{verdict(audit).capitalize()}</{heading}>',
        f'<div class="dim">{escape(summary)}</div>',
        *pictures(drawn),
        *_found("Violations", audit.violations),
        *_found("Notes", audit.notes),
        "<h2>By queue and day</h2>",
        '<p class="dim">Gaps are in intervals. Shards: how many, and their fairness (1 is even).</p>',
        *table(HEAD, days(tally), numbers=range(2, len(HEAD))),
        *_clocks(audit),
        *_not_checked(audit),
    ]


def _found(title: str, found: dict[str, Found]) -> list[str]:
    if not found:
        return []
    rows = [
        (
            name,
            f"{one.count:,}",
            BY_NAME[name].meaning,
            "; ".join(place(example) for example in one.examples[:3]),
        )
        for name, one in found.items()
    ]
    return [f"<h2>{title}</h2>", *table(("kind", "count", "meaning", "for example"), rows, numbers=(1,))]


def _clocks(audit: Outcome) -> list[str]:
    clocks = audit.tally.facts.clocks
    if not clocks:
        return []
    largest = sorted(clocks, key=lambda clock: -abs(clock.offset))[:20]
    rows = [(clock.host, seconds(clock.offset), f"{clock.starts:,}") for clock in largest]
    head = "<h2>Clocks of hosts against the store's</h2>"
    paragraph = (
        '<p class="dim">By the soonest starts after their slots, minute by minute. Everything above is on '
        "corrected times. A log can't tell a clock from starts that are all early or late.</p>"
    )
    return [head, paragraph, *table(("host", "ahead by", "starts judged"), rows, numbers=(1, 2))]


def _not_checked(audit: Outcome) -> list[str]:
    if not audit.not_checked:
        return []
    rows = [(name, BY_NAME[name].meaning, why) for name, why in audit.not_checked.items()]
    return ["<h2>Not checked</h2>", *table(("kind", "meaning", "why"), rows)]
