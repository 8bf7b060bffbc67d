"""An audit as one HTML page: first charts, then findings, then figures. It loads no other resources."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from intervalq._show import seconds
from intervalq.spark._audit.kinds import BY_NAME, Found
from intervalq.spark._audit.outcome import Outcome
from intervalq.spark._audit.report.plots import svg
from intervalq.spark._audit.report.text import HEAD, days, place, plural, verdict

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1f2328 }
body { max-width: 1150px; margin: 24px auto; padding: 0 16px }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 17px; margin: 28px 0 6px }
.ok { color: #1a7f37 } .bad { color: #d1242f } .dim { color: #656d76 }
svg { width: 100%; height: auto; margin-top: 12px }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid #d8dee4; vertical-align: top }
th { color: #656d76; font-weight: 600; white-space: nowrap } .n { text-align: right }
"""


def page(audit: Outcome) -> str:
    """The whole page.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    tally = audit.tally
    part = tally.total
    used = f", {part.starts / part.possible:.1%} of the possible slots" if part.possible else ""
    intervals = sorted({queue.interval for queue in tally.facts.queues.values()})
    spaced = f"{seconds(intervals[0])}" if len(intervals) == 1 else "different"
    starts = f"{plural(part.starts, 'start')} of {plural(len(tally.facts.queues), 'queue')}"
    summary = f"{starts}{used}; interval: {spaced}; times are UTC"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>Audit of starts</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style></head><body>",
            f'<h1 class="{"ok" if audit.ok else "bad"}">{verdict(audit).capitalize()}</h1>',
            f'<div class="dim">{escape(summary)}</div>',
            svg(tally),
            *_found("Violations", audit.violations),
            *_found("Notes", audit.notes),
            "<h2>By queue and day</h2>",
            '<p class="dim">Gaps are in intervals. Shards: how many, and their fairness (1 is even).</p>',
            *_table(HEAD, days(tally), numbers=range(2, len(HEAD))),
            *_clocks(audit),
            *_not_checked(audit),
            "</body></html>\n",
        ]
    )


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
    return [f"<h2>{title}</h2>", *_table(("kind", "count", "meaning", "for example"), rows, numbers=(1,))]


def _clocks(audit: Outcome) -> list[str]:
    clocks = [clock for clock in audit.tally.facts.clocks if clock.piece is None]
    if not clocks:
        return []
    largest = sorted(clocks, key=lambda clock: -abs(clock.offset))[:20]
    rows = [(clock.host, seconds(clock.offset), f"{clock.starts:,}") for clock in largest]
    head = "<h2>Clocks of hosts against the store's</h2>"
    paragraph = (
        '<p class="dim">By the soonest starts after their slots. Everything above is on corrected times.</p>'
    )
    return [head, paragraph, *_table(("host", "ahead by", "starts judged"), rows, numbers=(1, 2))]


def _not_checked(audit: Outcome) -> list[str]:
    if not audit.not_checked:
        return []
    rows = [(name, BY_NAME[name].meaning, why) for name, why in audit.not_checked.items()]
    return ["<h2>Not checked</h2>", *_table(("kind", "meaning", "why"), rows)]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> list[str]:
    right = set(numbers)

    def cells(tag: str, texts: Iterable[str]) -> str:
        mark = [' class="n"' if at in right else "" for at in range(len(HEAD))]
        return "".join(f"<{tag}{mark[at]}>{escape(text)}</{tag}>" for at, text in enumerate(texts))

    return [
        '<div class="wide"><table>',
        f"<tr>{cells('th', head)}</tr>",
        *(f"<tr>{cells('td', row)}</tr>" for row in rows),
        "</table></div>",
    ]
