"""Does the cost grow with the number of shards, of keyed queues, or of waiting jobs?

shards: handles with connections of their own, over one Redis, in two processes, at one rate in all; each has some
callers, which ask again as soon as they have begun.
queues: keyed queues of one handle that have all been used and are all held; then jobs on each of them in turn.
waiting: jobs that wait in one shard while it is paused, and then begin all at once.

Every row runs in processes of its own, so that memory is what that row took; memory is RSS, without tracemalloc.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from _store import Meter, store_of
from _table import Column, table
from intervalq import IntervalQueue, QueueState, sync

Row = dict[str, Any]

UNLIMITED = {"interval": 0.1, "burst": 1_000_000, "lookahead": None}
"""Settings with which nobody waits for a slot: credit for a million, and a tolerance of 10 ms."""


MANY = 1_000
"""Sizes below which memory is not shown: the allocator takes more at a time."""


def rss() -> int:
    """Resident memory in bytes."""
    gc.collect()
    if (statm := Path("/proc/self/statm")).exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the most so far will do: rows only grow
    return most * (1 if sys.platform == "darwin" else 1024)


def cpu() -> float:
    """CPU seconds that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def apart(count: int) -> ProcessPoolExecutor:
    """Processes for one row."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


# --- shards -------------------------------------------------------------------------------------------


def figures(handles: list[IntervalQueue]) -> dict[str, int]:
    """Calls of all shards so far, without `inspect`, which is itself a call."""
    shards = [queue._shard() for queue in handles]
    return {"calls": sum(each.calls for each in shards), "given_up": sum(each.given_up for each in shards)}


@dataclass(frozen=True)
class Work:
    """The work of every process."""

    url: str
    rate: float
    callers: int
    begin: int  # CLOCK_MONOTONIC, nanoseconds
    seconds: float

    @property
    def end(self) -> int:
        """When it ends, on the same clock."""
        return self.begin + int(self.seconds * 1e9)


def some_shards(work: Work, shards: int) -> Row:
    """One process with its shards, from the common beginning to the common end."""
    starts: list[int] = []
    row: Row = {}

    async def main() -> None:
        handles = [IntervalQueue("scale", interval=1 / work.rate, store=work.url) for _ in range(shards)]

        async def caller(queue: IntervalQueue) -> None:
            while True:
                async with queue.slot():
                    starts.append(time.monotonic_ns())

        async with anyio.create_task_group() as group:
            for queue in handles:
                for _ in range(work.callers):
                    group.start_soon(caller, queue)
            await anyio.sleep(max(0, work.begin - time.monotonic_ns()) / 1e9)  # when all have connected
            used, before = cpu(), figures(handles)
            await anyio.sleep(max(0, work.end - time.monotonic_ns()) / 1e9)
            row["cpu"] = cpu() - used
            row.update({name: after - before[name] for name, after in figures(handles).items()})
            group.cancel_scope.cancel()
        for queue in handles:
            await queue.close(drain=False)

    anyio.run(main)
    return row | {"starts": [at for at in starts if work.begin <= at < work.end]}


def shards_row(shards: int, options: argparse.Namespace) -> Row:
    """All processes of a row."""
    processes = min(2, shards)
    parts = [shards // processes + (n < shards % processes) for n in range(processes)]
    with store_of("redis") as url, apart(processes) as pool:
        meter = Meter(url)
        begin = time.monotonic_ns() + int(options.settle * 1e9)
        work = Work(url, options.rate, options.callers, begin, options.seconds)
        running = [pool.submit(some_shards, work, part) for part in parts]
        time.sleep(max(0.0, begin / 1e9 - time.monotonic()))
        before = meter.read()
        time.sleep(max(0.0, begin / 1e9 + options.seconds - time.monotonic()))
        after = meter.read()
        found = [each.result() for each in running]
        starts = sorted(start for each in found for start in each["starts"])
        by_redis = meter.between(before, after, len(starts))
        meter.close()
    jobs = max(1, len(starts))
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    return {
        "shards": shards,
        "processes": processes,
        "jobs": len(starts),
        "rate": (len(starts) - 1) / (starts[-1] - starts[0]) * 1e9 / options.rate if gaps else None,
        "short": sum(gap < 0.9e9 / options.rate for gap in gaps) / max(1, len(gaps)),
        "calls": sum(each["calls"] for each in found) / jobs,
        "given_up": sum(each["given_up"] for each in found) / jobs,
        "cpu_us": sum(each["cpu"] for each in found) / jobs * 1e6,
        **by_redis,
    }


SHARDS = [
    Column("shards", "shards", "{:.0f}"),
    Column("processes", "processes", "{:.0f}"),
    Column("jobs", "jobs", "{:.0f}"),
    Column("rate/possible", "rate", "{:.4f}"),
    Column("short %", "short", factor=100),
    Column("given up/job", "given_up", "{:.4f}"),
    Column("calls/job", "calls", "{:.3f}"),
    Column("Redis commands/job", "store_commands"),
    Column("Redis us/job", "store_us", "{:.0f}"),
    Column("client us/job", "cpu_us", "{:.0f}"),
]


# --- keyed queues -------------------------------------------------------------------------------------


async def at_once(calls: list[Callable[[], Awaitable[object]]], workers: int) -> None:
    """Make all calls, with a number of them at a time."""
    left = iter(calls)

    async def worker() -> None:
        for call in left:
            await call()

    async with anyio.create_task_group() as group:
        for _ in range(workers):
            group.start_soon(worker)


def some_queues(url: str, queues: int, least_jobs: int, workers: int) -> Row:
    """Use keyed queues for the first time, then again and again."""

    async def main() -> Row:
        async with IntervalQueue("scale", store=url, **UNLIMITED) as queue:  # type: ignore[arg-type]
            await queue["warm"].run(checkpoint)
            memory, before = rss(), time.perf_counter()
            keyed = [queue[f"key-{number}"] for number in range(queues)]
            await at_once([partial(each.run, checkpoint) for each in keyed], workers)
            first, grown = time.perf_counter() - before, rss() - memory
            rounds = -(-least_jobs // queues)
            begun, used = time.perf_counter(), cpu()
            for _ in range(rounds):
                await at_once([partial(each.run, checkpoint) for each in keyed], workers)
            took, used = time.perf_counter() - begun, cpu() - used
            calls = sum([each._shard().calls for each in keyed]) / (queues * (rounds + 1))
        return {
            "first_us": first / queues * 1e6,
            "bytes": grown / queues if queues >= MANY else None,
            "job_us": took / (queues * rounds) * 1e6,
            "cpu_us": used / (queues * rounds) * 1e6,
            "calls": calls,
        }

    return anyio.run(main)


def queues_row(store: str, queues: int, options: argparse.Namespace) -> Row:
    """One number of queues in one store."""
    with store_of(store) as url, apart(1) as pool:
        done = pool.submit(some_queues, url, queues, options.jobs, options.workers)
        return {"store": store, "queues": queues, **done.result()}


QUEUES = [
    Column("store", "store"),
    Column("queues", "queues", "{:.0f}"),
    Column("first use us/queue", "first_us", "{:.0f}"),
    Column("memory bytes/queue", "bytes", "{:.0f}"),
    Column("us/job", "job_us", "{:.0f}"),
    Column("client us/job", "cpu_us", "{:.0f}"),
    Column("calls/job", "calls", "{:.2f}"),
]


# --- waiting jobs -------------------------------------------------------------------------------------


def waited(jobs: int, before: QueueState, after: QueueState, *, memory: int | None, **seconds: float) -> Row:
    """The cost of one of many jobs."""
    return {
        **{f"{name}_us": value / jobs * 1e6 for name, value in seconds.items()},
        "bytes": None if memory is None else memory / jobs,
        "calls": (after.calls - before.calls) / jobs,
        "given_up": (after.given_up - before.given_up) / jobs,
    }


def in_tasks(way: str, jobs: int, lookahead: int | None) -> Row:
    """Jobs of `add`, or tasks in a `slot()`, that wait; then all of them begin."""
    done = 0
    all_done = anyio.Event()

    async def job() -> None:
        nonlocal done
        done += 1
        if done == jobs:
            all_done.set()

    async def main() -> Row:
        nonlocal done, all_done
        all_done = anyio.Event()
        settings = UNLIMITED | {"lookahead": lookahead}
        async with IntervalQueue("scale", store="memory://", **settings) as queue:  # type: ignore[arg-type]

            async def in_a_slot() -> None:
                async with queue.slot():
                    await job()

            await queue.run(checkpoint)
            await queue.pause()
            memory, begun = rss(), time.perf_counter()
            async with anyio.create_task_group() as group:
                for _ in range(jobs):
                    if way == "add":
                        await queue.add(job)
                    else:
                        group.start_soon(in_a_slot)
                while (await queue.inspect()).waiting < jobs:
                    await anyio.sleep(0.001)
                added = time.perf_counter() - begun
                memory = rss() - memory
                before = await queue.inspect()
                begun, used = time.perf_counter(), cpu()
                await queue.resume()
                await all_done.wait()
                took, used = time.perf_counter() - begun, cpu() - used
                after = await queue.inspect()
            await queue.drop()
        return waited(
            jobs, before, after, memory=memory if jobs >= MANY else None, add=added, begin=took, cpu=used
        )

    return anyio.run(main)


def in_threads(jobs: int) -> Row:
    """Threads that wait for slots; then all of them go on."""
    with sync.IntervalQueue("scale", store="memory://", **UNLIMITED) as queue:
        queue.run(lambda: None)
        queue.pause()
        memory, begun = rss(), time.perf_counter()
        threads = [threading.Thread(target=queue.run, args=(lambda: None,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        while queue.inspect().waiting < jobs:
            time.sleep(0.001)
        added = time.perf_counter() - begun
        memory = rss() - memory
        before = queue.inspect()
        begun, used = time.perf_counter(), cpu()
        queue.resume()
        for thread in threads:
            thread.join()
        took, used = time.perf_counter() - begun, cpu() - used
        after = queue.inspect()
        queue.drop()
    return waited(jobs, before, after, memory=memory if jobs >= 10 else None, add=added, begin=took, cpu=used)


def waiting_row(way: str, jobs: int, lookahead: int | None) -> Row:
    """One number of jobs that wait in one way."""
    work = partial(in_threads, jobs) if way == "threads" else partial(in_tasks, way, jobs, lookahead)
    with apart(1) as pool:
        row = pool.submit(work).result()
    shown = "all" if way == "threads" or lookahead is None else lookahead
    return {"way": way, "lookahead": shown, "waiting": jobs, **row}


WAITING = [
    Column("waits by", "way"),
    Column("lookahead", "lookahead", "{}"),
    Column("waiting", "waiting", "{:.0f}"),
    Column("add us/job", "add_us", "{:.1f}"),
    Column("memory bytes/job", "bytes", "{:.0f}"),
    Column("begin us/job", "begin_us", "{:.1f}"),
    Column("client us/job", "cpu_us", "{:.1f}"),
    Column("calls/job", "calls", "{:.4f}"),
    Column("given up/job", "given_up", "{:.4f}"),
]


# --- the command --------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    """`1,100` as numbers."""
    return [int(word) for word in text.split(",") if word]


def words(text: str) -> list[str]:
    """`a,b` as words."""
    return [word for word in text.split(",") if word]


def main() -> None:
    """Read the options, run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=words, default=["shards", "queues", "waiting"], help="some of the questions"
    )
    parser.add_argument("--shards", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--rate", type=float, default=200, help="starts a second of all shards together")
    parser.add_argument("--callers", type=int, default=4, help="callers of each shard")
    parser.add_argument("--seconds", type=float, default=10, help="duration of each row of shards")
    parser.add_argument("--settle", type=float, default=4, help="seconds for all the shards to connect")
    parser.add_argument("--queues", type=numbers, default=[1, 100, 10_000])
    parser.add_argument("--stores", type=words, default=["memory", "redis", "sqlite"], help="for queues")
    parser.add_argument("--jobs", type=int, default=10_000, help="least number of jobs of each row of queues")
    parser.add_argument("--workers", type=int, default=16, help="concurrent calls, of the rows of queues")
    parser.add_argument(
        "--waiting", type=numbers, default=[1, 100, 10_000, 100_000], help="waiting jobs, by add and slot()"
    )
    parser.add_argument("--threads", type=numbers, default=[1, 10, 100])
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} processors")
    answers: dict[str, list[Row]] = {}

    def say(what: str, columns: list[Column], rows: Sequence[Callable[[], Row]]) -> None:
        if what in options.only:
            answers[what] = []
            for number, make in enumerate(rows, 1):
                print(f"{what}: {number} of {len(rows)}", file=sys.stderr)
                answers[what].append(make())
            print(f"\n{what}\n{table(columns, answers[what])}", flush=True)

    say("shards", SHARDS, [partial(shards_row, count, options) for count in options.shards])
    say("queues", QUEUES, [partial(queues_row, store, count, options)
                           for store in options.stores for count in options.queues])  # fmt: skip
    waiting = [partial(waiting_row, way, count, lookahead)
               for way, lookahead in (("add", None), ("add", 16), ("slot", None), ("slot", 16))
               for count in options.waiting]  # fmt: skip
    say(
        "waiting",
        WAITING,
        waiting + [partial(waiting_row, "threads", count, None) for count in options.threads],
    )
    if options.json:
        options.json.write_text(json.dumps(answers, indent=2))


if __name__ == "__main__":
    main()
