"""The tables of durable tasks: one line per contender, with medians over its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from _judge import quantile
from _table import Column, table

Row = dict[str, Any]

_NAME = Column("contender", "label")
_RATES = [
    _NAME,
    Column("1 worker/s", "per_s_1", "{:,.0f}"),
    Column("2 workers/s", "per_s_2", "{:,.0f}"),
    Column("x floor, 1", "floor_1"),
    Column("x floor, 2", "floor_2"),
    Column("client us", "client_us_1", "{:.1f}"),
    Column("server us", "server_us_1", "{:.1f}"),
    Column("tasks", "jobs", "{:,.0f}"),
]
_ALONE = [
    _NAME,
    Column("per s", "per_s_1", "{:,.0f}"),
    Column("x floor", "floor_1"),
    Column("client us", "client_us_1", "{:.1f}"),
    Column("server us", "server_us_1", "{:.1f}"),
    Column("tasks", "jobs", "{:,.0f}"),
]
_COLUMNS = {
    "enqueue": [column for column in _ALONE if not column.name.endswith("_us_1")],
    "drain": _RATES,
    "plain": _RATES,
    "snapshot": [
        _NAME,
        *(
            Column(f"{heading}, {workers}", f"{name}_{workers}", form)
            for workers in (1, 2)
            for heading, name, form in (
                ("without/s", "without", "{:,.0f}"),
                ("held/s", "per_s", "{:,.0f}"),
                ("kept", "kept", "{:.0%}"),
            )
        ),
        Column("tasks", "jobs", "{:,.0f}"),
    ],
    "single": _ALONE,
    "latency": [
        _NAME,
        Column("p50 ms", "ms_p50"),
        Column("p99 ms", "ms_p99"),
        Column("max ms", "ms_max"),
        Column("x floor, p50", "ms_floor"),
        Column("inserts", "ms_count", "{:.0f}"),
    ],
    "crash": [
        _NAME,
        Column("min s", "s_min"),
        Column("p50 s", "s_p50"),
        Column("max s", "s_max"),
        Column("kills", "s_count", "{:.0f}"),
    ],
    "pace": [
        _NAME,
        Column("mean/s", "mean"),
        Column("most in 1 s", "most_1s", "{:.0f}"),
        Column("most in 100 ms", "most_100ms", "{:.0f}"),
        Column("gap p1 ms", "gap_p1"),
        Column("p50", "gap_p50"),
        Column("p99", "gap_p99"),
    ],
    "outcomes": [column for column in _ALONE if not column.name.startswith("floor")],
    "cancel": [
        _NAME,
        Column("p50 ms", "ms_p50"),
        Column("p99 ms", "ms_p99"),
        Column("max ms", "ms_max"),
        Column("cancels", "ms_count", "{:.0f}"),
    ],
    "keys": [
        _NAME,
        Column("starts", "starts", "{:.0f}"),
        Column("x share", "share", "{:.2f}"),
        Column("tasks", "jobs", "{:,.0f}"),
    ],
    "sqlite": [
        _NAME,
        Column("enqueue/s", "enqueue_per_s_1", "{:,.0f}"),
        *_RATES[1:],
    ],
}


def summary(question: str, rows: Sequence[Row]) -> str:
    """The table of one question, followed by the missing contenders."""
    lines = [_line(rows, label) for label in dict.fromkeys(row["label"] for row in rows)]
    lines = [line for line in lines if len(line) > len(_SAME)]
    for name in ("per_s_1", "per_s_2", "ms_p50"):
        best = [line[name] for line in lines if line["name"] == "floor" and name in line]
        if best:
            base = min(best) if name == "ms_p50" else max(best)
            for line in lines:
                if name in line:
                    line["ms_floor" if name == "ms_p50" else name.replace("per_s", "floor")] = (
                        line[name] / base
                    )
    missing = dict.fromkeys(f"{row['label']}: {row['missing']}" for row in rows if "missing" in row)
    return "\n".join(
        [f"== {question}", "", table(_COLUMNS[question], lines), *(f"missing: {why}" for why in missing)]
    )


_SAME = ("label", "name", "jobs")
_BY_WORKERS = ("per_s", "without", "kept", "enqueue_per_s", "client_us", "server_us")
_SAMPLES = {"ms": ("p50", "p99", "max", "count"), "s": ("min", "p50", "max", "count")}
_OF: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "count": len,
    "p50": lambda values: quantile(values, 0.5),
    "p99": lambda values: quantile(values, 0.99),
}


def _line(rows: Sequence[Row], label: str) -> Row:
    mine = [row for row in rows if row["label"] == label]
    return {name: mine[0][name] for name in _SAME} | dict(
        _figures([row for row in mine if "missing" not in row])
    )


def _figures(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in _BY_WORKERS:
            for workers in dict.fromkeys(row["workers"] for row in rows):
                known = [row[name] for row in rows if row["workers"] == workers and name in row]
                if known:
                    yield f"{name}_{workers}", statistics.median(known)
        elif name in _SAMPLES:
            values = [value for row in rows for value in row[name]]  # of all runs together
            if values:
                yield from ((f"{name}_{kind}", _OF[kind](values)) for kind in _SAMPLES[name])
        elif name not in (*_SAME, "question", "run", "workers", "took"):
            yield name, statistics.median(row[name] for row in rows)
