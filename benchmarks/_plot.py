"""One picture of all results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _judge import medians

_OURS = "#1f6feb"
_OTHERS = "#9aa4ad"


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Grouped bars, one panel for each case; the title says whether lower or higher is better."""
    import matplotlib as mpl  # noqa: PLC0415 - only when a plot is asked for

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    panels = [panel for panel in _panels(rows) if panel[1]]
    if not panels:
        return
    height = sum(0.26 * len(bars) + 0.9 for _, bars, _ in panels)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(9, height), squeeze=False, layout="constrained",
        gridspec_kw={"height_ratios": [len(bars) + 2 for _, bars, _ in panels]},
    )  # fmt: skip
    for axis, (title, bars, log) in zip(axes[:, 0], panels, strict=True):
        names = [name for name, _ in bars]
        values = [value for _, value in bars]
        drawn = axis.barh(names, values, color=[_OURS if "intervalq" in name else _OTHERS for name in names])
        axis.bar_label(drawn, labels=[f" {value:,.3g}" for value in values], fontsize=7)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
        if log and max(values) > 0:
            axis.set_xscale("log")
    figure.savefig(path, dpi=130)


def _panels(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, float]], bool]]:
    found = []
    for case in _in_order(rows, "pacing", "case"):
        mine = [row for row in rows if row.get("case") == case]
        mine = [{**row, "label": f"{row['label']}, rate {_rate(mine, row['label'])}"} for row in mine]
        bars = _bars(mine, "short", 100)
        found.append((f"Gaps under 0.9 of the interval, % (lower is better): {case}", bars, False))
    for store in _in_order(rows, "throughput", "store"):
        mine = [row for row in rows if row["question"] == "throughput" and row["store"] == store]
        mine = [row for row in mine if (row["processes"], row["callers"]) == (1, 64)]
        bars = _bars(mine, "jobs_per_s", 1)
        found.append((f"Jobs a second without a limit (higher is better): {store}, 64 callers", bars, False))
    mine = [
        {**row, "label": f"{row['label']}, {row['store']}"} for row in rows if row["question"] == "latency"
    ]
    bars = _bars(mine, "wait_p50", 1)
    found.append(("One call on an idle queue, us p50 (lower is better)", bars, True))
    return found


def _rate(rows: Sequence[dict[str, Any]], label: str) -> str:
    """The rate belongs to the label: a contender that starts few jobs easily has few short gaps."""
    known = [row for row in rows if row["label"] == label and "missing" not in row]
    return f"{medians(known)['rate']:.2f}" if known else "-"


def _in_order(rows: Sequence[dict[str, Any]], question: str, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows if row["question"] == question))


def _bars(rows: Sequence[dict[str, Any]], name: str, factor: float) -> list[tuple[str, float]]:
    bars = []
    for label in dict.fromkeys(row["label"] for row in rows):
        mine = [row for row in rows if row["label"] == label and "missing" not in row]
        if mine and not math.isnan(value := medians(mine)[name]):
            bars.append((label, value * factor))
    return bars
