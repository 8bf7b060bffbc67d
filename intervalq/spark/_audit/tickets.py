"""Tickets that were used again, however far away. Only where tickets and slots are not in the same order.

One such ticket makes two others look out of order, and all between them look unused. So the row that doesn't
belong where it is loses its ticket, and the order is judged without it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.edges import Edges
from intervalq.spark._audit.kinds import BITS, names
from intervalq.spark._audit.scan.order import EDGES
from intervalq.spark._audit.scan.rows import ROUNDING
from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ODD: Final = ("slot_order", "ticket_twice", "queue_restarted")
_MAX_ODD: Final = 1_000
"""Up to this many such tickets, their neighbours show which row is wrong; beyond, it is the later one."""
_NEAR: Final = 5
"""Intervals before and after a slot in which its neighbours are looked for, and as many again."""

Restarts = Mapping[int, list[float]]
"""When the tickets of a queue started over, by the queue's number."""

Slot = tuple[int, int, int, float]
"""Number of the queue, restarts before, ticket and instant of a slot."""


def out_of_order(
    ordered: DataFrame, intervals: dict[int, float], *, burst: int, tolerance: float | None
) -> Restarts | None:
    """When queues started over; None: all tickets are in the order of their slots, so none was used again.

    Args:
        ordered: the groups of the order.
        intervals, burst, tolerance: as for `Edges.join`.
    """
    mask = EDGES
    for kind in _ODD:
        mask |= 1 << BITS[kind]
    edges, odd, restarts = Edges(), False, defaultdict[int, list[float]](list)
    for group in rows_of(ordered.where(F.col("flags").bitwiseAND(F.lit(mask)) != 0)):
        edges.add(group)
        odd = odd or not set(_ODD).isdisjoint(names(group["flags"] & ~EDGES))
        if group["restarted"] is not None:
            restarts[group["q"]].append(group["restarted"])
    for queue, joined in edges.join(intervals, burst=burst, tolerance=tolerance):
        odd = odd or not set(_ODD).isdisjoint(joined.kinds)
        if "queue_restarted" in joined.kinds and joined.row.due is not None:
            restarts[queue].append(joined.row.due)
    return restarts if odd else None


def used_again(spark: SparkSession, starts: DataFrame, restarts: Restarts) -> DataFrame:
    """The slots (`q`, `ticket`, `due`) whose ticket belongs to another slot.

    Args:
        spark: the session.
        starts: the starts of the result of `placed`.
        restarts: the result of `out_of_order`.
    """
    table = spark.createDataFrame(
        [(queue, sorted(instants)) for queue, instants in restarts.items()], "of_q int, over array<double>"
    )
    rows = starts.where(F.col("has_slot") & (F.col("ticket") > 0)).select("q", "ticket", "due", "iv")
    rows = rows.join(F.broadcast(table), F.col("q") == F.col("of_q"), "left")
    past = F.filter("over", lambda at: at <= F.col("due"))
    rows = rows.withColumn("epoch", F.when(F.col("over").isNull(), 0).otherwise(F.size(past)))
    twice = (
        rows.groupBy("q", "epoch", "ticket")
        .agg(F.min("due").alias("first"), F.max("due").alias("last"))
        .where(F.col("last") - F.col("first") >= ROUNDING)
    )
    some = list(rows_of(twice.limit(_MAX_ODD + 1)))
    if len(some) > _MAX_ODD:
        later = rows.join(twice, ["q", "epoch", "ticket"]).where(F.col("due") - F.col("first") >= ROUNDING)
        return later.select("q", "ticket", "due").distinct()
    kind = "q int, epoch int, ticket bigint"
    few = spark.createDataFrame([(one["q"], one["epoch"], one["ticket"]) for one in some], kind)
    slots = rows.join(F.broadcast(few), ["q", "epoch", "ticket"]).select("q", "epoch", "ticket", "due", "iv")
    slots = slots.distinct()
    # Rows near these slots: a join by pieces of time, so that it needs no comparison of all with all.
    piece = F.floor(F.col("due") / (F.col("iv") * _NEAR))
    near = slots.select("q", F.explode(F.array(piece - 1, piece, piece + 1)).alias("piece")).distinct()
    line = rows.withColumn("piece", piece).join(F.broadcast(near), ["q", "piece"], "left_semi")
    found = misplaced(
        [(row["q"], row["epoch"], row["ticket"], row["due"]) for row in rows_of(slots)],
        [(row["q"], row["epoch"], row["ticket"], row["due"]) for row in rows_of(line)],
    )
    return spark.createDataFrame(list(found), "q int, ticket bigint, due double")


def misplaced(slots: Iterable[Slot], line: Iterable[Slot]) -> Iterator[tuple[int, int, float]]:
    """The slots whose ticket belongs to another slot: all but one of each ticket's.

    A ticket belongs to the slot where it lies between the tickets of its neighbours; if there are several
    such slots, or none, to the first one. Rows with the same instant are of the same slot.

    Args:
        slots: those of all tickets that have several.
        line: these and others near them.
    """
    of: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for queue, epoch, ticket, due in slots:
        of[queue, epoch, ticket].append(due)
    others: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for queue, epoch, ticket, due in line:
        if (queue, epoch, ticket) not in of:
            others[queue].append((due, ticket))
    for known in others.values():
        known.sort()
    for (queue, _, ticket), dues in of.items():
        dues.sort()
        mine = next((due for due in dues if _fits(others[queue], ticket, due)), dues[0])
        yield from ((queue, ticket, due) for due in dues if abs(due - mine) >= ROUNDING)


def _fits(line: list[tuple[float, int]], ticket: int, due: float) -> bool:
    place = bisect_left(line, (due, 0))
    before = line[place - 1][1] if place else 0
    after = line[place][1] if place < len(line) else ticket + 1
    return before < ticket < after


def without(starts: DataFrame, again: DataFrame) -> DataFrame:
    """The starts without the tickets of such slots."""
    named = again.select(*(F.col(name).alias(f"again_{name}") for name in ("q", "ticket", "due")))
    same = (
        (F.col("q") == F.col("again_q"))
        & (F.col("ticket") == F.col("again_ticket"))
        & (F.col("due") == F.col("again_due"))
    )
    rows = starts.join(named, same, "left")
    return rows.withColumn("ticket", F.when(F.col("again_q").isNull(), F.col("ticket")))


def by_bin(again: DataFrame, width: int) -> Iterator[dict[str, Any]]:
    """Such slots by queue and bin of time: their number, and the place of the first one."""
    groups = again.groupBy("q", F.floor(F.col("due") / width).alias("bin"))
    yield from rows_of(
        groups.agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("due").alias("at"),
            F.min_by("ticket", "due").alias("ticket"),
        )
    )
