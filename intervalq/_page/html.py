"""The parts of a page: its frame and style, tables, cards with figures, charts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final

from intervalq._page.charts import Chart

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
figure { margin: 0; min-width: 0 } figcaption { font-size: 13px; color: var(--dim) }
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


def cards(figures: Iterable[tuple[str, str, str]]) -> list[str]:
    """The figures to see first: the value of each, what it is, and its class (`ok`, `bad` or nothing)."""
    made = [
        f'<div class="card"><b class="{kind}">{escape(value)}</b><span>{escape(what)}</span></div>'
        for value, what, kind in figures
    ]
    return ['<div class="cards">', *made, "</div>"] if made else []


def pictures(drawn: Iterable[Chart]) -> list[str]:
    """Charts beside each other, or below each other on a phone."""
    figures = [
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{chart.svg}</figure>" for chart in drawn
    ]
    return ['<div class="charts">', *figures, "</div>"] if figures else []


def plural(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


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


def save(path: Path, content: bytes) -> None:
    """Write a page or a chart into a file. If it is new, only its owner can read it."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
