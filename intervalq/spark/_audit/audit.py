"""`audit`: checks the execution log of queues, of any size."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql import functions as F  # noqa: N812

from intervalq._spec import parse
from intervalq.errors import InvalidOption
from intervalq.spark._audit.clocks import windows
from intervalq.spark._audit.events import cool_downs, running
from intervalq.spark._audit.facts import (
    YEAR_2000,
    Bounds,
    Facts,
    first_look,
    is_start,
    placed,
    set_blocks,
    set_clocks,
    set_intervals,
)
from intervalq.spark._audit.kinds import KINDS, Example
from intervalq.spark._audit.log import log_of, read_log
from intervalq.spark._audit.named import with_examples
from intervalq.spark._audit.result import Audit
from intervalq.spark._audit.scan.figures import Figures
from intervalq.spark._audit.scan.groups import KEYS, ORDER, ROWS
from intervalq.spark._audit.scan.keys import BY_KEY
from intervalq.spark._audit.scan.one_pass import scan
from intervalq.spark._audit.scan.places import Places
from intervalq.spark._audit.tally import Tally
from intervalq.spark._audit.tickets import by_bin, out_of_order, used_again, without
from intervalq.spark._compat import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Duration = float | str | timedelta

_BLOCK: Final = 1 << 19
_HELD: Final = 1 << 21
"""Rows that a Python worker sorts in memory, at about 200 bytes each. More are sorted by way of a file."""
_PIECE: Final = 60.0
"""Seconds of a window in which clocks are judged; more, if there are very many hosts."""
_PART: Final = 1_000_000
"""Rows of a part of the log, of which a Python worker judges one block at a time."""
_REACH: Final = 1_000
_SURE: Final = frozenset({"queue", "key", "ticket", "due", "host", "shard", "attempt"})
"""Columns that count as missing if all their rows are null; others are null unless something happened."""
_STRICT: Final = ("gap_short", "slot_shared", "slots_close")


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the passes."""

    bounds: Bounds
    tolerance: float | None
    max_running: int | None
    burst: int
    grace: float
    piece: float
    block: int
    held: int


def audit(
    spark: SparkSession,
    log: DataFrame | str | Path,
    *,
    interval: Duration | Mapping[str, Duration] | None = None,
    tolerance: Duration | None = None,
    max_running: int | None = None,
    burst: int = 1,
    queue: str | None = None,
    column: str = "_iq",
    unique_keys: bool = True,
    grace: Duration = 1.0,
    clock_limit: Duration = 0.1,
    now: float | None = None,
    _block: int = _BLOCK,
    _piece: float = _PIECE,
    _held: int = _HELD,
) -> Audit:
    """Check a log of starts: spacing, order, slots, lateness, fairness, keys, attempts, cool-downs.

    The log is read three times, twice for some columns only, and shuffled once; only counts are collected.
    Percentiles are computed from buckets a few percent wide. The third time, Python workers judge it by
    arrays: intervalq must be installed on the executors, as for `paced`. A worker holds about two
    million rows at most. It sorts more rows of a queue by way of a file in Spark's local folder, and of a key
    with very many calls it holds two rows for each number of an attempt. Only rows with the same start, slot
    and ticket are held all at once.

    Args:
        spark: a session, also one of Spark Connect.
        log: a DataFrame with the columns of a log or with the pipeline's struct; or a path: JSON lines of
            `intervalq run` if it ends with .jsonl, .json or .ndjson, else a folder of Parquet files. Checks
            that need a column which it doesn't have are listed as not checked.
        interval: seconds (or "200ms", or a timedelta) between two starts; or a mapping by queue name. If
            a queue's interval was changed, its smallest one. None: guessed from its slots, which a note says.
        tolerance: seconds that a start may be away from its slot. None: a tenth of the interval (times the
            burst), as queues have it.
        max_running: jobs that may run at once in a queue. None: not checked, as it doubles the cost.
        burst: starts that may come at once; with more than 1, only the rate is checked, not single gaps.
        queue: the name of the queue, for rows without one.
        column: the name of the pipeline's struct.
        unique_keys: whether a key should have one call (and attempts by number). False: keys aren't
            checked, and less is shuffled; use that for keys with very many calls each, such as tenants.
        grace: seconds after the arrival of a rejection in which other shards can't know of it.
        clock_limit: seconds (at least the tolerance) that a host's clock may be off before a note says so.
            Times are corrected anyway, by the soonest starts of each host after their slots; without a column
            `host` they are taken as they are.
        now: seconds since 1970; times more than a day later are invalid. None: the time on this machine.

    Raises:
        InvalidOption, InvalidInterval: an option is out of range, the log has no column of starts, or a
            queue's interval can't be guessed.
    """
    if max_running is not None and max_running < 1:
        raise InvalidOption(f"max_running={max_running} lets no job run: use 1 or more, or None")
    if burst < 1:
        raise InvalidOption(f"burst={burst} lets no job start: use 1 or more")
    bounds = Bounds(YEAR_2000, (time.time() if now is None else now) + 86_400)
    options = _Options(
        bounds,
        None if tolerance is None else _seconds(tolerance),
        max_running,
        burst,
        _seconds(grace),
        _piece,
        _block,
        _held,
    )
    intervals = (
        {name: parse.interval(value) / 1e6 for name, value in interval.items()}
        if isinstance(interval, Mapping)
        else None
        if interval is None
        else parse.interval(interval) / 1e6
    )
    rows, known = log_of(read_log(spark, log), queue=queue, column=column)
    facts = first_look(rows, known & _SURE, bounds)
    facts.known |= known - _SURE
    set_intervals(rows, facts, intervals, bounds)
    set_clocks(rows, facts, bounds, options.piece)
    not_checked = _not_checked(facts, options, unique_keys=unique_keys)
    live = {kind.name for kind in KINDS} - not_checked.keys()
    tally = Tally(facts, live)
    if facts.rows:
        _judge(spark, rows, tally, options)
    _clocks(tally, options, _seconds(clock_limit))
    return Audit(tally, not_checked, options.tolerance)


