"""The page of a run: results, rejects, reasons, latency, restarts, calls paid and saved, then the pace."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from intervalq._page.charts import Chart
from intervalq._page.html import cards, document, plural, table
from intervalq._show import seconds
from intervalq.errors import MissingExtra
from intervalq.spark._audit.outcome import Outcome as Judged
from intervalq.spark._audit.report.page import body
from intervalq.spark._audit.report.plots import charts

_MAX_PASSES: Final = 20
"""The maximum number of rows in the table of passes, which has the newest ones."""


def page(summary: dict[str, Any], calls: list[dict[str, Any]], judged: Judged | None) -> str:
    """The whole page.

    Args:
        summary: see `Outcome.to_dict`; or only the name of the pipeline, if its log was only audited again.
            If it stopped because rows failed, also `error`, `reasons` as of a pass, and `kept`: how many
            results the ledger has for the next run.
        calls: see `calls_in`.
        judged: the audit; None: nothing was ever called.
    """
    name = str(summary["pipeline"])
    drawn: list[Chart] = []
    if judged is not None:
        with suppress(MissingExtra):
            drawn = charts(judged.tally)
    no_charts = ["<p class=\"dim\">Charts need matplotlib: pip install 'intervalq[report]'.</p>"]
    return document(
        f"Pipeline {name}",
        [
            f"<h1>Pipeline {escape(name)}{_verdict(summary)}</h1>",
            *_run(summary),
            *_cards(summary, calls),
            *_reasons(summary),
            *_rejected(summary),
            *_passes(calls),
            *([] if judged is None else ["<h2>Pace</h2>", *([] if drawn else no_charts)]),
            *([] if judged is None else body(judged, drawn, "h3")),
        ],
    )


def _verdict(summary: dict[str, Any]) -> str:
    if "ok" not in summary:
        return ""
    if "error" in summary:
        return ': <span class="bad">no more rows were called</span>'
    if summary["ok"]:
        return ': <span class="ok">every row has a result</span>'
    missing = summary["failed"] + sum(summary["rejected"].values())
    text = f"{missing:,} rows have no result" if missing else "the audit found violations"
    return f': <span class="bad">{text}</span>'


def _run(summary: dict[str, Any]) -> list[str]:
    if "rows" not in summary:
        return []
    parts = [f"{summary['rows']:,} rows in the input, {summary['before']:,} of them had results before"]
    if summary["duplicates"]:
        parts.append(plural(summary["duplicates"], "duplicate"))
    if summary["restarts"]:
        passes = "pass" if summary["restarts"] == 1 else "passes"
        parts.append(f"{summary['restarts']:,} interrupted {passes} restarted")
    why = [f'<p class="bad">{escape(summary["error"])}</p>'] if "error" in summary else []
    return [f'<div class="dim">{escape("; ".join(parts))}</div>', *why]


def _cards(summary: dict[str, Any], calls: list[dict[str, Any]]) -> list[str]:
    """The figures to see first: of this run, and of all runs."""
    figures: list[tuple[str, str, str]] = []
    if "rows" in summary:
        failed, rejected = summary["failed"], sum(summary["rejected"].values())
        kept = [(f"{summary['kept']:,}", "results kept for the next run", "")] if "kept" in summary else []
        figures += [
            *(kept or [(f"{summary['results']:,}", "results of this run", "")]),
            (f"{failed:,}", "rows failed", "bad" if failed else ""),
            (f"{rejected:,}", "rows rejected", "bad" if rejected else ""),
        ]
    if calls:
        paid, saved, taken = (sum(one[what] for one in calls) for what in ("calls", "saved", "taken_over"))
        figures += [
            (f"{paid:,}", "calls paid for, retries included, by all runs", ""),
            (f"{saved:,}", "calls saved by the ledger after restarts", ""),
            (f"{taken:,}", "rows taken over from tasks that died", ""),
        ]
    return cards(figures)


def _reasons(summary: dict[str, Any]) -> list[str]:
    rows = [
        (f"{why['rows']:,}", why["reason"], "-" if why["key"] is None else str(why["key"]), why["error"])
        for one in (summary, *summary.get("passes", ()))
        for why in one.get("reasons", ())
    ]
    if not rows:
        return []
    return ["<h2>Why rows failed</h2>", *table(("rows", "reason", "for example", "its error"), rows, (0,))]


def _rejected(summary: dict[str, Any]) -> list[str]:
    rows = [(f"{count:,}", reason) for reason, count in summary.get("rejected", {}).items()]
    return ["<h2>Rows that can't be called</h2>", *table(("rows", "reason"), rows, (0,))] if rows else []


def _passes(calls: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            one["pass"],
            _instant(one["first"]),
            seconds(one["last"] - one["first"]),
            *(f"{one[what]:,}" for what in ("results", "failed", "calls", "saved", "taken_over")),
            *(seconds(one["latency"][what]) for what in ("p50", "p90", "p99", "most")),
        )
        for one in calls[-_MAX_PASSES:]
    ]
    if not rows:
        return []
    head = ("pass", "first call (UTC)", "took", "results", "failed", "calls", "saved", "taken over")
    latency = ("call: median", "90 %", "99 %", "longest")
    return [
        "<h2>Passes</h2>",
        (
            '<p class="dim">Saved: calls that were made before the pass was restarted, and not again. '
            "Taken over: rows of tasks that died, which may have called them, too.</p>"
        ),
        *table((*head, *latency), rows, range(2, 12)),
    ]


def _instant(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
