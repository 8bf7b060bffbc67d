"""An audit as HTML: first charts, then findings, then figures. A page loads no other resources."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from intervalq._show import seconds
from intervalq.spark._audit.kinds import BY_NAME, Found
from intervalq.spark._audit.outcome import Outcome
from intervalq.spark._audit.report.plots import charts
from intervalq.spark._audit.report.text import HEAD, days, place, plural, verdict

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --line: #d1d9e0; --page: #ffffff }
:root { --card: #f6f8fa; --ok: #1a7f37; --bad: #cf222e }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --dim: #9198a1; --line: #3d444d; --page: #0d1117; --card: #161b22 }
  :root { --ok: #3fb950; --bad: #f85149 }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page) }
body { max-width: 1150px; margin: 24px auto; padding: 0 16px }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 17px; margin: 28px 0 6px }
.ok { color: var(--ok) } .bad { color: var(--bad) } .dim { color: var(--dim) }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; margin-top: 16px }
figure { margin: 0 } figcaption { font-size: 13px; color: var(--dim) }
svg { display: block; width: 100%; height: auto } svg text { fill: currentColor }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px }
.cards { margin: 16px 0 }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px }
.card b { display: block; font-size: 20px; font-weight: 600 }
.card span { font-size: 13px; color: var(--dim) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th, td { text-align: left; padding: 4px 14px 4px 0; vertical-align: top }
th, td { border-bottom: 1px solid var(--line) }
th { color: var(--dim); font-weight: 600; white-space: nowrap } .n { text-align: right; width: 1% }
td { overflow-wrap: break-word; max-width: 60ch } td.n { white-space: nowrap }
@media (max-width: 700px) { .charts { grid-template-columns: minmax(0, 1fr) } body { margin: 12px auto } }
"""


def page(audit: Outcome) -> str:
    """The page of an audit alone.

    Raises:
        MissingExtra: matplotlib isn't installed.
    """
    return document("Audit of starts", body(audit, charts(audit.tally)))


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )


def body(audit: Outcome, drawn: list[tuple[str, str]], heading: str = "h1") -> list[str]:
    """An audit, as parts of a page. `drawn`: titles and charts."""
    tally = audit.tally
    part = tally.total
    used = f", {part.starts / part.possible:.1%} of the possible slots" if part.possible else ""
    intervals = sorted({queue.interval for queue in tally.facts.queues.values()})
    spaced = f"{seconds(intervals[0])}" if len(intervals) == 1 else "different"
    starts = f"{plural(part.starts, 'start')} of {plural(len(tally.facts.queues), 'queue')}"
    summary = f"{starts}{used}; interval: {spaced}; times are UTC"
    figures = [f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>" for title, chart in drawn]
    return [
        f'<{heading} class="{"ok" if audit.ok else "bad"}">{verdict(audit).capitalize()}</{heading}>',
        f'<div class="dim">{escape(summary)}</div>',
        *(['<div class="charts">', *figures, "</div>"] if figures else []),
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


def table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> list[str]:
    """A table of texts. `numbers`: the columns of numbers, which are aligned at the right."""
    right, number = set(numbers), ' class="n"'

    def cells(tag: str, texts: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{number if at in right else ''}>{escape(text)}</{tag}>" for at, text in enumerate(texts)
        )

    return [
        '<div class="wide"><table>',
        f"<tr>{cells('th', head)}</tr>",
        *(f"<tr>{cells('td', row)}</tr>" for row in rows),
        "</table></div>",
    ]
