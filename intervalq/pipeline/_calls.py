"""The calls of a pipeline's log in figures, by pass: what they cost, how long they took, what was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHARES: Final = (0.5, 0.9, 0.99)


def calls_in(log: DataFrame) -> list[dict[str, Any]]:
    """All passes, the oldest first. Times are in seconds, instants in seconds since 1970."""
    took = F.col("ended") - F.col("started")
    groups = (
        log.groupBy("pass")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum(F.when(F.col("status") == "ok", 1).otherwise(0)).alias("results"),
            F.sum("tries").alias("calls"),
            F.sum(F.when(F.col("from_ledger"), 1).otherwise(0)).alias("saved"),
            F.sum(F.when(F.col("claims") > 1, 1).otherwise(0)).alias("taken_over"),
            F.percentile_approx(took, list(_SHARES)).alias("took"),
            F.max(took).alias("longest"),
            F.min("started").alias("first"),
            F.max("ended").alias("last"),
        )
        .orderBy("pass")
        .collect()
    )
    return [
        {
            "pass": one["pass"],
            "rows": one.rows,
            "results": one.results,
            "failed": one.rows - one.results,
            "calls": one.calls,
            "saved": one.saved,
            "taken_over": one.taken_over,
            "latency": {
                **{f"p{round(100 * share)}": value for share, value in zip(_SHARES, one.took, strict=True)},
                "most": one.longest,
            },
            "first": one["first"],
            "last": one["last"],
        }
        for one in groups
    ]
