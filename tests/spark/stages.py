"""Stages without Spark: the function of a Python worker, run in this process on batches made here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from intervalq import IntervalQueue
from intervalq.ledger.rules import Answer, Command, Count, Summary
from intervalq.ledger.store import open_ledger_store
from intervalq.spark import CallContext
from intervalq.spark._paced import validate as _job_maker
from intervalq.spark._paced.partition import run_stage
from intervalq.spark._paced.validate import job_maker

GIVES_TEXT = StructType([StructField("out", StringType())])

USUAL: dict[str, Any] = {
    "queue": None, "cost": 1, "settle": None, "key": None, "run": None, "ledger": None, "codec": None,
    "columns": None,
    "concurrency": 4, "window": 16, "on_unknown": "retry", "errors": "raise", "retries": None, "setup": None,
    "stop_after": None, "version": None, "replay": False, "canary": True, "large_answers": None,
    "flush_rows": 1_000, "flush_s": 60.0, "drain": 30.0, "log": "_iq",
}  # fmt: skip
"""The options of `paced`, except that no batch is flushed for its age."""


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
    """The resulting rows, as dicts, as they come."""
    job = job_maker(function, **{**USUAL, **options})(schema)
    for batch in run_stage(job, source):
        yield from batch.to_pylist()


def paced_here(
    function: Callable[..., Any], keys: range, queue: IntervalQueue, **options: Any
) -> Iterator[dict[str, Any]]:
    """The same as `staged`, with a queue in this process's memory, which users may not pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_job_maker, "_check_store", lambda _: None)
        yield from staged(function, batches(keys), queue=queue, **options)


class Calls:
    """A function that counts its calls by key."""

    def __init__(self, fails: Callable[[int, int], bool] = lambda _key, _call: False) -> None:
        self.of: Counter[int] = Counter()
        self.contexts: list[CallContext] = []
        self._fails = fails

    async def __call__(self, row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        self.of[row["id"]] += 1
        self.contexts.append(ctx)
        await anyio.lowlevel.checkpoint()
        if self._fails(row["id"], self.of[row["id"]]):
            raise RuntimeError(f"no {row['id']}")
        return {"out": f"<{row['id']}>"}


def ask(url: str, command: Command, run: str = "r") -> Answer:
    """The answer of a ledger."""

    async def ask() -> Answer:
        store = open_ledger_store(url)
        try:
            return await store.apply(run, command)
        finally:
            await store.aclose()

    return anyio.run(ask)


def summary(url: str) -> Summary:
    """The ledger of run `r` in numbers."""
    found = ask(url, Count()).summary
    assert found is not None
    return found


def outs(rows: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    """Ids and results, in order."""
    return sorted((row["id"], row["out"]) for row in rows)


def made(keys: range) -> list[tuple[int, str]]:
    """The expected `outs` after `Calls` returned all results."""
    return [(key, f"<{key}>") for key in keys]
