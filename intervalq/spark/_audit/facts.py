"""The first look at a log: how large it is, its queues and their intervals, its hosts and their clocks.

One scan with a negligible shuffle, and a sample. The result determines how the log is divided into blocks of
time for the pass that needs order, and into bins for the charts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from intervalq.errors import InvalidInterval
from intervalq.spark._audit.clocks import HostClock, clocks_of, corrected, window_length
from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAY: Final = 86_400
YEAR_2000: Final = 946_684_800.0
GUESS_FROM: Final = 10_000
"""The number of tickets from which a queue's interval is guessed."""
_BINS: Final = (60, 600, 3_600, 21_600, DAY)
_MAX_BINS: Final = 1_500


@dataclass(slots=True)
class QueueFacts:
    """What is known about one queue, and how its rows are divided into blocks."""

    number: int
    name: str
    rows: int = 0
    first: float | None = None
    """The first of its starts or slots that is a plausible instant; `last` likewise."""
    last: float | None = None
    interval: float = 0.0
    guessed: bool = False
    block: float = 0.0
    """The length of a block, in seconds."""


@dataclass(slots=True)
class Facts:
    """The first look."""

    known: set[str]
    rows: int
    queues: dict[str, QueueFacts]
    groups: list[dict[str, Any]]
    """By queue, day, shard and host: the number of starts of each kind, and the hash of queue and host."""
    bin: int
    """Seconds of a bin of time: a minute, unless the log is too long for that."""
    highest_attempt: int
    refusals: int
    replays: int
    clocks: list[HostClock] = field(default_factory=list)
    window: float = 60.0
    """The length of the windows by which clocks are judged, in seconds."""

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last plausible instant; zeros: there is none."""
        firsts = [queue.first for queue in self.queues.values() if queue.first is not None]
        lasts = [queue.last for queue in self.queues.values() if queue.last is not None]
        return min(firsts, default=0.0), max(lasts, default=0.0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Values that are not instants are left out of all checks that need an order."""

    earliest: float
    latest: float

    def sane(self, instant: Column) -> Column:
        """Whether it is an instant; null if it is missing."""
        return instant.between(self.earliest, self.latest)


def is_start() -> Column:
    """Whether a call was made: not for rows from the ledger, nor for those that were given up before it."""
    return ~F.coalesce(F.col("replayed"), F.lit(False)) & (F.coalesce(F.col("calls"), F.lit(1)) > 0)


def who() -> Column:
    """A hash of a row's queue and host, by which arrays know them."""
    return F.xxhash64(F.coalesce("queue", F.lit("")), F.coalesce("host", F.lit("")))


def first_look(log: DataFrame, known: set[str], bounds: Bounds) -> Facts:
    """Scan the log once."""
    due, started = F.col("due"), F.col("started")
    instant = F.when(bounds.sane(due), due).when(bounds.sane(started), started)
    start = is_start()
    found = log.groupBy(
        F.coalesce("queue", F.lit("")).alias("queue"),
        F.floor(instant / DAY).alias("day"),
        F.coalesce("shard", F.lit("")).alias("shard"),
        F.coalesce("host", F.lit("")).alias("host"),
    ).agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.when(start & started.isNotNull(), 1).otherwise(0)).alias("starts"),
        F.sum(F.when(~start, 1).otherwise(0)).alias("replays"),
        F.sum(F.when(start & F.col("refused"), 1).otherwise(0)).alias("refused"),
        F.sum(F.when(start & (F.col("status") != "ok"), 1).otherwise(0)).alias("failed"),
        F.sum(
            F.when(
                start & (F.greatest("attempt", "calls") > 1), F.coalesce(F.col("calls") - 1, F.lit(1))
            ).otherwise(0)
        ).alias("retries"),
        F.max("attempt").alias("attempt"),
        F.min(F.when(start, instant)).alias("first"),
        F.max(F.when(start, instant)).alias("last"),
        # Keys are most of a log's bytes, so one is looked for instead.
        *(F.count(name).alias(f"has_{name}") for name in sorted(known - {"key"})),
    )
    groups = list(rows_of(found.withColumn("who", who())))
    queues: dict[str, QueueFacts] = {}
    valued: set[str] = set()
    for group in groups:
        queue = queues.setdefault(group["queue"], QueueFacts(len(queues), group["queue"]))
        queue.rows += group["rows"]
        if group["first"] is not None:
            queue.first = min(group["first"], math.inf if queue.first is None else queue.first)
            queue.last = max(group["last"], -math.inf if queue.last is None else queue.last)
        valued |= {name for name in known - {"key"} if group[f"has_{name}"]}
    if "key" in known and not log.where(F.col("key").isNotNull()).select("key").isEmpty():
        valued.add("key")
    return Facts(
        # A column that is null in every row says nothing: starts without a queue have no tickets.
        known=valued,
        rows=sum(group["rows"] for group in groups),
        queues=queues,
        groups=groups,
        bin=_bin(queues.values()),
        highest_attempt=max((group["attempt"] or 0 for group in groups), default=0),
        refusals=sum(group["refused"] for group in groups),
        replays=sum(group["replays"] for group in groups),
    )


