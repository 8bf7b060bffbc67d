"""intervalq on Spark: the pace over executors, beside what people use today; the cost of a row; memory.

Prints a table for each question as soon as it is done; README.md says what the columns mean. Run it on a quiet
machine, and compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _spark_questions import QUESTIONS
from _table import Column, table

COLUMNS = {
    "pace": [
        Column("", "name"),
        Column("starts/s", "per_s", "{:.0f}"),
        Column("tasks", "tasks", "{:.0f}"),
        Column("run", "run", "{:.0f}"),
        Column("rows", "rows", "{:.0f}"),
        Column("calls", "calls", "{:.0f}"),
        Column("processes", "processes", "{:.0f}"),
        Column("rate of the possible", "rate", "{:.3f}"),
        Column("arrivals under 0.9 I", "under", "{:.1%}"),
        Column("least / I", "least", "{:.2f}"),
        Column("pauses over 5 I", "pauses", "{:.0f}"),
        Column("all (s)", "paused_s", "{:.2f}"),
        Column("longest (s)", "pause_s", "{:.2f}"),
        Column("after (s)", "pause_at_s", "{:.2f}"),
        Column("starts under 0.9 I", "start_under", "{:.1%}"),
        Column("least / I", "start_least", "{:.2f}"),
        Column("first call after (s)", "first_s", "{:.2f}"),
        Column("end after last (s)", "last_s", "{:.2f}"),
    ],
    "limits": [
        Column("", "name"),
        Column("tasks", "tasks", "{:.0f}"),
        Column("rows", "rows", "{:.0f}"),
        Column("done", "done", "{:.0f}"),
        Column("calls", "calls", "{:.0f}"),
        Column("429", "refused", "{:.0f}"),
        Column("of the limit", "good", "{:.2f}"),
        Column("s", "s", "{:.1f}"),
    ],
    "overhead": [
        Column("", "name"),
        Column("call", "call"),
        Column("rows/s", "per_s", "{:,.0f}"),
        Column("time / plain", "ratio", "{:.2f}"),
    ],
    "flat": [
        Column("rows", "rows", "{:,.0f}"),
        Column("MB, first tenth", "first_mb", "{:.1f}"),
        Column("MB, last tenth", "last_mb", "{:.1f}"),
        Column("MB, most", "most_mb", "{:.1f}"),
        Column("s", "s", "{:.1f}"),
    ],
}


def _shown(question: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table: medians where there were several runs of the same."""
    if question != "overhead":
        return rows
    of: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        of.setdefault((row["call"], row["name"]), []).append(row["per_s"])
    medians = {key: statistics.median(values) for key, values in of.items()}
    return [
        {"call": call, "name": name, "per_s": per_s, "ratio": medians[call, "plain"] / per_s}
        for (call, name), per_s in medians.items()
    ]


def main() -> None:
    """Read the options, run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default=",".join(QUESTIONS), help=f"some of {','.join(QUESTIONS)}, with commas"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of the rows of which medians are shown")
    parser.add_argument("--seconds", type=int, default=10, help="how long a run of `pace` takes at its rate")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to try it out")
    parser.add_argument("--json", type=Path, help="write each row here")
    options = parser.parse_args()
    wanted = [name.strip() for name in options.only.split(",")]
    for name in wanted:
        if name not in QUESTIONS:
            parser.error(f"--only: {name} is none of {', '.join(QUESTIONS)}")
    here = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        **{name: version(name) for name in ("intervalq", "pyspark", "pyarrow")},
    }
    print(", ".join(f"{name} {value}" for name, value in here.items()), flush=True)
    found: list[dict[str, Any]] = []
    try:
        for name in wanted:
            rows: list[dict[str, Any]] = []
            for row in QUESTIONS[name](options):
                rows.append(row)
                found.append(row)
                sys.stderr.write(f"{json.dumps(row)}\n")
            what = " ".join((QUESTIONS[name].__doc__ or "").split())
            print(f"\n{name}: {what}\n{table(COLUMNS[name], _shown(name, rows))}", flush=True)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    finally:
        if options.json and found:
            options.json.write_text(json.dumps({"machine": here, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
