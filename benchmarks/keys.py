"""Are keys under one rate fair, how much of it do they use, and what do they leave in the store?

`small`: one key has thousands of waiting jobs, two others have ten each, every key in a process of its own. Their
share is the number of starts that they and the large key need if all three take turns: `x share` is the number of
starts until the last small job began, divided by that. Each process has connected before the count begins.

`many`: thousands of keys with one job each, from several processes. `used` is the share of the common rate that
their starts used, `asked` the number of requests to the store per job, and `lapsed` the number of records of keys
that are left after all have been idle for a while.

`timer us` says how late bare sleeps of this machine ended meanwhile, in the median, in microseconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from typing import Any

import anyio
from anyio import to_thread

from _conditions import pressed
from _report import words
from _store import store_of
from _table import Column, table
from intervalq import IntervalQueue, QueueNotFound
from intervalq.store import open_store

IDLE = 75.0
"""Seconds after which keys that had a job are forgotten: a minute, and some time to notice."""

SMALL = (
    Column("store", "store"),
    Column("backlog", "backlog", "{}"),
    Column("rate", "rate"),
    Column("starts until b is done", "b", "{}"),
    Column("until c is done", "c", "{}"),
    Column("x share", "ratio", "{:.2f}"),
    Column("shortest gap", "gap", "{:.3f}"),
    Column("load", "load", "{:.1f}"),
    Column("timer us", "timer", "{:.0f}"),
)
MANY = (
    Column("store", "store"),
    Column("keys that began", "keys"),
    Column("processes", "processes", "{}"),
    Column("rate", "rate"),
    Column("used", "used", "{:.3f}"),
    Column("longest gap, intervals", "long", "{:.1f}"),
    Column("shortest gap", "gap", "{:.3f}"),
    Column("asked", "asked", "{:.2f}"),
    Column("records after", "after", "{}"),
    Column("lapsed", "lapsed", "{}"),
    Column("load", "load", "{:.1f}"),
    Column("timer us", "timer", "{:.0f}"),
)


@dataclass(frozen=True)
class Work:
    """The work of one process."""

    url: str
    rate: float
    each: str
    jobs: dict[str, int]
    """How many jobs each of its keys has."""
    seconds: float
    """How long it goes on after all are ready, even if some have not begun."""
    leads: bool = False
    """Whether it reports that it is ready only once its first job has begun; others connect, and wait for all."""


@dataclass
class Found:
    """What one process found, or all of them."""

    since: float
    """When all were ready."""
    starts: list[tuple[float, str]]
    """The start of each job, and its key."""
    asked: int
    """The number of requests that they took."""


async def work_of(mine: Work, ready: Barrier) -> Found:
    """What one process found."""
    starts: list[tuple[float, str]] = []
    since = 0.0
    first = anyio.Event()
    queue = IntervalQueue("keys", rate=mine.rate, each=mine.each, store=mine.url)
    asked = 0

    async def job(key: IntervalQueue, name: str) -> None:
        async with key.slot():
            starts.append((time.monotonic(), name))
            first.set()

    async def all_of(name: str, count: int) -> None:
        nonlocal asked
        key = queue[name]
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(job, key, name)
        asked += (await key.inspect()).calls - 1

    async def together(scope: anyio.CancelScope) -> None:
        nonlocal since
        if mine.leads:
            await first.wait()
        else:
            # Otherwise the time to connect, during which the other keys go on, would count as waiting for turns.
            with suppress(QueueNotFound):  # the first job may not have created it yet: the answer is enough
                await queue.inspect()
        await to_thread.run_sync(ready.wait)
        since = time.monotonic()
        scope.deadline = anyio.current_time() + mine.seconds

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            if mine.leads:
                group.start_soon(together, scope)
            else:
                await together(scope)
            for name, count in mine.jobs.items():
                group.start_soon(all_of, name, count)
    await queue.close(drain=False)
    return Found(since, starts, asked)


def process(mine: Work, ready: Barrier, results: Any) -> None:  # noqa: ANN401 - a multiprocessing queue
    """Run one process, and send what began."""
    results.put(anyio.run(work_of, mine, ready))


def run(works: list[Work]) -> Found:
    """Run processes together; their starts in order."""
    context = multiprocessing.get_context("spawn")
    results, ready = context.Queue(), context.Barrier(len(works))
    started = [context.Process(target=process, args=(work, ready, results)) for work in works]
    for each in started:
        each.start()
    found = [results.get(timeout=max(work.seconds for work in works) + 120) for _ in started]
    for each in started:
        each.join()
    starts = sorted([start for each in found for start in each.starts])
    return Found(max(each.since for each in found), starts, sum(each.asked for each in found))


@contextmanager
def timers() -> Iterator[list[float]]:
    """How late bare sleeps end while the context is open, in microseconds."""
    late: list[float] = []
    ended = threading.Event()

    def measure() -> None:
        begin = time.monotonic()
        while not ended.wait(0.05):
            late.append((time.monotonic() - begin - 0.05) * 1e6)
            begin = time.monotonic()

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield late
    finally:
        ended.set()
        thread.join()


def gaps(starts: list[tuple[float, str]], rate: float) -> list[float]:
    """The times between starts, in intervals."""
    return [(b - a) * rate for (a, _), (b, _) in pairwise(starts)]


def small(kind: str, rate: float, backlog: int) -> dict[str, object]:
    """Two small backlogs beside a large one."""
    load = os.getloadavg()[0]
    with store_of(kind) as url, timers() as late:
        jobs = {"large": backlog, "b": 10, "c": 10}
        works = [
            Work(url, rate, "shared", {key: count}, 10 + 60 / rate, count > 10) for key, count in jobs.items()
        ]
        found = run(works)
    names = [name for at, name in found.starts if at >= found.since]
    through = {key: len(names) - names[::-1].index(key) for key in ("b", "c")}
    gap = min(gaps(found.starts, rate))
    return {
        "store": kind, "backlog": backlog, "rate": f"{rate:g}/s", **through,
        "ratio": max(through.values()) / 30, "gap": gap, "load": load, "timer": statistics.median(late),
    }  # fmt: skip


async def keys_left(url: str) -> int:
    """How many records of keys there are, once a step of another key has had the chance to remove them."""
    store = open_store(url)
    async with IntervalQueue("keys", rate=1, each="shared", on_mismatch="adopt", store=store) as queue:
        async with queue["last"].slot():
            pass
        count = len([name for name in await store.names() if name.startswith("keys:k")])
    await store.aclose()
    return count


def many(kind: str, rate: float, keys: int, processes: int) -> dict[str, object]:
    """Keys with one job each."""
    load = os.getloadavg()[0]
    with store_of(kind) as url, timers() as late:
        names = [f"k{number}" for number in range(keys)]
        parts = [names[number::processes] for number in range(processes)]
        works = [Work(url, rate, "shared", dict.fromkeys(part, 1), 4 * keys / rate + 60) for part in parts]
        found = run(works)
        after = anyio.run(partial(keys_left_now, url))
        time.sleep(IDLE)
        lapsed = anyio.run(keys_left, url)
    between = gaps(found.starts, rate)
    return {
        "store": kind, "keys": f"{len(found.starts)} of {keys}", "processes": processes, "rate": f"{rate:g}/s",
        "used": len(between) / sum(between), "long": max(between), "gap": min(between),
        "asked": found.asked / len(found.starts), "after": after, "lapsed": lapsed, "load": load,
        "timer": statistics.median(late),
    }  # fmt: skip


async def keys_left_now(url: str) -> int:
    """How many records of keys there are."""
    store = open_store(url)
    count = len([name for name in await store.names() if name.startswith("keys:k")])
    await store.aclose()
    return count


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="redis,postgres,sqlite", help="one or more of them")
    parser.add_argument("--only", default="small,many")
    parser.add_argument("--rates", default="20,100", help="rates of `small`, in starts a second")
    parser.add_argument("--rate", type=float, default=50, help="rate of `many`, in starts a second")
    parser.add_argument("--backlog", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--pressed", action="store_true", help="beside two busy loops per processor")
    arguments = parser.parse_args()
    with pressed() if arguments.pressed else nullcontext():
        tables(arguments)


def tables(arguments: argparse.Namespace) -> None:
    """Run what is asked for, and print a table for each part."""
    parts, stores = words(arguments.only), words(arguments.store)
    if "small" in parts:
        rates = [float(rate) for rate in words(arguments.rates)]
        rows = [small(kind, rate, arguments.backlog) for kind in stores for rate in rates]
        print(table(SMALL, rows), flush=True)
    if "many" in parts:
        rows = [many(kind, arguments.rate, arguments.keys, arguments.processes) for kind in stores]
        print(table(MANY, rows), flush=True)


if __name__ == "__main__":
    main()
