"""Are several limits kept at once, over processes, and how much of them is used?

A stub stands for a server with three limits, of calls a second, and of calls and tokens a window; it refuses what
doesn't fit. Processes with several callers each call it as fast as their limiter lets them; a refused call is not
made again. What a call takes of the tokens is heavy-tailed. Before the call, an upper bound is known; the truth
is known when it has been answered, 50 to 250 ms later.

`refused` is the share of calls that the stub refused. `used` is the share of the limit that was used best, in whole
windows after the first one. `possible` is the shortest time in which the stub could have accepted the same calls in the
same order, divided by the time that they took; `with bounds`: the same for a client of perfect timing that knows only
the bounds before. `calls` are requests to Redis for each call of the stub, `commands` all commands, including those
inside scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

from _conditions import pressed
from _limited_clients import CLIENTS, Take
from _limited_stub import KINDS, Scale, Stub, share
from _store import Meter, store_of
from _table import Column, table

SCALES = {
    "minute": Scale(20, 600, 30_000, 60.0),
    "short": Scale(20, 100, 5_000, 10.0),
}
COLUMNS = (
    Column("contender", "contender"),
    Column("stub", "stub"),
    Column("calls made", "jobs", "{:.0f}"),
    Column("refused", "refused", "{:.2%}"),
    Column("used", "used", "{:.3f}"),
    Column("possible", "possible", "{:.3f}"),
    Column("with bounds", "bounded", "{:.3f}"),
    Column("calls", "calls", "{:.2f}"),
    Column("commands", "commands", "{:.1f}"),
    Column("load", "load", "{:.1f}"),
    Column("timer us", "timer", "{:.0f}"),
)


START = 60
"""Seconds in which all processes must have connected."""


class Work(NamedTuple):
    """The work of one process."""

    contender: str
    url: str
    scale: Scale
    kind: str
    port: int
    callers: int
    seconds: float
    bound: float


def process(work: Work, seed: int, ready: Barrier) -> None:
    """Call the stub until the end, once all processes are ready."""

    async def caller(take: Take, draw: random.Random) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", work.port)
        while True:
            tokens = min(work.scale.most, int(17 * draw.paretovariate(1.5)))
            bound = min(work.scale.most, math.ceil(work.bound * tokens))
            settle = await take(bound)
            writer.write(b"%d %d\n" % (tokens, bound))
            await reader.readline()
            settled = settle(tokens) if settle is not None else None
            if inspect.isawaitable(settled):
                await settled

    async def main() -> None:
        take = await CLIENTS[work.contender](work.url, work.scale, work.kind)
        draws = [random.Random(seed * 1_000 + number) for number in range(work.callers)]
        await asyncio.to_thread(ready.wait, START)
        async with asyncio.timeout(work.seconds):
            await asyncio.gather(*(caller(take, draw) for draw in draws))

    with contextlib.suppress(TimeoutError):  # those that still wait
        asyncio.run(main())


async def timers(until: float) -> list[float]:
    """How late bare sleeps of this machine end meanwhile, in microseconds."""
    late: list[float] = []
    while (now := time.monotonic()) < until:
        await asyncio.sleep(0.05)  # noqa: TID251 - what is measured
        late.append((time.monotonic() - now - 0.05) * 1e6)
    return late


async def measure(contender: str, kind: str, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run of one contender."""
    scale = SCALES[options.scale]
    stub, meter = Stub(kind, scale), Meter(url)
    server = await asyncio.start_server(stub.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(options.processes + 1)
    work = Work(contender, url, scale, kind, port, options.callers, options.seconds, options.bound)
    children = [
        spawn.Process(target=process, args=(work, seed, ready), daemon=True)
        for seed in range(options.processes)
    ]
    for child in children:
        child.start()
    before = meter.read()
    await asyncio.to_thread(ready.wait, START)
    late = await timers(time.monotonic() + options.seconds)
    for child in children:
        await asyncio.to_thread(child.join, 30)
    after = meter.read()
    server.close()
    jobs = len(stub.accepted) + len(stub.refused)
    cost = meter.between(before, after, jobs)
    meter.close()
    return {
        "contender": contender,
        "stub": kind,
        "jobs": jobs,
        "refused": len(stub.refused) / max(1, jobs),
        "used": stub.used(),
        "possible": share(stub, kind, bounded=False),
        "bounded": share(stub, kind, bounded=True),
        "calls": cost["store_calls"],
        "commands": cost["store_commands"],
        "load": os.getloadavg()[0],
        "timer": statistics.median(late),
    }


async def together(contender: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One contender against all stubs at the same time: each has a Redis and processes of its own."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [stack.enter_context(store_of("redis")) for _ in options.stubs.split(",")]
        runs = zip(options.stubs.split(","), urls, strict=True)
        return await asyncio.gather(*(measure(contender, kind, url, options) for kind, url in runs))


def main() -> None:
    """Run all contenders, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", choices=SCALES, default="short", help="20/s, and by the minute or 10 s")
    parser.add_argument("--seconds", type=float, help="default: 4.5 windows")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument(
        "--bound", type=float, default=3, help="the bound that is known before, in multiples of the truth"
    )
    parser.add_argument("--stubs", default=",".join(KINDS), help="kinds of stubs, separated by commas")
    parser.add_argument("--only", default=";".join(CLIENTS), help="contenders, separated by semicolons")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--pressed", action="store_true", help="beside two busy loops per processor")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    options.seconds = options.seconds or 4.5 * SCALES[options.scale].window
    rows: list[dict[str, Any]] = []
    with pressed() if options.pressed else contextlib.nullcontext():
        for contender in options.runs * options.only.split(";"):
            rows += asyncio.run(together(contender, options))
            print(table(COLUMNS, rows[-len(options.stubs.split(",")) :]), file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options), "rows": rows}, default=str, indent=1))
    print(table(COLUMNS, sorted(rows, key=lambda row: row["stub"])))


if __name__ == "__main__":
    main()
