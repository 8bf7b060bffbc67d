"""How exact is the pacing of several processes over one store, and what does it cost?

Each process has some callers, each of which calls a paced function again as soon as it returns: a steady
backlog. Starts are recorded by the jobs themselves with CLOCK_MONOTONIC, which all processes of a machine share.
A gap counts as short under 0.9 of the interval. "frozen" counts the short gaps whose earlier job was
delayed by the machine between the last check and its first instruction: nobody can pace those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio

from intervalq import IntervalQueue

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import servers


@dataclass(frozen=True)
class Work:
    """What every process does."""

    store: str
    interval: float
    callers: int
    lookahead: int | None
    seconds: float
    begin: int  # CLOCK_MONOTONIC, nanoseconds


def process(work: Work, results: Any) -> None:  # noqa: ANN401 - a multiprocessing queue
    """One shard: its callers, from the common beginning to the common end."""
    starts: list[tuple[int, int, int]] = []
    figures: dict[str, float] = {}

    async def main() -> None:
        queue = IntervalQueue("bench", interval=work.interval, store=work.store, lookahead=work.lookahead)
        shard = queue.shard()
        end = work.begin + int(work.seconds * 1e9)
        await anyio.sleep(max(0.0, (work.begin - time.monotonic_ns()) / 1e9))

        async def caller() -> None:
            while True:
                async with queue.slot() as slot:
                    now = time.monotonic_ns()
                    if now >= end:
                        return
                    starts.append((now, slot.ticket, (shard.begun_at or 0) * 1_000))

        used = resource.getrusage(resource.RUSAGE_SELF)
        async with anyio.create_task_group() as group:
            for _ in range(work.callers):
                group.start_soon(caller)
            await anyio.sleep((end - time.monotonic_ns()) / 1e9)
            figures["calls"] = shard.calls
            figures["given_up"] = shard.given_up
            group.cancel_scope.cancel()
        after = resource.getrusage(resource.RUSAGE_SELF)
        figures["cpu"] = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        await queue.close(drain=False)

    anyio.run(main)
    results.put((starts, figures))


def measure(store: str, arguments: argparse.Namespace, lookahead: int | None) -> dict[str, Any]:
    """One run of all processes; the figures of a row."""
    interval = 1 / arguments.rate
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    begin = time.monotonic_ns() + int(2e9)
    work = Work(store, interval, arguments.callers, lookahead, arguments.seconds, begin)
    processes = [context.Process(target=process, args=(work, results)) for _ in range(arguments.processes)]
    for each in processes:
        each.start()
    answers = [results.get(timeout=arguments.seconds + 60) for _ in processes]
    for each in processes:
        each.join()
    starts = sorted(start for part, _ in answers for start in part)
    total = {name: sum(figures[name] for _, figures in answers) for name in answers[0][1]}
    gaps = [(later[0] - earlier[0]) / 1e9 / interval for earlier, later in pairwise(starts)]
    short = [pair for pair in pairwise(starts) if pair[1][0] - pair[0][0] < 0.9e9 * interval]
    # Measured at the last checks, the gap was long enough: the machine stood between check and start.
    frozen = sum(1 for earlier, later in short if later[2] - earlier[2] >= 0.9e9 * interval)
    cuts = statistics.quantiles(gaps, n=100)
    return {
        "rate": len(starts) / arguments.seconds * interval,
        "short": len(short) / len(gaps),
        "frozen": frozen,
        "min": min(gaps),
        "p1": cuts[0],
        "p50": cuts[49],
        "p99": cuts[98],
        "inversions": sum(1 for earlier, later in pairwise(starts) if later[1] < earlier[1]),
        "calls": total["calls"] / len(starts),
        "given_up": total["given_up"] / len(starts),
        "cpu_us": total["cpu"] / len(starts) * 1e6,
        "jobs": len(starts),
    }


@contextlib.contextmanager
def store_of(kind: str) -> Iterator[str]:
    """A store of its own for one run."""
    if kind == "file":
        with tempfile.TemporaryDirectory() as folder:
            yield f"file://{folder}/state.json"
    elif kind in ("redis", "valkey"):
        binary = servers.redis_binary() if kind == "redis" else servers.valkey_binary()
        with servers.running(servers.redis_server(binary)) as server:
            yield server.url
    elif kind == "postgres":
        with servers.running(servers.postgres_server()) as server:
            yield server.url
    else:
        yield kind


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="redis", help="redis, valkey, postgres, file, or a URL")
    parser.add_argument("--rate", type=float, default=100, help="starts a second")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--callers", type=int, default=8, help="callers in each process")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lookahead", default="16,1,all", help="one row each")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()

    print(f"{arguments.processes} processes x {arguments.callers} callers, {arguments.rate:g}/s, {arguments.seconds:g} s, "
          f"{arguments.store}, Python {platform.python_version()}")  # fmt: skip
    print("lookahead  rate/possible  short %  of them frozen  min gap/I     p1    p50    p99  "
          "inversions  calls/job  given up/job  client CPU us/job")  # fmt: skip
    rows = []
    for _ in range(arguments.runs):
        for name in arguments.lookahead.split(","):
            with store_of(arguments.store) as store:
                row = measure(store, arguments, None if name == "all" else int(name))
            rows.append({"lookahead": name, **vars(arguments), **row, "json": None})
            print(f"{name:>9}  {row['rate']:13.4f}  {row['short'] * 100:7.2f}  {row['frozen']:14d}  {row['min']:9.3f}"
                  f"  {row['p1']:5.3f}  {row['p50']:5.3f}  {row['p99']:5.3f}  {row['inversions']:10d}  {row['calls']:9.3f}"
                  f"  {row['given_up']:12.4f}  {row['cpu_us']:17.0f}")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
