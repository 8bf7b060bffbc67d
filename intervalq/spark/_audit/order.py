"""The checks that need order: gaps between starts, and slots against tickets. The one large shuffle.

Every queue's time is cut into blocks. A start goes to the block of its instant and to that of its slot, which
are the same except at edges, so that each block can be sorted by itself: once by starts, once by slots.
The last few starts of a block also go to the next one, as a *halo* that is looked back at and not judged.
What remains at the edges, at most two rows for each block, is joined afterwards by `edges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from intervalq.spark._audit.buckets import GAP_BUCKETS, bucket
from intervalq.spark._audit.kinds import KINDS
from intervalq.spark._audit.rows import ROUNDING, flags_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLOT: Final = 1
START: Final = 2
HALO: Final = 4

FIRST_START: Final = 1 << len(KINDS)
LAST_START: Final = FIRST_START << 1
FIRST_SLOT: Final = FIRST_START << 2
LAST_SLOT: Final = FIRST_START << 3
EDGES: Final = FIRST_START | LAST_START | FIRST_SLOT | LAST_SLOT
"""Marks of the rows at a block's edges, beside the kinds in the mask: each is in a group of its own."""

REST: Final = 60.0
"""Seconds after which an idle queue may have been forgotten, so that tickets start over (`IDLE_KEPT`)."""

_MICRO: Final = 1e-6


def _entries(reach: int, *, slots: bool) -> Column:
    """The blocks that a row belongs to, and its role in each."""
    at, iv, length = F.col("at"), F.col("iv"), F.col("block_s")
    start = F.floor(at / length)
    slot = F.floor(F.when(F.col("has_slot"), F.col("due")) / length) if slots else F.lit(None).cast("bigint")
    after = F.floor((at + iv * reach) / length)

    def entry(block: Column, role: int) -> Column:
        return F.struct(block.alias("block"), F.lit(role).alias("role"))

    return F.array_compact(
        F.array(
            F.when(start == slot, entry(start, START | SLOT)).when(start.isNotNull(), entry(start, START)),
            F.when(slot.isNotNull() & F.coalesce(start != slot, F.lit(True)), entry(slot, SLOT)),
            F.when(after > start, entry(start + 1, HALO)),
        )
    )


def judge_order(
    starts: DataFrame, live: set[str], *, tolerance: Column, burst: int, reach: int, partitions: int
) -> DataFrame:
    """Group by queue, block, bin, flags and bucket of the gap: counts, sums, and the place of the first row.

    A slot from which on the queue's tickets start over is in a group of its own, with its instant.

    Args:
        starts: the starts of the result of `placed`.
        live: names of the kinds to look for.
        tolerance: how far from its slot a start may be, seconds.
        burst: starts that may come at once.
        reach: over how many starts the rate is computed; a block has at least twice as many.
        partitions: of the shuffle.
    """
    slots = bool(live & {"slot_shared", "slots_close", "slot_twice", "order_inverted"})
    rows = starts.where(F.col("at").isNotNull() | F.col("has_slot"))
    rows = rows.select(
        "q",
        "iv",
        "at",
        "due",
        F.when(F.col("ticket") > 0, F.col("ticket")).alias("ticket"),
        F.xxhash64("key").alias("key_hash") if "retry_same_slot" in live else F.lit(0).alias("key_hash"),
        "attempt",
        "bin",
        F.explode(_entries(reach, slots=slots)).alias("entry"),
    )
    rows = rows.select("*", "entry.block", "entry.role").drop("entry")
    rows = rows.repartition(partitions, "q", "block")
    judged = _by_slot(_by_start(rows, reach), slots=slots)
    checks = _checks(tolerance, burst)
    edges = F.lit(0).cast("bigint")
    for mark, name in (
        (FIRST_START, "first_start"),
        (LAST_START, "last_start"),
        (FIRST_SLOT, "first_slot"),
        (LAST_SLOT, "last_slot"),
    ):
        edges = edges.bitwiseOR(F.when(F.col(name), F.lit(mark)).otherwise(F.lit(0)).cast("bigint"))
    judged = judged.where(F.col("role") != HALO).select(
        "q",
        "block",
        "bin",
        "role",
        "at",
        "due",
        "ticket",
        "gap",
        F.when(F.col("skipped") > 0, F.col("skipped") - 1).alias("unused"),
        flags_of(checks, live).bitwiseOR(edges).alias("flags"),
        bucket(F.col("gap") / F.col("iv"), each=GAP_BUCKETS).alias("bucket"),
        F.when(checks["queue_restarted"], F.col("due")).alias("restarted"),
    )
    where = F.coalesce("at", "due")
    return judged.groupBy("q", "block", "bin", "flags", "bucket", "restarted").agg(
        F.sum(F.when(F.col("role").bitwiseAND(START) > 0, 1).otherwise(0)).alias("starts"),
        F.sum(F.when(F.col("role").bitwiseAND(SLOT) > 0, 1).otherwise(0)).alias("slots"),
        F.sum("gap").alias("gap"),
        F.min("gap").alias("gap_least"),
        F.max("gap").alias("gap_most"),
        F.sum("unused").alias("unused"),
        F.min(where).alias("at"),
        F.min("due").alias("due"),
        F.min_by("ticket", where).alias("ticket"),
    )


