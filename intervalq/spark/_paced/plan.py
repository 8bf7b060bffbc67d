"""How many tasks a pace needs, computed before a job runs: most jobs have far too many."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intervalq import IntervalQueue
from intervalq._queue.options import Duration, whole
from intervalq._spec import parse
from intervalq.errors import InvalidOption, QueueNotFound
from intervalq.spark._paced.progress import seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a paced stage over a DataFrame needs. Times are in seconds."""

    rows: int
    rate: float
    """Starts per second."""
    in_flight: float
    """Calls in flight when the pace is reached: rate times latency."""
    tasks_needed: int
    partitions: int
    task_cpus: float
    seconds: float
    """How long the starts take at the queue's pace, if nobody else uses the queue."""
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows at {self.rate:,.3g} starts/s: {_time(self.seconds)}",
            (
                f"{self.in_flight:,.3g} calls in flight: {self.tasks_needed} tasks needed, "
                f"the DataFrame has {self.partitions:,} partitions"
            ),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def plan(df: DataFrame, queue: IntervalQueue, *, latency: Duration, concurrency: int = 16) -> Plan:
    """What it takes to call each row at the queue's pace, and what is in the way. This runs a counting job.

    Args:
        df: the DataFrame for `paced`.
        queue: its queue; one without an interval must exist in its store.
        latency: how long a call takes.
        concurrency: as for `paced`.

    Raises:
        InvalidOption, QueueNotFound, StoreError.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it; an extra

    took = parse.duration(latency, what="latency") / 1e6
    concurrency = whole("concurrency", concurrency, 1, 10_000)
    interval = _interval(queue)
    counts = df.select(F.lit(1).alias("one")).mapInArrow(_counted, "rows long")
    counted, partitions = counts.agg(F.sum("rows"), F.count("*")).collect()[0]
    in_flight = took / interval
    needed = max(1, math.ceil(in_flight / concurrency))
    cpus = float(_setting(df.sparkSession, "spark.task.cpus", "1"))
    return Plan(
        rows=counted,
        rate=1 / interval,
        in_flight=in_flight,
        tasks_needed=needed,
        partitions=partitions,
        task_cpus=cpus,
        seconds=counted * interval,
        warnings=tuple(_warnings(df.sparkSession, needed, partitions, cpus, counted * interval)),
    )


def _counted(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition; those without rows count as partitions, too."""
    import pyarrow as pa  # noqa: PLC0415 - runs on executors

    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _interval(queue: IntervalQueue) -> float:
    options = queue._options  # noqa: SLF001 - its own package
    if options.interval is not None:
        return options.interval / 1e6
    try:
        return seen(queue).interval
    except QueueNotFound as missing:
        raise InvalidOption(f"{queue!r} has no interval and isn't in its store: give it one") from missing


def _setting(spark: SparkSession, name: str, otherwise: str) -> str:
    """A setting of Spark; on Connect, some can't be read, and count as not set."""
    try:
        return spark.conf.get(name, otherwise) or otherwise
    except Exception:  # noqa: BLE001 - whatever the server thinks of the name
        return otherwise


def _warnings(spark: SparkSession, needed: int, partitions: int, cpus: float, seconds: float) -> list[str]:
    found: list[str] = []
    if partitions > 4 * needed:
        found.append(
            f"you need {needed} tasks, not {partitions:,}: the others hold a Spark slot and wait; call "
            f"df.coalesce({needed}) first"
        )
    elif partitions < needed:
        found.append(
            f"{partitions} tasks keep too few calls in flight: use df.repartition({needed}), or more "
            "concurrency"
        )
    if cpus >= 1 and seconds > 3_600 and not found:
        found.append(
            "a task that waits holds a whole core: with spark.task.cpus=0.25 (Spark 4.3) four share one; for "
            "runs of many hours let Spark write tasks and `intervalq work` call"
        )
    if _setting(spark, "spark.python.worker.idleTimeoutSeconds", "0") not in {"", "0"} and (
        _setting(spark, "spark.python.worker.killOnIdleTimeout", "false") == "true"
    ):
        found.append(
            "spark.python.worker.killOnIdleTimeout ends workers that wait for slow slots: set it to false"
        )
    if _setting(spark, "spark.speculation", "false") == "true":
        found.append(
            "speculation starts copies of slow tasks, and paced tasks are slow on purpose: with a ledger a "
            "copy calls nothing twice, but it holds a Spark slot; with barrier=True there are no copies"
        )
    return found


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
