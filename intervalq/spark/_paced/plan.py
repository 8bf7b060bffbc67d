"""How many tasks a pace needs, computed before a job runs: most jobs have far too many."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from intervalq import IntervalQueue
from intervalq._queue.options import Duration, whole
from intervalq._spec import parse
from intervalq._spec.record import NO_PACE
from intervalq.errors import InvalidOption, QueueNotFound, short
from intervalq.rules import STARTS
from intervalq.spark._paced.partition import STAGE
from intervalq.spark._paced.progress import seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STEP: Final = re.compile(r"([ :+-]*)(?:\*\(\d+\) *)?([A-Za-z].*)")
"""A line of a physical plan: marks of its depth, that of generated code, and the step."""

_BESIDE: Final = 0.01
"""Seconds that a row takes beside its call on a busy machine: its slot, its claim and its record."""

_WORK: Final = 0.001
"""Seconds of a processor that a row takes with an HTTP client, its queue and its ledger."""

_PACED: Final = re.compile(rf"\w*MapInArrow {STAGE}\(")
"""How the step of a paced stage begins; its name may also be in a column, or in a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a paced stage over a DataFrame needs. Times are in seconds."""

    rows: int
    rate: float | None
    """Starts per second; None: the queue has only limits of what calls cost, which isn't known."""
    in_flight: float | None
    """Calls in flight when the pace is reached: rate times latency."""
    tasks_needed: int
    """1 if there is no rate."""
    partitions: int
    task_cpus: float
    seconds: float | None
    """How long the starts take at the queue's pace, if nobody else uses the queue."""
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        here = f"the DataFrame has {self.partitions:,} partitions"
        if self.rate is None or self.seconds is None:
            lines = [f"{self.rows:,} rows: the queue has no interval, only limits of what calls cost", here]
        else:
            lines = [
                f"{self.rows:,} rows at {self.rate:,.3g} starts/s: {_time(self.seconds)}",
                f"{self.in_flight:,.3g} calls in flight: {self.tasks_needed} tasks needed, {here}",
            ]
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def plan(
    df: DataFrame,
    queue: IntervalQueue,
    *,
    latency: Duration,
    concurrency: int = 16,
    result: DataFrame | None = None,
) -> Plan:
    """What it takes to call each row at the queue's pace, and what is in the way. This runs a counting job.

    Args:
        df: the DataFrame for `paced`.
        queue: its queue; one without an interval must exist in its store. Its limits of starts count, too;
            those of other units don't, because costs aren't known.
        latency: how long a call takes.
        concurrency: as for `paced`.
        result: the DataFrame that is to be written or shown, made from what `paced` gave: warns of what comes
            after `paced` and pays for rows that it drops, such as `where` and `limit`. Nothing is called.

    Raises:
        InvalidOption: `df` has a stage of `paced` itself, so that counting its rows would call them; or an
            option is wrong.
        QueueNotFound, StoreError: the queue's record can't be read.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it; an extra

    took = parse.duration(latency, what="latency") / 1e6
    concurrency = whole("concurrency", concurrency, 1, 10_000)
    if _is_paced(_explained(df)):
        raise InvalidOption(
            "df= is made by paced() already, so counting its rows would call them: give the DataFrame before "
            "paced(), and this one as result="
        )
    interval = _interval(queue)
    counts = df.select(F.lit(1).alias("one")).mapInArrow(_counted, "rows long")
    counted, partitions = counts.agg(F.sum("rows"), F.count("*")).collect()[0]
    in_flight = None if interval is None else took / interval
    needed = 1 if interval is None else _needed(interval, took, concurrency)
    seconds = None if interval is None else counted * interval
    cpus = float(_setting(df.sparkSession, "spark.task.cpus", "1"))
    return Plan(
        rows=counted,
        rate=None if interval is None else 1 / interval,
        in_flight=in_flight,
        tasks_needed=needed,
        partitions=partitions,
        task_cpus=cpus,
        seconds=seconds,
        warnings=(
            *_warnings(df.sparkSession, None if interval is None else needed, partitions, cpus, seconds or 0),
            *([] if result is None else _paid_and_dropped(_explained(result))),
        ),
    )


def _explained(df: DataFrame) -> str:
    """Spark's physical plan, as text."""
    printed = io.StringIO()
    with redirect_stdout(printed):  # Spark Connect has no other way
        df.explain()
    return printed.getvalue()


