"""The rows of hashes that were found: another scan, only if there are any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.scan.one_pass import hashed
from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_examples(log: DataFrame, groups: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The groups of keys, each with the rows of its examples."""
    wrong = list(groups)
    if not wrong:
        return
    hashes = {group["low"] for group in wrong} | {group["high"] for group in wrong}
    shown = (
        log.withColumn("hash", hashed())
        .where(F.col("hash").isin(*hashes))
        .groupBy("hash")
        .agg(
            F.max("queue").alias("queue"),
            F.max("key").alias("key"),
            F.max("ticket").alias("ticket"),
            F.max_by(F.coalesce("due", "started"), "ticket").alias("at"),
        )
    )
    named = {row["hash"]: row for row in rows_of(shown)}
    for group in wrong:
        examples = [named[each] for each in sorted({group["low"], group["high"]}) if each in named]
        yield {**group, "examples": examples}