def _by_start(rows: DataFrame, reach: int) -> DataFrame:
    """Compare each start with the one before it: starts and halos come first, in order."""
    starts = F.col("role").bitwiseAND(START | HALO) > 0
    order = Window.partitionBy("q", "block").orderBy(F.when(starts, 0).otherwise(1), "at", "due", "ticket")
    mine = F.col("role").bitwiseAND(START) > 0
    before = F.lag("at").over(order)
    return rows.withColumns(
        {
            "gap": F.when(mine, F.col("at") - before),
            "due_before": F.when(mine, F.lag("due").over(order)),
            "span": F.when(mine, F.col("at") - F.lag("at", reach).over(order)),
            "first_start": mine & before.isNull(),
            "last_start": mine & F.coalesce(F.lead("role").over(order).bitwiseAND(START) == 0, F.lit(True)),
        }
    ).withColumn("most_span", F.lit(float(reach)) * F.col("iv"))


def _by_slot(rows: DataFrame, *, slots: bool) -> DataFrame:
    """Compare each slot with the one before it: rows with a slot come first, in order."""
    nothing = {"due_step": "double", "skipped": "bigint", "same_key": "boolean"}
    if not slots:
        false = dict.fromkeys(("first_slot", "last_slot", "restarted"), F.lit(False))
        return rows.withColumns({name: F.lit(None).cast(kind) for name, kind in nothing.items()} | false)
    mine = F.col("role").bitwiseAND(SLOT) > 0
    order = Window.partitionBy("q", "block").orderBy(F.when(mine, 0).otherwise(1), "due", "ticket", "at")
    key, attempt = F.lag("key_hash").over(order), F.lag("attempt").over(order)
    rows = rows.withColumns(
        {
            "due_step": F.when(mine, F.col("due") - F.lag("due").over(order)),
            "skipped": F.when(mine, F.col("ticket") - F.lag("ticket").over(order)),
            "same_key": (F.col("key_hash") == key) & (F.col("attempt") != attempt),
            "first_slot": mine & F.lag("due").over(order).isNull(),
            "last_slot": mine & F.coalesce(F.lead("role").over(order).bitwiseAND(SLOT) == 0, F.lit(True)),
        }
    )
    anew = (F.col("skipped") < 0) & ((F.col("due_step") >= REST) | (F.col("ticket") == 1))
    return rows.withColumn("restarted", anew)


def _checks(tolerance: Column, burst: int) -> dict[str, Column]:
    iv, step, skipped = F.col("iv"), F.col("due_step"), F.col("skipped")
    shared = step < ROUNDING
    retried = F.coalesce(F.col("same_key"), F.lit(False))
    again = F.coalesce(skipped == 0, F.lit(False))
    strict = burst == 1
    return {
        "gap_short": F.lit(strict) & (F.col("gap") < F.least(iv * 0.9, iv - tolerance) - ROUNDING),
        # A late start takes no more than the tolerance from the gap, and the end of a range that moved takes
        # as much again. Other checks may find one start too many.
        "crowded": F.col("span") < F.col("most_span") - iv * burst - 2 * tolerance - ROUNDING,
        "order_inverted": F.col("due_before") > F.col("due") + (0 if strict else iv * burst) + ROUNDING,
        "retry_same_slot": shared & again & retried,
        "slot_twice": shared & again & ~retried,
        "slot_shared": F.lit(strict) & shared & ~again,
        "ticket_twice": ~shared & again,
        # The last slots of a range may have moved by up to the tolerance.
        "slots_close": F.lit(strict) & ~shared & (step < iv - tolerance - _MICRO - ROUNDING),
        "slot_order": (skipped < 0) & ~F.col("restarted") & ~shared,
        "queue_restarted": F.col("restarted") & ~shared,
    }