def _is_paced(tree: str) -> bool:
    """Whether a physical plan has a paced stage."""
    steps = map(_STEP.match, tree.splitlines())
    return any(step is not None and _PACED.match(step[2]) for step in steps)


def _paid_and_dropped(tree: str) -> list[str]:
    """Warnings about the steps of a physical plan that come after a paced stage, and waste calls.

    Steps after an aggregation drop its groups, to which each call has contributed.
    """
    found: list[str] = []
    above: list[tuple[int, str]] = []
    for line in tree.splitlines():
        if (step := _STEP.match(line)) is None:
            continue
        depth, text = step.end(1), step[2]
        while above and above[-1][0] >= depth:
            above.pop()
        if _PACED.match(text):
            parents = takewhile(
                lambda one: "Aggregate" not in one.split("(")[0], (one for _, one in above[::-1])
            )
            found += [warning for parent in parents for warning in _wasteful(parent)]
        above.append((depth, text))
    return list(dict.fromkeys(found))


def _wasteful(step: str) -> list[str]:
    shown = short(re.sub(r"#\d+L?", "", step))  # without the numbers of columns
    if re.match(r"Filter|Sample|[A-Za-z]*Limit|TakeOrdered|[A-Za-z]*Join .*\bLeft(Semi|Anti)\b", step):
        return [f"after paced, {shown} drops rows that were called and paid for: drop them before"]
    if re.match(r"Sort \[.*\], true", step):
        return [
            f"after paced, {shown} reads its input twice, and calls it twice without a ledger: write first"
        ]
    return []


def _counted(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition; those without rows count as partitions, too."""
    import pyarrow as pa  # noqa: PLC0415 - runs on executors

    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _needed(interval: float, took: float, concurrency: int) -> int:
    """Tasks for a pace: each has this many calls in flight, and one processor for everything else."""
    return max(1, math.ceil((took + _BESIDE) / interval / concurrency), math.ceil(_WORK / interval))


def _interval(queue: IntervalQueue) -> float | None:
    """Seconds between two starts; None: there are only limits of other units.

    Raises:
        InvalidOption, StoreError.
    """
    options = queue._options  # noqa: SLF001 - its own package
    paces = [limit.window / limit.most for limit in options.limits if limit.unit == STARTS]
    if options.interval is not None and not (options.limits and options.interval == NO_PACE):
        paces.append(options.interval)
    if paces:
        return max(paces) / 1e6
    if options.limits:
        return None
    try:
        state = seen(queue)
    except QueueNotFound as missing:
        raise InvalidOption(f"{queue!r} has no interval and isn't in its store: give it one") from missing
    return state.interval if state.has_pace else None


def _setting(spark: SparkSession, name: str, otherwise: str) -> str:
    """A setting of Spark; on Connect, some can't be read, and count as not set."""
    try:
        return spark.conf.get(name, otherwise) or otherwise
    except Exception:  # noqa: BLE001 - whatever the server thinks of the name
        return otherwise


def _warnings(
    spark: SparkSession, needed: int | None, partitions: int, cpus: float, seconds: float
) -> list[str]:
    found: list[str] = []
    if needed is not None and partitions > 4 * needed:
        found.append(
            f"you need {needed} tasks, not {partitions:,}: the others hold a Spark slot and wait; call "
            f"df.coalesce({needed}) first"
        )
    elif needed is not None and partitions < needed:
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
