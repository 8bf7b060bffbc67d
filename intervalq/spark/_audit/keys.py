"""The checks by key: duplicate calls, and attempts. A shuffle of hashes, the second large step.

A hash has 64 bits: among 100 million keys, the chance that any two collide is 1 in 4,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.facts import batches, is_start
from intervalq.spark._audit.rows import flags_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judge_keys(
    log: DataFrame, live: set[str], *, attempts: bool, partitions: int
) -> Iterator[dict[str, Any]]:
    """By flags: the number of keys, the number of excess calls, and the rows of an example.

    Args:
        log: all rows, replayed ones too.
        live: names of the kinds to look for.
        attempts: whether any row is a later attempt; without, their columns needn't be shuffled.
        partitions: of the shuffle.
    """
    hashed = F.xxhash64(F.coalesce("queue", F.lit("")), "key")
    replays = "replay_unknown" in live
    rows = log.where(F.col("key").isNotNull()).withColumns(
        {
            "hash": hashed,
            "call": is_start().cast("int"),
            # A start without a number counts as the first.
            "number": F.least(F.greatest(F.coalesce("attempt", F.lit(1)), F.lit(1)), F.lit(60)),
        }
    )
    columns = ["hash", *(["call"] if replays else []), *(["number", "ticket"] if attempts else [])]
    narrow = rows.select(*columns) if replays else rows.where("call = 1").select(*columns)
    # Nearly every key is a group of its own, so adding up before the shuffle would save nothing.
    groups = narrow.repartition(partitions, "hash").groupBy("hash")
    call = F.col("call") if replays else F.lit(1)
    one = F.when(call == 1, F.col("number")) if attempts else None
    sums = [F.sum(call).cast("int").alias("calls"), F.count(F.lit(1)).alias("rows")]
    if one is not None:
        sums += [
            F.bit_or(
                F.when(call == 1, F.call_function("shiftleft", F.lit(1).cast("bigint"), F.col("number")))
            ).alias("bits"),
            F.min_by("ticket", one).alias("first"),
            F.max_by("ticket", one).alias("last"),
        ]
    found = groups.agg(*sums)
    distinct = F.bit_count("bits") if attempts else F.least(F.col("calls"), F.lit(1))
    checks = {"key_twice": F.col("calls") > distinct, "replay_unknown": F.col("calls") == 0}
    if attempts:
        # Bits from 1 on without a gap: adding the lowest one carries through all of them.
        checks["attempt_skipped"] = (F.col("bits") + 2).bitwiseAND(F.col("bits")) != 0
        checks["attempt_order"] = F.col("last") < F.col("first")
    found = found.select(
        "hash", flags_of(checks, live).alias("flags"), (F.col("calls") - distinct).alias("extra")
    )
    table = (
        found.where("flags != 0")
        .groupBy("flags")
        .agg(
            F.count(F.lit(1)).alias("keys"),
            F.sum("extra").alias("extra"),
            F.min("hash").alias("low"),
            F.max("hash").alias("high"),
        )
    )
    wrong = list(batches(table.toArrow()))
    if not wrong:
        return
    # Only now is another scan worthwhile, to find which keys they are.
    named = _named(rows, {group["low"] for group in wrong} | {group["high"] for group in wrong})
    for group in wrong:
        examples = [named[each] for each in sorted({group["low"], group["high"]}) if each in named]
        yield {**group, "examples": examples}


def _named(rows: DataFrame, hashes: set[int]) -> dict[int, dict[str, Any]]:
    """A row of each hash."""
    shown = (
        rows.where(F.col("hash").isin(*hashes))
        .groupBy("hash")
        .agg(
            F.max("queue").alias("queue"),
            F.max("key").alias("key"),
            F.max("ticket").alias("ticket"),
            F.max_by(F.coalesce("due", "started"), "ticket").alias("at"),
        )
    )
    return {row["hash"]: row for row in batches(shown.toArrow())}
