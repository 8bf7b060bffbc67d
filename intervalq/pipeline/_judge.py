"""The audit of a pipeline's whole log, and its report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from intervalq.pipeline._calls import calls_in
from intervalq.pipeline._page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from intervalq.pipeline._layout import Layout
    from intervalq.pipeline._published import Tables
    from intervalq.pipeline._spec import Spec
    from intervalq.spark._audit.result import Audit


def judge(spark: SparkSession, spec: Spec, tables: Tables) -> Audit | None:
    """Audit the log; None: there is none yet."""
    if not tables.has("log"):
        return None
    from intervalq.spark._audit.audit import audit  # noqa: PLC0415 - takes a moment, and isn't always needed

    log = tables.read("log")
    # The fastest pace that was ever requested: slower starts at other times are no violation.
    paces = log.groupBy("queue").agg(F.min("interval")).collect()
    options = spec.queue._options  # noqa: SLF001 - its own package
    tolerance = options.tolerance / 1e6 if options.tolerance else None
    return audit(
        spark,
        log,
        interval={row[0]: row[1] for row in paces},
        tolerance=tolerance,
        burst=options.burst,
        max_running=options.max_running or None,
    )


def write_report(tables: Tables, layout: Layout, found: Audit | None, summary: dict[str, Any]) -> str:
    """Write report.json and report.html; returns the place of the latter."""
    calls = calls_in(tables.read("log")) if tables.has("log") else []
    place = layout.write("report.html", page(summary, calls, found).encode())
    judged = None if found is None else found.to_dict()
    content = {**summary, "report": place, "calls": calls, "audit": judged}
    layout.write("report.json", json.dumps(content, indent=1, allow_nan=False).encode())
    return place
