"""An audit on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from intervalq._page.html import plural
from intervalq._show import escaped, seconds
from intervalq.errors import MissingExtra
from intervalq.spark._audit.kinds import BY_NAME, Example, Found
from intervalq.spark._audit.outcome import Outcome, day_of, instant
from intervalq.spark._audit.tally import Part, Tally, jain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MAX_DAYS: Final = 20

HEAD: Final = (
    "queue",
    "day",
    "starts",
    "of possible",
    "gap least",
    "gap 1 %",
    "gap median",
    "too short",
    "late median",
    "late 99 %",
    "inversions",
    "unused",
    "shards",
    "refused",
)
"""The maximum number of rows in a table of days.

Gaps are in intervals; the column of shards has their number and Jain's index.
"""


_WIDE: Final = 150
_BRIEF: Final = (0, 1, 2, 3, 4, 7, 9, 10)


def tables(audit: Outcome, console: Console | None) -> None:
    """Print the findings, then the figures.

    Raises:
        MissingExtra: rich isn't installed.
    """
    try:
        from rich.table import Table  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise MissingExtra("a table on a terminal", "cli") from missing
    from intervalq._show import console as plain  # noqa: PLC0415 - needs that extra

    console = console or plain()
    console.print(
        f"{audit.starts:,} starts of {plural(len(audit.tally.facts.queues), 'queue')}: {verdict(audit)}",
        style="bold green" if audit.ok else "bold red",
    )
    for title, found, style in (("violation", audit.violations, "red"), ("note", audit.notes, "yellow")):
        if found:
            console.print(_kinds(Table(box=None, pad_edge=False, header_style="bold"), title, found, style))
    # On a narrow terminal: the columns that show whether all is well.
    shown = range(len(HEAD)) if console.width >= _WIDE else _BRIEF
    figures = Table(*(HEAD[at] for at in shown), box=None, pad_edge=False, header_style="bold")
    for cells in days(audit.tally):
        figures.add_row(*(cells[at] for at in shown))
    console.print(figures)
    if audit.not_checked:
        by_reason: dict[str, list[str]] = {}
        for name, why in audit.not_checked.items():
            by_reason.setdefault(why, []).append(name)
        for why, kinds in by_reason.items():
            console.print(f"not checked, since {why}: {', '.join(kinds)}", style="dim")


def verdict(audit: Outcome) -> str:
    """The result in one phrase."""
    count = sum(found.count for found in audit.violations.values())
    if not count:
        return "no violation"
    return f"{plural(count, 'violation')} of {plural(len(audit.violations), 'kind')}"


def _kinds(table: Table, title: str, found: dict[str, Found], style: str) -> Table:
    for name in (title, "count", "meaning", "for example"):
        table.add_column(name, justify="right" if name == "count" else "left")
    for name, one in found.items():
        shown = place(one.examples[0]) if one.examples else ""
        table.add_row(name, f"{one.count:,}", BY_NAME[name].meaning, shown, style=style)
    return table


def place(example: Example) -> str:
    """The place of an example, in one line without control characters."""
    parts = [
        example.queue,
        "" if example.ticket is None else f"ticket {example.ticket}",
        "" if example.at is None else instant(example.at),
        example.what,
    ]
    return escaped(", ".join(part for part in parts if part), 100)


def days(tally: Tally) -> list[tuple[str, ...]]:
    """The rows of a table: the days with the most starts, in order, and the total."""
    largest = sorted(tally.days, key=lambda key: -tally.days[key].starts)[:_MAX_DAYS]
    rows = [
        _cells(escaped(name, 40), day_of(day), tally.days[name, day], tally) for name, day in sorted(largest)
    ]
    left = len(tally.days) - len(largest)
    return [*rows, _cells("all", f"{left} more days" if left else "", tally.total, tally)]


def _cells(name: str, day: str, part: Part, tally: Tally) -> tuple[str, ...]:
    live, gaps, late = tally.live, part.gaps, part.late
    index = jain(part.shards.values())
    short = f"{part.short:,}" if "gap_short" in live else "-"
    return (
        name,
        day,
        f"{part.starts:,}",
        f"{part.starts / part.possible:.1%}" if part.possible else "-",
        *(number(value) for value in (gaps.least, gaps.percentile(1), gaps.percentile(50))),
        short,
        seconds(late.percentile(50)),
        seconds(late.percentile(99)),
        f"{part.inverted:,}" if "order_inverted" in live else "-",
        f"{part.unused:,}" if "tickets_unused" in live else "-",
        f"{len(part.shards)}, {index:.2f}" if index is not None and "shard_starved" in live else "-",
        f"{part.refused:,}" if "call_refused" in live else "-",
    )


def number(value: float | None) -> str:
    """A number to three digits; None: a dash."""
    return "-" if value is None else f"{value:.3g}"
