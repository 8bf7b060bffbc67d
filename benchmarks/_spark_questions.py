"""The questions of the Spark benchmarks, each with the session that it needs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from _spark_functions import caller, memory, no_op, plain, sleeper
from _spark_limits import LIMITS, stage
from _spark_session import session
from _store import store_of
from intervalq import IntervalQueue
from spark.stand_in import Policy, SparkApi

Row = dict[str, Any]

_LOOP = Path(__file__).parent / "_spark_loop.py"


_PAUSE = 5
"""Intervals in which nobody called, from which on it counts as a pause."""


def _name() -> str:
    return f"b{uuid4().hex[:10]}"


@contextmanager
def _timed(row: Row, name: str = "s") -> Iterator[None]:
    began = time.perf_counter()
    yield
    row[name] = time.perf_counter() - began


def pace(options: Namespace) -> Iterator[Row]:
    """2 executors, 150 ms a call: the rate, the gaps and the longest pause, beside a plain loop's in one process.

    The first run of each kind is cold: its Python workers start, and import what they need.
    """
    from intervalq.spark import paced

    seconds = 1 if options.quick else options.seconds
    master = "local[4]" if options.quick else "local-cluster[2,8,900]"
    kinds = [(100, 4)] if options.quick else [(100, 4), (300, 4), (300, 16)]
    for rate, tasks in kinds:
        rows = rate * seconds
        with store_of("redis") as store, SparkApi(latency=0.15) as api, session(master) as spark:
            call = caller(api.url)
            for run in range(options.runs):
                row: Row = {"question": "pace", "run": run, "tasks": tasks, "per_s": rate, "rows": rows}
                before, asked = api.count, api.clock()
                subprocess.run([sys.executable, str(_LOOP), api.url, str(rate), str(rows)], check=True)
                yield row | {"name": "plain loop", "tasks": None} | _paced(api, before, asked, rate)
                queue, name = IntervalQueue(_name(), rate=f"{rate}/s", store=store), _name()
                frame = spark.range(0, rows, 1, tasks).transform(
                    paced(call, "y long", queue=queue, key="id", run=name)
                )
                before, asked = api.count, api.clock()
                got = frame.collect()
                starts = sorted(one._iq.started for one in got)
                start_gaps = [(b - a) * rate for a, b in pairwise(starts)]
                yield (
                    row
                    | _paced(api, before, asked, rate)
                    | {
                        "name": "paced" if run else "paced, cold",
                        "processes": len({one._iq.pid for one in got}),
                        "start_least": min(start_gaps),
                        "start_under": sum(gap < 0.9 for gap in start_gaps) / len(start_gaps),
                    }
                )


def _paced(api: SparkApi, before: int, asked: float, rate: float) -> Row:
    """What the stand-in saw since it had had `before` calls."""
    over = api.clock()
    calls = api.calls[before:]
    at = sorted(one.at for one in calls)
    pauses = [(b - a, a - at[0]) for a, b in pairwise(at) if (b - a) * rate > _PAUSE]
    gaps = sorted(b - a for a, b in pairwise(at))
    return {
        "calls": len(calls),
        "rate": (len(at) - 1) / (at[-1] - at[0]) / rate,
        "under": sum(gap * rate < 0.9 for gap in gaps) / len(gaps),
        "least": gaps[0] * rate,
        "pauses": len(pauses),
        "paused_s": sum(length for length, _ in pauses),
        "pause_s": gaps[-1],
        "pause_at_s": max(pauses, default=(0.0, 0.0))[1],
        "first_s": at[0] - asked,
        "last_s": over - max(one.answered or 0.0 for one in calls),
    }


def limits(options: Namespace) -> Iterator[Row]:
    """A published policy of 10 calls per second with a penalty, and 1 to 16 tasks that all want to call."""
    from intervalq.spark import paced

    rows, penalty, within = (20, 0.5, 5.0) if options.quick else (60, 5.0, 10.0)
    counts = (1, 2) if options.quick else (1, 2, 4, 8, 16)
    with store_of("redis") as store, session(f"local[{max(counts)}]") as spark:
        for tasks in counts:
            for name in ("intervalq", *LIMITS):
                with SparkApi(latency=0.15, policy=Policy(10, 1.0, penalty)) as api:
                    frame = spark.range(0, rows, 1, tasks)
                    if name == "intervalq":
                        # Five percent under the limit: latency varies, and the policy forgives nothing.
                        queue = IntervalQueue(_name(), rate="9.5/s", store=store, retries=9)
                        out = frame.transform(paced(caller(api.url), "y long", queue=queue, ledger=None))
                    else:
                        out = frame.mapInArrow(
                            stage(
                                api.url,
                                LIMITS[name](9.5 if name == "divided rate" else 10, tasks, store),
                                within,
                            ),
                            "id long",
                        )
                    row: Row = {"question": "limits", "name": name, "tasks": tasks, "rows": rows}
                    with _timed(row):
                        done = out.count()
                    good = done / (api.calls[-1].at - api.calls[0].at) / 10
                    yield row | {"done": done, "refused": api.refused(), "calls": api.count, "good": good}


def overhead(options: Namespace) -> Iterator[Row]:
    """`paced` without a limit beside plain mapInArrow with the same async function, on two cores."""
    from intervalq.spark import paced

    rows = 2_000 if options.quick else 200_000
    with store_of("redis") as redis, store_of("sqlite") as sqlite, session("local[2]") as spark:
        contenders: dict[str, Callable[[Any, Any], Any]] = {
            "plain": lambda frame, call: frame.mapInArrow(plain(call, 32), "id long, y long"),
            "paced": lambda frame, call: frame.transform(
                paced(call, "y long", queue=None, ledger=None, concurrency=32)
            ),
            "paced, no log": lambda frame, call: frame.transform(
                paced(call, "y long", queue=None, ledger=None, concurrency=32, log=None)
            ),
            "ledger in Redis": lambda frame, call: frame.transform(
                paced(call, "y long", queue=None, key="id", run=_name(), ledger=redis, concurrency=32)
            ),
            "ledger in SQLite": lambda frame, call: frame.transform(
                paced(call, "y long", queue=None, key="id", run=_name(), ledger=sqlite, concurrency=32)
            ),
        }
        for what, call, part in (("no-op", no_op(), 1), ("1 ms", sleeper(0.001), 4)):
            for run in range(options.runs + 1):  # the first one warms up
                for name, make in contenders.items():
                    of = rows // part // (4 if name.startswith("ledger") else 1)
                    frame = spark.range(0, of, 1, 2)
                    row: Row = {"question": "overhead", "call": what, "name": name, "run": run, "rows": of}
                    with _timed(row):
                        make(frame, call).write.format("noop").mode("overwrite").save()
                    if run:
                        yield row | {"per_s": of / row["s"]}


def flat(options: Namespace) -> Iterator[Row]:
    """The memory of a Python worker over one partition of a million rows."""
    from intervalq.spark import paced

    rows = 30_000 if options.quick else 1_000_000
    with session("local[1]") as spark:
        out = spark.range(0, rows, 1, 1).transform(
            paced(memory(), "kb long", queue=None, ledger=None, concurrency=32)
        )
        row: Row = {"question": "flat", "rows": rows}
        with _timed(row):
            kb = [one.kb for one in out.select("kb").where("kb > 0").collect()]
        tenth = max(1, len(kb) // 10)
        yield row | {
            "first_mb": statistics.median(kb[:tenth]) / 1024,
            "last_mb": statistics.median(kb[-tenth:]) / 1024,
            "most_mb": max(kb) / 1024,
        }


QUESTIONS: dict[str, Callable[[Namespace], Iterator[Row]]] = {
    "pace": pace,
    "limits": limits,
    "overhead": overhead,
    "flat": flat,
}