def _seconds(value: Duration) -> float:
    return parse.duration(value) / 1e6


def _not_checked(facts: Facts, options: _Options, *, unique_keys: bool) -> dict[str, str]:
    """The kinds that can't be checked in this log, or weren't requested, and why."""
    reasons = {}
    for kind in KINDS:
        if missing := [name for name in kind.needs if name not in facts.known]:
            reasons[kind.name] = f"the log has no {' and no '.join(missing)}"
    if "calls" in facts.known:  # which counts the attempts of a row where each has no row of its own
        reasons.pop("call_retried", None)
    if options.max_running is None:
        reasons["over_max_running"] = "max_running was not given"
    if options.burst > 1:
        reasons |= dict.fromkeys(_STRICT, "starts of a burst may come at once")
    if not unique_keys:
        reasons |= dict.fromkeys(BY_KEY, "unique_keys is False")
    return reasons


def _judge(spark: SparkSession, rows: DataFrame, tally: Tally, options: _Options) -> None:
    facts, live = tally.facts, tally.live
    figures = _figures(facts, live, options)
    starts = placed(spark, rows, facts, options.bounds).where(is_start())
    found = scan(rows, figures, [ROWS, ORDER, *([KEYS] if live & BY_KEY else [])]).persist()
    tally.rows(rows_of(_of(found, ROWS)))
    tally.keys(with_examples(rows, rows_of(_of(found, KEYS))))
    _judge_order(spark, starts, _of(found, ORDER), tally, figures)
    found.unpersist()
    if facts.refusals and "cool_down_broken" in live:
        tally.found("cool_down_broken", rows_of(cool_downs(starts, options.grace)))
    if options.max_running is not None and "over_max_running" in live:
        tally.running(rows_of(running(starts, options.max_running)))


def _of(groups: DataFrame, kind: int) -> DataFrame:
    return groups.where(F.col("kind") == kind)


def _figures(facts: Facts, live: set[str], options: _Options) -> Figures:
    queues = sorted(facts.queues.values(), key=lambda queue: queue.number)
    shortest = min(queue.interval for queue in queues)
    reach = max(2, min(_REACH, math.ceil(1 / shortest)))
    set_blocks(facts, max(options.block, 2 * reach), least=2 * reach)
    many = facts.highest_attempt > 1
    known = [(group["who"], facts.queues[group["queue"]].number, group["host"]) for group in facts.groups]
    return Figures(
        interval=np.array([queue.interval for queue in queues]),
        block=np.array([queue.block for queue in queues]),
        nameless=np.array([not queue.name for queue in queues]),
        earliest=options.bounds.earliest,
        latest=options.bounds.latest,
        tolerance=options.tolerance,
        burst=options.burst,
        reach=reach,
        bin=facts.bin,
        live=frozenset(live if facts.replays else live - {"replay_unknown"}),
        others=facts.replays > 0,
        attempts=many and "attempt_skipped" in live,
        retries=many and "retry_same_slot" in live,
        parts=max(2, math.ceil(facts.rows / _PART)),
        held=options.held,
        places=Places.known(
            known, [(clock.host, clock.lines) for clock in facts.clocks], windows(facts.span, facts.window)
        ),
    )


def _judge_order(
    spark: SparkSession, starts: DataFrame, ordered: DataFrame, tally: Tally, figures: Figures
) -> None:
    """Take the order of starts and slots; judge it again, if there are tickets that were used again."""
    settings: dict[str, Any] = {"burst": figures.burst, "tolerance": figures.tolerance}
    restarts = out_of_order(ordered, tally.intervals, **settings) if "ticket_twice" in tally.live else None
    if restarts is None:
        tally.order(rows_of(ordered), **settings)
        return
    again = used_again(spark, starts, restarts).persist()
    tally.found("ticket_twice", by_bin(again, tally.facts.bin))
    tally.order(rows_of(scan(without(starts, again), figures, [ORDER])), **settings)
    again.unpersist()


def _clocks(tally: Tally, options: _Options, limit: float) -> None:
    """Notes on clocks, and on intervals that were guessed."""
    facts = tally.facts
    for queue in facts.queues.values():
        if queue.guessed:
            tally.findings.add(
                "interval_guessed", 1, [Example(queue.name, None, queue.first, f"{queue.interval:g} s")]
            )
    if not facts.queues:
        return
    allowed = [
        queue.interval * 0.1 * options.burst if options.tolerance is None else options.tolerance
        for queue in facts.queues.values()
    ]
    limit = max(limit, *allowed)
    for clock in facts.clocks:
        # Starts that are early break a promise, so the limit for them is lower.
        early = clock.offset < -min(allowed)
        if (kind := "host_early" if early else "clock_off") in tally.live and (early or clock.offset > limit):
            what = f"{clock.host} {clock.offset:+.3f} s"
            tally.findings.add(kind, 1, [Example("", None, None, what)])
        if "clock_jumped" in tally.live:
            jumps = [(at, change) for at, change in clock.jumps if abs(change) > limit]
            examples = [Example("", None, at, f"{clock.host} {change:+.3f} s") for at, change in jumps]
            tally.findings.add("clock_jumped", len(jumps), examples)
