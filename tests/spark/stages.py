"""Stages without Spark: the function that a Python worker runs, in this process, on batches made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from intervalq.spark._job_maker import job_maker
from intervalq.spark._stage import run_stage

GIVES_TEXT = StructType([StructField("out", StringType())])

USUAL: dict[str, Any] = {
    "queue": None, "key": None, "run": None, "ledger": None, "concurrency": 4, "window": 16,
    "on_unknown": "retry", "errors": "raise", "retries": None, "setup": None, "flush_rows": 1_000,
    "flush_s": 60.0, "drain": 30.0, "log": "_iq",
}  # fmt: skip
"""As for `paced`, but that nothing is flushed for its age."""


def batches(keys: Iterable[Any], size: int = 10) -> Iterator[pa.RecordBatch]:
    """Batches with a column `id` of these values."""
    values = list(keys)
    for first in range(0, len(values), size):
        yield pa.RecordBatch.from_pydict({"id": values[first : first + size]})


def staged(
    function: Callable[..., Any],
    source: Iterator[pa.RecordBatch],
    schema: StructType = GIVES_TEXT,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """The rows that come out, as dicts, as they come."""
    job = job_maker(function, **{**USUAL, **options})(schema)
    for batch in run_stage(job, source):
        yield from batch.to_pylist()
