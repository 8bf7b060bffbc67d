"""The checks of lasting states: cool-downs, and the number of running jobs. Only if requested.

Each is a sum or a maximum over time, computed in blocks of time. What lasts beyond a block's edge (a running
job, a cool-down) is copied to every block that it reaches into, so that blocks are independent of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MAX_BLOCKS: Final = 1_000
"""The maximum number of blocks that one row extends into: an end in the far future is a mistake."""


def _block(instant: Column) -> Column:
    return F.floor(instant / F.col("block_s"))


def _blocks(first: Column, last: Column) -> Column:
    return F.sequence(first, F.least(last, first + _MAX_BLOCKS))


def cool_downs(starts: DataFrame, grace: float) -> DataFrame:
    """Starts during the cool-down of a rejection, by queue and bin.

    Args:
        starts: the starts of the result of `placed`.
        grace: seconds after a rejection's arrival in which others can't know of it.
    """
    refused = starts.where(F.col("refused") & (F.col("retry_after") > grace) & F.col("at").isNotNull())
    arrival = F.coalesce("over", "at")
    refused = refused.select(
        "q", "block_s", (arrival + grace).alias("at"), (arrival + F.col("retry_after")).alias("until")
    )
    refused = refused.withColumn("block", F.explode(_blocks(_block(F.col("at")), _block(F.col("until")))))
    refused = refused.select(
        "q",
        "block",
        # In a later block it lasts from the block's beginning.
        F.greatest(F.col("at"), F.col("block") * F.col("block_s")).alias("at"),
        "until",
        F.lit(None).cast("bigint").alias("ticket"),
        F.lit(None).cast("bigint").alias("bin"),
    )
    # Only blocks with a cool-down are examined, because refusals are few, or the log is short.
    some = refused.select("q", "block").distinct()
    near = starts.where(F.col("at").isNotNull()).withColumn("block", _block(F.col("at")))
    near = near.join(F.broadcast(some), ["q", "block"], "left_semi")
    near = near.select("q", "block", "at", F.lit(None).cast("double").alias("until"), "ticket", "bin")
    order = Window.partitionBy("q", "block").orderBy("at", F.col("until").desc_nulls_last())
    rest = F.max("until").over(order.rowsBetween(Window.unboundedPreceding, -1))
    events = near.unionByName(refused).withColumn("rest", rest)
    events = events.where(F.col("until").isNull() & (F.col("at") < F.col("rest")))
    return events.groupBy("q", "bin").agg(
        F.count(F.lit(1)).alias("rows"), F.min("at").alias("at"), F.min_by("ticket", "at").alias("ticket")
    )


def running(starts: DataFrame, most: int) -> DataFrame:
    """By queue and bin: the maximum of running jobs, and the starts that raised it above `most`.

    A job with no end isn't counted as running.
    """
    at, over, length = F.col("at"), F.col("over"), F.col("block_s")
    rows = starts.where(at.isNotNull() & (over > at))
    first, last = _block(at), _block(over)

    def event(block: Column, instant: Column, step: int, *, start: bool) -> Column:
        return F.struct(
            block.alias("block"),
            instant.alias("at"),
            F.lit(step).alias("step"),
            F.lit(start).alias("start"),
        )

    carried = F.transform(
        F.when(last > first, _blocks(first + 1, last)),
        lambda block: event(block, block.cast("double") * length, 1, start=False),
    )
    both = F.array(event(first, at, 1, start=True), event(last, over, -1, start=False))
    events = rows.select(
        "q", "bin", "ticket", F.explode(F.concat(both, F.coalesce(carried, F.array()))).alias("e")
    )
    events = events.select("q", "bin", "ticket", "e.block", "e.at", "e.step", "e.start")
    # At one instant, ends come first: a job that begins there finds the place free.
    order = Window.partitionBy("q", "block").orderBy("at", "step", "ticket")
    events = events.withColumn("running", F.sum("step").over(order.rowsBetween(Window.unboundedPreceding, 0)))
    over_it = F.col("running") > most
    return (
        events.where("start")
        .groupBy("q", "bin")
        .agg(
            F.sum(F.when(over_it, 1).otherwise(0)).alias("rows"),
            F.max("running").alias("peak"),
            F.min(F.when(over_it, F.col("at"))).alias("at"),
            F.min_by("ticket", F.when(over_it, F.col("at"))).alias("ticket"),
        )
    )