def _bin(queues: Any) -> int:  # noqa: ANN401 - the values of a dict
    """The shortest bin for which the driver can hold all bins."""
    for length in _BINS:
        if (
            sum((queue.last - queue.first) // length + 1 for queue in queues if queue.first is not None)
            <= _MAX_BINS
        ):
            return length
    return DAY


def set_intervals(
    log: DataFrame, facts: Facts, interval: float | Mapping[str, float] | None, bounds: Bounds
) -> None:
    """Give every queue its interval: the given one, or one guessed from its first slots.

    Raises:
        InvalidInterval: a queue has none, and too few slots to guess it.
    """
    unknown = []
    for queue in facts.queues.values():
        given = interval.get(queue.name) if isinstance(interval, Mapping) else interval
        if given is None:
            unknown.append(queue)
        else:
            queue.interval = given
    if not unknown:
        return
    guesses = _guessed(log, bounds) if {"ticket", "due"} <= facts.known else {}
    for queue in unknown:
        guess = guesses.get(queue.name)
        if guess is None and queue.rows > 1:
            raise InvalidInterval(
                queue.name, "is a queue whose slots don't show its interval: give it with interval="
            )
        # A single start can't be too close to another one.
        queue.interval, queue.guessed = guess or 1.0, True


def _guessed(log: DataFrame, bounds: Bounds) -> dict[str, float]:
    """For each queue, the time per ticket in a busy part of its first tickets: pauses only make it longer."""
    rows = log.where(is_start() & bounds.sane(F.col("due")) & (F.col("ticket") > 0))
    rows = rows.select(F.coalesce("queue", F.lit("")).alias("queue"), "ticket", "due")
    first = rows.groupBy("queue").agg(F.min("ticket").alias("least")).withColumnRenamed("queue", "of")
    rows = rows.join(F.broadcast(first), F.col("queue") == F.col("of"))
    rows = rows.where(F.col("ticket") < F.col("least") + GUESS_FROM)
    order = Window.partitionBy("queue").orderBy("due", "ticket")
    tickets, seconds = F.col("ticket") - F.lag("ticket").over(order), F.col("due") - F.lag("due").over(order)
    steps = rows.select("queue", tickets.alias("tickets"), seconds.alias("seconds"))
    steps = steps.where("tickets > 0 and seconds > 0")
    found = steps.groupBy("queue").agg(
        F.percentile_approx(F.col("seconds") / F.col("tickets"), 0.1).alias("step")
    )
    # Whole microseconds, like the intervals of queues, because the difference of two instants is less exact.
    return {row["queue"]: max(1e-6, round(row["step"], 6)) for row in rows_of(found)}


def set_blocks(facts: Facts, size: int, *, least: int) -> None:
    """Divide each queue's time into blocks of about `size` starts, with a limit on the number of blocks.

    A log with far more starts than its interval allows has shorter blocks, but none shorter than `least`
    intervals.
    """
    for queue in facts.queues.values():
        span = 0.0 if queue.first is None or queue.last is None else queue.last - queue.first
        length = size * queue.interval
        if span > 0:
            length = max(min(length, size * span / queue.rows), least * queue.interval)
        queue.block = max(length, span / (10 * queue.rows / size + 10))


def set_clocks(log: DataFrame, facts: Facts, bounds: Bounds, piece: float) -> None:
    """Find how far each host's clock is off, at any time. `piece`: the shortest window, in seconds."""
    if not {"host", "due", "started"} <= facts.known:
        return
    # A clock that is far off would make its times look absurd, so only slots must be plausible here.
    rows = log.where(is_start() & bounds.sane(F.col("due")) & F.col("started").between(0, 2 * bounds.latest))
    rows = rows.select(
        F.coalesce("host", F.lit("")).alias("host"), "due", (F.col("started") - F.col("due")).alias("late")
    )
    first, last = facts.span
    starts: Counter[str] = Counter()
    for group in facts.groups:
        starts[group["host"]] += group["starts"]
    facts.window = window_length(len(starts), last - first, piece)
    facts.clocks = clocks_of(rows, starts, facts.window)


def placed(spark: SparkSession, log: DataFrame, facts: Facts, bounds: Bounds) -> DataFrame:
    """The rows to be judged, with their queue's number and figures, on corrected times.

    Columns beside those of the log: `q`, `iv` (interval), `block_s`, `at` and `over` (start and end on the
    store's clock; null: not a plausible time), `has_slot`, `bin`.
    """
    queues = spark.createDataFrame(
        [(queue.name, queue.number, queue.interval, queue.block) for queue in facts.queues.values()],
        "of string, q int, iv double, block_s double",
    )
    rows = log.join(F.broadcast(queues), F.coalesce("queue", F.lit("")) == F.col("of"))
    rows, offset = corrected(spark, rows, facts.clocks, facts.window, facts.span)
    at, over = F.col("started") - offset, F.col("ended") - offset
    rows = rows.withColumns(
        {
            "at": F.when(bounds.sane(at), at),
            "over": F.when(bounds.sane(over), over),
            "has_slot": F.coalesce(bounds.sane(F.col("due")), F.lit(False)) & F.col("started").isNotNull(),
        }
    )
    instant = F.when(bounds.sane(F.col("due")), F.col("due")).otherwise(F.col("at"))
    return rows.withColumn("bin", F.floor(instant / facts.bin))
