"""The audit of a pipeline's whole log, and its report."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from intervalq.errors import MissingExtra
from intervalq.pipeline._layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from intervalq.pipeline._spec import Spec
    from intervalq.spark._audit.result import Audit


def judge(spark: SparkSession, spec: Spec, layout: Layout) -> Audit | None:
    """Audit the log; None: there is none yet."""
    if not layout.has("log"):
        return None
    from intervalq.spark._audit.audit import audit  # noqa: PLC0415 - takes a moment, and isn't always needed

    log = spark.read.parquet(layout.log)
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


def write_report(layout: Layout, found: Audit | None, summary: dict[str, Any]) -> str | None:
    """Write report.json, and report.html if it can be drawn; returns the place of the latter, or None."""
    page = None
    if found is not None:
        with tempfile.TemporaryDirectory(prefix="intervalq-report-") as folder, suppress(MissingExtra):
            page = layout.write("report.html", found.write(Path(folder, "report.html")).read_bytes())
    content = {**summary, "report": page, "audit": None if found is None else found.to_dict()}
    layout.write("report.json", json.dumps(content, indent=1, allow_nan=False).encode())
    return page
