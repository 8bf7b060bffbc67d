"""Pipelines: a file describes what to call for which rows, at which pace, until each row has a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intervalq._lazy import lazy_names
from intervalq.pipeline._spec import Spec, read_spec
from intervalq.pipeline._watch import Look, Outcome, Published, Watch

if TYPE_CHECKING:
    from intervalq.pipeline._run import audit, run

__all__ = ["Look", "Outcome", "Published", "Spec", "Watch", "audit", "read_spec", "run"]

# What needs Spark is imported only when it is used, so that a spec can be checked without Spark.
__getattr__ = lazy_names(
    __name__,
    {"audit": "_run", "run": "_run"},
    needs=("pyspark", "pyarrow", "pandas"),
    what="a pipeline",
    extra="spark",
)
