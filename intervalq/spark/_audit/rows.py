"""The checks of single rows, and lateness: one scan, with a negligible shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.buckets import LATE_BUCKETS, bucket
from intervalq.spark._audit.facts import DAY, Bounds
from intervalq.spark._audit.kinds import BITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROUNDING = 5e-7
"""Half a microsecond: slots are whole microseconds, but seconds since 1970 are not exact as doubles."""


def flags_of(checks: dict[str, Column], live: set[str]) -> Column:
    """A mask of the kinds whose check is true; null is false. Kinds that are not live cost nothing."""
    masks = [
        F.when(check, F.lit(1 << BITS[name])).otherwise(F.lit(0)).cast("bigint")
        for name, check in checks.items()
        if name in live
    ]
    total: Column = F.lit(0).cast("bigint")
    for mask in masks:
        total = total.bitwiseOR(mask)
    return total


def judge_rows(
    starts: DataFrame, live: set[str], bounds: Bounds, *, tolerance: Column, burst: int
) -> DataFrame:
    """Group by queue, bin, lateness bucket and flags: count, lateness, and the place of the first row.

    Args:
        starts: the starts of the result of `placed`.
        live: names of the kinds to look for.
        bounds: the range of plausible times.
        tolerance: how far from its slot a start may be, seconds.
        burst: starts that may come at once, with slots of an idle time that lie that many intervals back.
    """
    due, started, ended, at = F.col("due"), F.col("started"), F.col("ended"), F.col("at")
    in_time = F.when(bounds.sane(due), at - due)
    # A start may be on the other side of midnight than its slot; either day is right.
    days = [F.floor(instant / DAY) for instant in (F.when(bounds.sane(due), due), at)]
    day = F.unix_date("day")
    absurd = [F.coalesce(~bounds.sane(instant), F.lit(False)) for instant in (due, started, ended)]
    checks = {
        "queue_missing": F.col("queue").isNull() | (F.col("queue") == ""),
        "key_missing": F.col("key").isNull(),
        "ticket_invalid": F.col("ticket").isNull() | (F.col("ticket") <= 0),
        "slot_missing": due.isNull(),
        "start_missing": started.isNull(),
        "end_missing": started.isNotNull() & ended.isNull(),
        "ended_before_start": bounds.sane(started) & bounds.sane(ended) & (ended < started - ROUNDING),
        "time_absurd": absurd[0] | absurd[1] | absurd[2],
        "day_wrong": at.isNotNull()
        & F.coalesce(day != days[0], F.lit(True))
        & F.coalesce(day != days[1], F.lit(True)),
        "start_early": in_time < -tolerance - ROUNDING,
        "start_late": in_time > tolerance + F.col("iv") * (burst - 1) + ROUNDING,
    }
    where = F.coalesce(F.when(bounds.sane(due), due), at)
    rows = starts.select(
        "q",
        "bin",
        "ticket",
        in_time.alias("late"),
        where.alias("where"),
        bucket(in_time, each=LATE_BUCKETS).alias("bucket"),
        flags_of(checks, live).alias("flags"),
    )
    return rows.groupBy("q", "bin", "bucket", "flags").agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("late").alias("late"),
        F.min("late").alias("late_least"),
        F.max("late").alias("late_most"),
        F.min("where").alias("at"),
        F.min_by("ticket", "where").alias("ticket"),
    )
