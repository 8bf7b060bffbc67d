"""Why rows failed: counted by reason in what a pass wrote, and, while it runs, in a part of its ledger."""

from __future__ import annotations

import time
from collections import Counter
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
            self._found = BACKGROUND.call(self._read)
        return self._found

    async def _read(self) -> str | None:
        counts = Counter[str]()
        read = size = 0
        async with Ledger(self._run, self._store) as ledger:
            try:
                async for row in ledger.rows():
                    read, size = read + 1, size + len(row.json)
                    if row.state == "failed":
                        counts[reason_of(row.value["error"])] += 1
                    if read >= _MAX_ROWS or size >= _MAX_SIZE:
                        break
            except LedgerNotFound:
                return None
        return counts.most_common(1)[0][0] if counts else None
