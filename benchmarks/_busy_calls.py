"""The questions of busy.py about calls: a lone caller, keyed queues, no limit, durable tasks."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from _busy import Piece, Question, Row, beside
from _busy_pacing import RUN
from _judge import Start, gaps, pace, quantile, ratio, short
from _pacing import Case
from _proxy import farther
from _run import Around, run
from _store import store_of
from _table import Column
from _tasks_run import install, starts
from _tasks_server import databases
from _throughput import measure as flood_of
from peers import Peer, throughput
from peers.base import Work
from task_peers import ours

_PAUSES = {0.001: 0.023, 0.01: 0.03}
"""Pauses in seconds before each call of a lone caller, by interval."""
_AWAY = 0.005
"""Extra delay in seconds between keyed queues and the store, each way."""
_AT_MOST = 300.0
"""Seconds after which keyed queues without a slot are counted as timed out."""
_TASKS = 100
"""Rate of paced tasks, per second."""


def lone(seconds: float) -> Question:
    """How long one caller waits on an idle queue."""
    return Question(
        "lone",
        f"one call after a pause on an idle queue, alternating with a naive limiter; {seconds:g} s",
        (
            Column("", "label"),
            Column("calls", "calls", "{:.0f}"),
            Column("not begun", "unbegun", "{:.0f}"),
            Column("wait us p50", "wait_p50", "{:,.0f}"),
            Column("p99", "wait_p99", "{:,.0f}"),
            Column("max", "wait_max", "{:,.0f}"),
            Column("naive us p50", "naive_p50", "{:,.0f}"),
            Column("p99", "naive_p99", "{:,.0f}"),
            Column("max", "naive_max", "{:,.0f}"),
            Column("x naive p99", "p99_ratio", "{:.1f}"),
        ),
        tuple(
            Piece(
                f"{store}, interval {interval * 1e3:g} ms, pauses of {pause * 1e3:g} ms", RUN.name, RUN.label,
                partial(_lone, store, interval, pause, seconds), Case(1, 100), seconds,
            )
            for store in ("memory", "redis")
            for interval, pause in _PAUSES.items()
        ),
    )  # fmt: skip


def _lone(store: str, interval: float, pause: float, seconds: float, around: Around) -> Row:
    with store_of(store) as url:
        work = _work("lone", url, interval, seconds, pause=pause)
        [result] = run(RUN, [work], around=around).results
    return lone_figures(result)


def lone_figures(result: dict[str, Any]) -> Row:
    """The figures of a lone caller, from what the process found; microseconds."""
    row: Row = {"calls": len(result["waits"]), "unbegun": result["unbegun"]}
    for name in ("wait", "naive"):
        values = result[f"{name}s"]
        row |= {f"{name}_p{percent}": quantile(values, percent / 100) for percent in (50, 99)}
        row[f"{name}_max"] = quantile(values, 1.0)
    return {**row, "p99_ratio": ratio(row["wait_p99"], row["naive_p99"])}


def keyed(seconds: float) -> Question:
    """Whether many keyed queues get their first slots: 1,000 queues per second of the baseline."""
    queues = round(1_000 * seconds)
    return Question(
        "keyed",
        f"a slot in each of many keyed queues of one process, {_AWAY * 1e3:g} ms farther from Redis, each way",
        (
            Column("", "label"),
            Column("began", "began", "{:,.0f}"),
            Column("StoreTimeout", "timeouts", "{:,.0f}"),
            Column("other errors", "errors", "{:,.0f}"),
            Column(f"not in {_AT_MOST:g} s", "unbegun", "{:,.0f}"),
            Column("seconds", "took", "{:.1f}"),
        ),
        (
            Piece(
                f"{queues:,} queues",
                "slot",
                "async with queue[key].slot()",
                partial(_keyed, queues),
                Case(1, 100),
                seconds,
            ),
        ),
    )


def _keyed(queues: int, around: Around) -> Row:
    with store_of("redis") as url, farther(url, _AWAY) as far:
        work = _work("keyed", far, 1.0, _AT_MOST, calls=queues)
        [result] = run(RUN, [work], around=around).results
    return result


def _work(task: str, url: str, interval: float, seconds: float, **more: Any) -> Work:
    return Work(
        task=task, place=RUN.place, url=url, interval=interval, processes=1, index=0, callers=1, settle=0.0,
        seconds=seconds, **more,
    )  # fmt: skip


def flood(seconds: float) -> Question:
    """Jobs per second without an effective limit."""
    contenders = throughput("redis")
    peers = [contenders[name] for name in ("intervalq-run", "intervalq-slot", "batch")]
    return Question(
        "flood",
        f"no effective limit, one process over Redis; {seconds:g} s",
        (
            Column("", "label"),
            Column("jobs/s", "jobs_per_s", "{:,.0f}"),
            Column("x floor", "jobs_per_s_ratio"),
            Column("client us", "client_us", "{:.1f}"),
            Column("calls/job", "store_calls", "{:.4f}"),
        ),
        tuple(
            Piece(
                f"{waiters:,} waiters",
                peer.name,
                peer.label,
                partial(_flood, peer, waiters, seconds),
                Case(1, 100),
                seconds,
            )
            for waiters in (64, 1_000)
            for peer in peers
        ),
        beside("batch", "jobs_per_s"),
    )


def _flood(peer: Peer, waiters: int, seconds: float, around: Around) -> Row:
    return flood_of("redis", peer, 1, waiters, seconds, around=around)


def tasks(seconds: float) -> Question:
    """How even the starts of durable tasks are if a queue paces them."""
    return Question(
        "tasks",
        f"two workers of durable tasks in Postgres, {_TASKS}/s; {seconds:g} s",
        (
            Column("", "label"),
            Column("first-last", "pace", "{:.4f}"),
            Column("<0.9 %", "short", "{:.2f}", 100),
            Column("gap p50", "gap_p50", "{:.3f}"),
            Column("p99", "gap_p99", "{:.2f}"),
            Column("timer <0.9 %", "timer_short", "{:.2f}", 100),
        ),
        tuple(
            Piece(
                f"queue in {store}",
                "tasks",
                "@tasks.worker",
                partial(_tasks, store, seconds),
                Case(2, _TASKS),
                seconds,
            )
            for store in ("redis", "postgres")
        ),
    )


def _tasks(store: str, seconds: float, around: Around) -> Row:
    count = round(_TASKS * (seconds + 1) * 1.5)
    with (
        databases(install, commit="off") as made,
        store_of("redis") if store == "redis" else nullcontext() as url,
    ):
        given = {} if url is None else {"store": url}
        contender = ours("intervalq", "Ours", rate=f"{_TASKS}/s", **given)
        with made.database(contender) as database:
            return tasks_figures(starts(contender, database, count, 2, seconds, around=around), 1 / _TASKS)


def tasks_figures(found: list[int], interval: float) -> Row:
    """The figures of starts, from the first to the last; gaps are in intervals."""
    began = [Start(at, 0) for at in found]
    between = gaps(began, interval)
    return {
        "jobs": len(began),
        "pace": pace(began, interval),
        "short": short(between, 0.9),
        "gap_p50": quantile(between, 0.5),
        "gap_p99": quantile(between, 0.99),
    }
