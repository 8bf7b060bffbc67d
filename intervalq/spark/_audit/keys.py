"""The checks by key: duplicate calls, and attempts. A shuffle of hashes, the second large step.

A hash has 64 bits: among 100 million keys, the chance that any two collide is 1 in 4,000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.facts import is_start
from intervalq.spark._audit.rows import flags_of
from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ATTEMPT: Final = ("number", "at", "over", "ticket")
"""The columns of an attempt, by which attempts of a key are in order."""


def judge_keys(
    log: DataFrame, live: set[str], *, attempts: bool, tolerance: Column, partitions: int
) -> Iterator[dict[str, Any]]:
    """By flags: the number of keys, the number of excess calls, and the rows of an example.

    Args:
        log: the result of `placed`, with replayed rows.
        live: names of the kinds to look for.
        attempts: whether any row is a later attempt; without, their columns needn't be shuffled.
        tolerance: seconds by which the times of two attempts may seem to overlap.
        partitions: of the shuffle.
    """
    hashed = F.xxhash64(F.coalesce("queue", F.lit("")), "key")
    replays = "replay_unknown" in live
    rows = log.where(F.col("key").isNotNull()).withColumns(
        {
            "hash": hashed,
            "call": is_start().cast("int"),
            # A start without a number counts as the first.
            "number": F.greatest(F.coalesce("attempt", F.lit(1)), F.lit(1)),
            # An attempt without a known end doesn't overlap with the next one.
            "over": F.coalesce("over", "at") - tolerance,
        }
    )
    columns = ["hash", *(["call"] if replays else []), *(_ATTEMPT if attempts else [])]
    narrow = rows.select(*columns) if replays else rows.where("call = 1").select(*columns)
    # Nearly every key is a group of its own, so adding up before the shuffle would save nothing.
    groups = narrow.repartition(partitions, "hash").groupBy("hash")
    call = F.col("call") if replays else F.lit(1)
    sums = [F.sum(call).cast("int").alias("calls"), F.count(F.lit(1)).alias("rows")]
    if attempts:
        sums.append(F.sort_array(F.collect_list(F.when(call == 1, F.struct(*_ATTEMPT)))).alias("all"))
    found = groups.agg(*sums)
    distinct = F.least(F.col("calls"), F.lit(1))
    if attempts:
        distinct = F.size(F.array_distinct(F.col("all.number")))
    checks = {"key_twice": F.col("calls") > distinct, "replay_unknown": F.col("calls") == 0}
    if attempts:
        checks["attempt_skipped"] = F.array_max("all.number") > distinct
        checks["attempt_order"] = _any_pair(lambda one, next_: next_["ticket"] < one["ticket"])
        checks["attempt_overlap"] = _any_pair(
            lambda one, next_: (next_["at"] > one["at"]) & (next_["at"] < one["over"])
        )
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
    wrong = list(rows_of(table))
    if not wrong:
        return
    # Only now is another scan worthwhile, to find which keys they are.
    named = _named(rows, {group["low"] for group in wrong} | {group["high"] for group in wrong})
    for group in wrong:
        examples = [named[each] for each in sorted({group["low"], group["high"]}) if each in named]
        yield {**group, "examples": examples}


def _any_pair(wrong: Callable[[Column, Column], Column]) -> Column:
    """Whether something is wrong with an attempt and the next one; not with copies of the same attempt."""
    every = F.col("all")
    pairs = F.zip_with(
        every,
        F.slice(every, 2, F.size(every)),
        lambda one, next_: F.coalesce((one["number"] < next_["number"]) & wrong(one, next_), F.lit(False)),
    )
    return F.exists(pairs, lambda pair: pair)


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
    return {row["hash"]: row for row in rows_of(shown)}
