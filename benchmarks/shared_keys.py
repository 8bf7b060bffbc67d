"""How much of their limits do keys under one rate use, from one process and from several that share the keys?

A stub sees calls of a few keys arrive: 100/s and 600 tokens in 2 s in total, and 250 tokens in 2 s of each key. Every
process has callers of every key, and calls as fast as its limiter lets it; each call takes 10 tokens.

`used` is the number of calls that arrived, divided by what the limits allow in that time: it begins with the first
call, so a perfect client reaches 1. `over` is the number of calls with which more arrived in some window than its limit,
in total or of a key. `longest` is the longest time without a call, in seconds. `timer` says how late bare sleeps end
meanwhile; `load` is the machine's load average.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

from _conditions import Condition, conditions
from _report import words
from _store import Meter, store_of
from _table import Column, table
from intervalq import IntervalQueue, Limit
from several_limits import START, timers

COLUMNS = (
    Column("condition", "condition"),
    Column("processes", "processes", "{}"),
    Column("calls made", "calls", "{}"),
    Column("used", "used", "{:.3f}"),
    Column("by key", "keys"),
    Column("over", "over", "{}"),
    Column("longest s", "longest", "{:.2f}"),
    Column("asked", "asked", "{:.2f}"),
    Column("timer us p50", "timer_p50", "{:.0f}"),
    Column("p99", "timer_p99", "{:.0f}"),
    Column("load", "load", "{:.1f}"),
)

RATE = 100
WINDOW = 2.0
TOTAL, EACH, COST = 600, 250, 10
"""Tokens in a window: of all keys, of each, and of each call."""

JITTER = 0.02
"""The maximum difference in seconds between the travel times of two calls."""


class Work(NamedTuple):
    """The work of one process."""

    url: str
    port: int
    keys: int
    callers: int
    seconds: float


class Stub:
    """Notes when calls of which keys arrive."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection, one after the other, until its process ends."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self.calls.append((time.monotonic(), line.decode().strip()))
                writer.write(b"1\n")
        writer.close()

    def over(self) -> int:
        """How many calls found a window full."""
        keys = {key for _, key in self.calls}
        return _over([at for at, _ in self.calls], TOTAL) + sum(
            _over([at for at, key in self.calls if key == mine], EACH) for mine in keys
        )


def _over(arrivals: Iterable[float], most: int) -> int:
    window, found = deque[float](), 0
    for at in arrivals:
        window.append(at)
        while window[0] <= at - WINDOW:
            window.popleft()
        found += len(window) * COST > most
    return found


def process(work: Work, ready: Barrier) -> None:
    """Call the stub until the end, once all processes are ready."""

    async def caller(key: IntervalQueue, name: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", work.port)
        while True:
            async with key.slot(cost={"tokens": COST}):
                writer.write(f"{name}\n".encode())
                await reader.readline()

    async def main() -> None:
        queue = IntervalQueue(
            "bench",
            rate=RATE,
            limits=[Limit(TOTAL, WINDOW, "tokens", JITTER)],
            each=["shared", Limit(EACH, WINDOW, "tokens", JITTER)],
            store=work.url,
        )
        with contextlib.suppress(Exception):  # it doesn't exist yet: the answer is enough
            await queue.inspect()
        await asyncio.to_thread(ready.wait, START)
        names = [f"key-{number % work.keys}" for number in range(work.callers)]
        async with asyncio.timeout(work.seconds):
            await asyncio.gather(*(caller(queue[name], name) for name in names))

    with contextlib.suppress(TimeoutError):  # those that still wait
        asyncio.run(main())


async def measure(
    condition: Condition, processes: int, url: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One run."""
    stub, meter = Stub(), Meter(url)
    server = await asyncio.start_server(stub.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(processes + 1)
    work = Work(url, port, options.keys, options.callers, options.seconds + 1)
    children = [spawn.Process(target=process, args=(work, ready), daemon=True) for _ in range(processes)]
    for child in children:
        child.start()
    before = meter.read()
    await asyncio.to_thread(ready.wait, START)
    with condition.around([child.pid or 0 for child in children]):
        late = sorted(await timers(time.monotonic() + options.seconds + 1))
        load = os.getloadavg()[0]
    after = meter.read()
    for child in children:
        await asyncio.to_thread(child.join, 60)
    server.close()
    begin = stub.calls[0][0]
    stub.calls = [call for call in stub.calls if call[0] < begin + options.seconds]
    times = [at for at, _ in stub.calls]
    windows = options.seconds / WINDOW
    most = min(TOTAL, options.keys * EACH, RATE * WINDOW * COST) / COST * windows
    counts = Counter(key for _, key in stub.calls)
    asked = meter.between(before, after, len(stub.calls))["store_calls"]
    meter.close()
    return {
        "condition": condition.name,
        "processes": processes,
        "calls": len(stub.calls),
        "used": len(stub.calls) / most,
        "keys": "/".join(str(count) for _, count in sorted(counts.items())),
        "over": stub.over(),
        "longest": max([b - a for a, b in pairwise([*times, begin + options.seconds])]),
        "asked": asked,
        "timer_p50": statistics.median(late),
        "timer_p99": late[int(len(late) * 0.99)],
        "load": load,
    }


def main() -> None:
    """Run all conditions, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="redis")
    parser.add_argument("--conditions", default="quiet,pressed", help="of quiet, pressed, stopped, quota")
    parser.add_argument("--processes", default="1,4", help="numbers of processes")
    parser.add_argument("--callers", type=int, default=12, help="callers of each process")
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    found, missing = conditions(words(options.conditions), None)
    rows: list[dict[str, Any]] = []
    for condition in found:
        for _ in range(options.runs):
            for processes in map(int, words(options.processes)):
                with store_of(options.store) as url:
                    rows.append(asyncio.run(measure(condition, processes, url, options)))
                print(table(COLUMNS, rows[-1:]), flush=True)
    print(table(COLUMNS, rows))
    for name, why in missing.items():
        print(f"{name}: missing: {why}")


if __name__ == "__main__":
    main()
