"""What does a paced call cost beside the plain call of the same function, where nobody has to wait?

In memory, and without an effective limit. Each way of calling is measured by one caller that calls again as soon as
it can, by some callers at the same time, and, for code that blocks, by threads; `add` and `map` go through their
jobs in windows. Rounds of all the ways take turns, so that a moment in which the machine is slow doesn't fall on one
of them; the table shows medians. "given up" tells how many slots went by unused for each call: where there are some,
the time for them is in the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from _table import Column, table
from intervalq import IntervalQueue, sync

COLUMNS = [
    Column("way", "way"),
    Column("callers", "callers", "{:.0f}"),
    Column("us/call", "us", "{:.2f}"),
    Column("least", "least", "{:.2f}"),
    Column("most", "most", "{:.2f}"),
    Column("calls/s", "rate", "{:.0f}"),
    Column("times the plain call", "ratio", "{:.1f}"),
    Column("given up/call", "given_up", "{:.4f}"),
    Column("store calls/call", "store_calls", "{:.4f}"),
]


@dataclass(frozen=True)
class Taken:
    """The duration of some calls."""

    seconds: float
    given_up: int | None = None
    store_calls: int | None = None


@dataclass(frozen=True)
class Way:
    """One way to call, by a number of callers."""

    name: str
    callers: int
    plain: str
    """The way that it is compared with."""
    run: Callable[[Any, int, int], Taken]
    """Takes a queue, and the numbers of calls and callers."""


async def job() -> None:
    """Does nothing."""


def plain_job() -> None:
    """Does nothing."""


# --- async --------------------------------------------------------------------------------------------


async def by_callers(call: Callable[[], Awaitable[object]], calls: int, callers: int) -> float:
    """Seconds for `calls` calls by `callers` callers, each of which calls again at once."""

    async def caller() -> None:
        for _ in range(calls // callers):
            await call()

    begun = time.perf_counter()
    if callers == 1:
        await caller()
    else:
        async with anyio.create_task_group() as group:
            for _ in range(callers):
                group.start_soon(caller)
    return time.perf_counter() - begun


def plain_async(_: IntervalQueue, calls: int, callers: int) -> Taken:
    """The plain call."""
    return Taken(anyio.run(by_callers, job, calls, callers))


def used(queue: IntervalQueue, work: Callable[[], Awaitable[float]]) -> Taken:
    """Use the queue in an event loop of its own, connected and warm."""

    async def main() -> Taken:
        for _ in range(10):
            await queue.run(job)
        before = await queue.inspect()
        seconds = await work()
        after = await queue.inspect()
        await queue.drop()
        return Taken(seconds, after.given_up - before.given_up, after.calls - before.calls - 1)

    return anyio.run(main)


def decorated(queue: IntervalQueue, calls: int, callers: int) -> Taken:
    """`@queue` on an async function."""
    return used(queue, partial(by_callers, queue(job), calls, callers))


def by_run(queue: IntervalQueue, calls: int, callers: int) -> Taken:
    """`await queue.run(f)`."""
    return used(queue, partial(by_callers, partial(queue.run, job), calls, callers))


def by_slot(queue: IntervalQueue, calls: int, callers: int) -> Taken:
    """`async with queue.slot()`."""

    async def call() -> None:
        async with queue.slot():
            await job()

    return used(queue, partial(by_callers, call, calls, callers))


def by_add(queue: IntervalQueue, calls: int, callers: int) -> Taken:
    """`await queue.add(f)`, then the jobs; as many are in flight as there are callers."""

    async def work() -> float:
        begun = time.perf_counter()
        for _ in range(calls // callers):
            for added in [await queue.add(job) for _ in range(callers)]:
                await added
        return time.perf_counter() - begun

    return used(queue, work)


def by_map(queue: IntervalQueue, calls: int, callers: int) -> Taken:
    """`async for _ in queue.map(f, items)`, with a window of as many as there are callers."""

    async def one(_: int) -> None:
        await job()

    async def work() -> float:
        begun = time.perf_counter()
        async for _ in queue.map(one, range(calls), window=callers):
            pass
        return time.perf_counter() - begun

    return used(queue, work)


# --- blocking -----------------------------------------------------------------------------------------


def in_threads(call: Callable[[], object], calls: int, threads: int) -> float:
    """Seconds for `calls` calls by a number of threads."""
    ready = threading.Barrier(threads + 1)

    def caller() -> None:
        ready.wait()
        for _ in range(calls // threads):
            call()

    started = [threading.Thread(target=caller) for _ in range(threads)]
    for thread in started:
        thread.start()
    ready.wait()
    begun = time.perf_counter()
    for thread in started:
        thread.join()
    return time.perf_counter() - begun


def plain_blocking(_: sync.IntervalQueue, calls: int, threads: int) -> Taken:
    """The plain call, in threads."""
    return Taken(in_threads(plain_job, calls, threads))


def blocked(queue: sync.IntervalQueue, call: Callable[[], object], calls: int, threads: int) -> Taken:
    """Use the queue in threads, connected and warm."""
    for _ in range(10):
        queue.run(plain_job)
    before = queue.inspect()
    seconds = in_threads(call, calls, threads)
    after = queue.inspect()
    queue.drop()
    return Taken(seconds, after.given_up - before.given_up, after.calls - before.calls - 1)


def blocking_decorated(queue: sync.IntervalQueue, calls: int, threads: int) -> Taken:
    """`@queue` on a plain function."""
    return blocked(queue, queue(plain_job), calls, threads)


def blocking_run(queue: sync.IntervalQueue, calls: int, threads: int) -> Taken:
    """`queue.run(f)`."""
    return blocked(queue, partial(queue.run, plain_job), calls, threads)


def blocking_slot(queue: sync.IntervalQueue, calls: int, threads: int) -> Taken:
    """`with queue.slot()`."""

    def call() -> None:
        with queue.slot():
            plain_job()

    return blocked(queue, call, calls, threads)


def blocking_add(queue: sync.IntervalQueue, calls: int, threads: int) -> Taken:
    """`queue.add(f).result()`: in a worker thread."""
    return blocked(queue, lambda: queue.add(plain_job).result(), calls, threads)


# --- the command --------------------------------------------------------------------------------------

ASYNC = {"plain await": plain_async, "decorator": decorated, "run": by_run, "slot": by_slot,
         "add": by_add, "map": by_map}  # fmt: skip
BLOCKING = {"plain call": plain_blocking, "sync decorator": blocking_decorated, "sync run": blocking_run,
            "sync slot": blocking_slot, "sync add": blocking_add}  # fmt: skip


def ways(callers: list[int], threads: list[int]) -> list[Way]:
    """All ways that are measured."""
    return [
        *(Way(name, count, "plain await", run) for count in callers for name, run in ASYNC.items()),
        *(Way(name, count, "plain call", run) for count in threads for name, run in BLOCKING.items()),
    ]


def once(way: Way, options: argparse.Namespace) -> dict[str, float | None]:
    """One round of one way, on a new queue."""
    settings = {"interval": options.interval, "burst": options.burst, "lookahead": None, "store": "memory://"}
    make = sync.IntervalQueue if way.name in BLOCKING else IntervalQueue
    factor = 50 if way.name == way.plain else 1
    calls = max(1, options.calls * factor // way.callers) * way.callers
    taken = way.run(make("overhead", **settings), calls, way.callers)
    return {
        "us": taken.seconds / calls * 1e6,
        "given_up": None if taken.given_up is None else taken.given_up / calls,
        "store_calls": None if taken.store_calls is None else taken.store_calls / calls,
    }


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The medians of all ways."""
    measured = ways(options.callers, options.threads)
    found: dict[Way, list[dict[str, Any]]] = {way: [] for way in measured}
    for number in range(options.rounds):
        for way in measured:
            print(f"round {number + 1} of {options.rounds}: {way.name}, {way.callers}", file=sys.stderr)
            found[way].append(once(way, options))
    shown = []
    plain: dict[tuple[str, int], float] = {}
    for way, rounds in found.items():
        us = [each["us"] for each in rounds]
        median = statistics.median(us)
        plain.setdefault((way.plain, way.callers), median)  # the plain way comes first
        shown.append({
            "way": way.name, "callers": way.callers, "us": median, "least": min(us), "most": max(us),
            "rate": 1e6 / median, "ratio": median / plain[way.plain, way.callers],
            "given_up": statistics.median(each["given_up"] for each in rounds) if way.name != way.plain else None,
            "store_calls": statistics.median(each["store_calls"] for each in rounds) if way.name != way.plain else None,
        })  # fmt: skip
    return shown


def numbers(text: str) -> list[int]:
    """`1,100` as numbers."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    """Read the options, run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000, help="of each way in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=numbers, default=[1, 64], help="async callers at the same time")
    parser.add_argument("--threads", type=numbers, default=[1, 8])
    parser.add_argument("--interval", type=float, default=1e-6, help="seconds")
    parser.add_argument("--burst", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} processors, "
          f"interval {options.interval:g} s, burst {options.burst}")  # fmt: skip
    found = rows(options)
    print(table(COLUMNS, found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
