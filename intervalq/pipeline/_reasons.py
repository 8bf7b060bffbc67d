"""Why rows failed: counted by reason in what a pass wrote, and, while it runs, in a part of its ledger."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import LedgerNotFound
from intervalq.ledger import Ledger
from intervalq.spark._paced.trial import MASKS, MAX_REASON, reason_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MAX_REASONS: Final = 10
_MAX_ROWS: Final = 20_000
_MAX_SIZE: Final = 1 << 23
"""How many reasons are kept, and how many rows of a ledger, and characters, are read to find them."""

_AGAIN: Final = 5.0
"""Seconds between two of these readings."""


def reasons_in(failed: DataFrame) -> tuple[dict[str, Any], ...]:
    """The commonest reasons of failed rows, each with its count and an example."""
    log = F.col("_iq")
    groups = (
        failed.groupBy(_reason(log.error).alias("reason"))
        .agg(F.count(F.lit(1)).alias("rows"), F.min(F.struct(log.key, log.error)).alias("example"))
        .orderBy(F.desc("rows"), "reason")
        .limit(_MAX_REASONS)
        .collect()
    )
    return tuple(
        {"reason": one.reason, "rows": one.rows, "key": one.example.key, "error": one.example.error}
        for one in groups
    )


def _reason(error: Column) -> Column:
    """The reason of an error, as `reason_of` finds it."""
    text = F.split(error, "\n")[0]
    for pattern, stand_in in MASKS:
        text = F.regexp_replace(text, pattern, stand_in)
    return F.substring(text, 1, MAX_REASON)


class Sample:
    """The commonest reason among some failed rows of a running pass."""

    def __init__(self, run: str, store: str) -> None:
        self._run, self._store = run, store
        self._failed = 0
        self._next = 0.0
        self._found: str | None = None

    def at(self, failed: int) -> str | None:
        """The reason. If more rows have failed than before, the ledger is read again, but not too often."""
        if failed > self._failed and time.monotonic() >= self._next:
            self._failed, self._next = failed, time.monotonic() + _AGAIN
            reasons = reasons_kept(self._run, self._store)
            self._found = reasons[0]["reason"] if reasons else None
        return self._found


def reasons_kept(run: str, store: str) -> tuple[dict[str, Any], ...]:
    """The same of rows that a ledger has, as far as they are read; empty if there is no ledger."""
    found: dict[str, dict[str, Any]] = {}

    async def read() -> None:
        rows = size = 0
        async with Ledger(run, store) as ledger:
            async for row in ledger.rows():
                rows, size = rows + 1, size + len(row.json)
                if row.state == "failed":
                    error = row.value["error"]
                    new = {"reason": reason_of(error), "rows": 0, "key": row.key, "error": error}
                    found.setdefault(new["reason"], new)["rows"] += 1
                if rows >= _MAX_ROWS or size >= _MAX_SIZE:
                    break

    with suppress(LedgerNotFound):
        BACKGROUND.call(read)
    return tuple(sorted(found.values(), key=lambda one: -one["rows"])[:_MAX_REASONS])
