"""Publishes a pass into the tables: results, rejects and the log, by day. Repeating it changes nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from intervalq.pipeline._reasons import reasons_in
from intervalq.pipeline._requests import PRINT, REASON
from intervalq.pipeline._watch import Published
from intervalq.spark._compat import struct_of
from intervalq.spark._paced.trial import UNFIT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from intervalq.pipeline._layout import Pass
    from intervalq.pipeline._published import Tables
    from intervalq.pipeline._spec import Spec

_ROWS: Final = 1_000_000
"""The approximate number of rows per file."""


def publish(work: DataFrame, spec: Spec, tables: Tables, one: Pass, interval: float) -> Published:
    """Write a complete pass, from `work`, to the tables. It replaces what they have of the same pass."""
    published = _counted(work, one)
    files = math.ceil(sum([published.results, published.failed, *published.rejected.values()]) / _ROWS)
    own = [name for name in work.columns if not name.startswith("_iq")]
    rows = work.coalesce(max(1, files)).withColumns({"day": _day(one), "pass": F.lit(one.id)})
    called = rows.where(~_of_input())
    if published.results:
        results = called.where(~_has_failed()).select(*map(_quoted, own), "day", "pass")
        tables.replace("results", results, one.id)
    if published.results or published.failed:
        log = _unlogged(called.where(F.col("_iq.started").isNotNull()), tables, published)
        starts = _starts(spec.queue.name, log, interval)
        tables.replace("log", _numbered(starts, tables, one), one.id)
    if published.failed or published.rejected:
        gives = set(struct_of(spec.call.schema).fieldNames())
        rejects = _rejects(spec, rows, [name for name in own if name not in gives])
        tables.replace("rejects", rejects, one.id)
    return published


def _day(one: Pass) -> Column:
    """The day of a row's call, in UTC; for a row that was not called, the day of the pass."""
    number = F.floor(F.col("_iq.started") / 86_400).cast("int")
    return F.coalesce(F.date_from_unix_date(number), F.lit(one.day).cast("date"))


def _counted(work: DataFrame, one: Pass) -> Published:
    log = F.col("_iq")
    groups = (
        work.groupBy(REASON, _has_failed().alias("bad"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum(F.when(log.error.startswith(UNFIT), 1).otherwise(0)).alias("unfit"),
            F.sum(F.when(~log.replayed, log.calls).otherwise(0)).alias("calls"),
            F.sum(F.when(log.replayed, 1).otherwise(0)).alias("replayed"),
            F.min(F.when(~log.replayed, log.started)).alias("first"),
            F.max(F.when(~log.replayed, log.started)).alias("last"),
        )
        .collect()
    )
    called = [group for group in groups if group[REASON] is None]
    ended = sum(group.rows - group.replayed for group in called)
    times = [time for group in called for time in (group["first"], group["last"]) if time is not None]
    failed = sum(group.rows for group in called if group.bad)
    span = max(times) - min(times) if times else 0.0
    return Published(
        id=one.id,
        results=sum(group.rows for group in called if not group.bad),
        failed=failed,
        unfit=sum(group.unfit for group in called),
        reasons=reasons_in(work.where(~_of_input() & _has_failed())) if failed else (),
        rejected={group[REASON]: group.rows for group in groups if group[REASON] is not None},
        calls=sum(group.calls for group in called),
        replayed=sum(group.replayed for group in called),
        rate=(ended - 1) / span if span > 0 else None,
    )


def _unlogged(called: DataFrame, tables: Tables, published: Published) -> DataFrame:
    """The rows whose start isn't in the log. If an answer didn't fit, the pass of the call logged it."""
    if not published.replayed or not tables.has("log"):
        return called
    logged = (
        tables.read("log")
        .where(F.col("status") == "failed")
        .where(F.col("pass") != published.id)
        .select(F.col("key").alias("_logged_key"), F.col("started").alias("_logged_start"))
    )
    known = (F.col("_iq.key") == F.col("_logged_key")) & (F.col("_iq.started") == F.col("_logged_start"))
    return called.join(logged, known, "left_anti")


def _starts(queue: str, called: DataFrame, interval: float) -> DataFrame:
    """The log of starts in the form for audits, one row per start."""
    log = F.col("_iq")
    return called.select(
        F.lit(queue).alias("queue"),
        log.key.alias("key"),
        log.ticket.alias("ticket"),
        log.due.alias("due"),
        log.started.alias("started"),
        log.ended.alias("ended"),
        log.host.alias("host"),
        F.concat_ws(":", log.host, log.pid.cast("string")).alias("shard"),
        F.when(log.error.isNull(), "ok").otherwise("failed").alias("status"),
        log.error.alias("error"),
        # Columns that audits don't know: calls of this row in its task, claims by tasks of which some died,
        # whether the call was made before the pass was restarted, and the requested pace.
        log.calls.alias("tries"),
        log.attempt.alias("claims"),
        log.replayed.alias("from_ledger"),
        F.lit(interval).alias("interval"),
        "day",
        "pass",
    )


def _numbered(rows: DataFrame, tables: Tables, one: Pass) -> DataFrame:
    """The log with attempts, counted over all passes: later passes call only rows that failed."""
    if not tables.has("log"):
        return rows.withColumn("attempt", F.lit(1))
    before = (
        tables.read("log")
        .where((F.col("status") == "failed") & (F.col("pass") != one.id))
        .groupBy("key")
        .agg(F.count(F.lit(1)).cast("int").alias("failures"))
    )
    joined = rows.join(before, "key", "left")
    return joined.withColumn("attempt", F.coalesce("failures", F.lit(0)) + 1).drop("failures")


def _rejects(spec: Spec, rows: DataFrame, columns: list[str]) -> DataFrame:
    """Rows without a result. Those with a fingerprint come from the input, and are listed once."""
    row = F.to_json(F.struct(*map(_quoted, columns)), {"ignoreNullFields": "false"})
    key = F.col(_quoted(spec.input.key)).cast("string") if spec.input.key in columns else F.col("_iq.key")
    return rows.where(_of_input() | _has_failed()).select(
        F.coalesce(REASON, F.lit("call_failed")).alias("reason"),
        key.alias("key"),
        F.col("_iq.error").alias("error"),
        row.alias("row"),
        F.col(PRINT).alias("fingerprint"),
        "day",
        "pass",
    )


def _of_input() -> Column:
    return F.col(REASON).isNotNull()


def _has_failed() -> Column:
    return F.col("_iq.error").isNotNull()


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
