"""What do the outcomes of durable tasks cost?

A worker drains a queue of tasks that do nothing: without `keep`, with it, and with results that are kept. These runs take
turns. The figures are CPU time for each task, of the worker and of the server (of Linux alone), and `x without` is the
median of the sums compared with the runs without `keep` before them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import anyio

from _report import words
from _store import store_of
from _table import Column, table
from intervalq.tasks import Claim, Tasks

STORES: Final = "memory,sqlite,postgres"
RUNS: Final = {"without": None, "keep": None, "keep, result": {"sent": 1}}
AT_ONCE: Final = 1_000
COLUMNS: Final = (
    Column("store", "store"),
    Column("run", "run"),
    Column("tasks/s", "per_s", "{:.0f}"),
    Column("worker us", "worker_us", "{:.1f}"),
    Column("server us", "server_us", "{:.1f}"),
    Column("x without", "ratio", "{:.3f}"),
    Column("load", "load", "{:.1f}"),
)


async def drain(url: str, run: str, tasks_count: int) -> None:
    """Insert tasks, and print how long their end takes, and how much of it the CPU works."""
    async with Tasks(url) as tasks:
        keep = None if run == "without" else "7d"
        for first in range(0, tasks_count, AT_ONCE):
            many = range(first, min(first + AT_ONCE, tasks_count))
            await tasks.modify(*[tasks.new("work", {"n": n, "to": "a@example.org"}, keep=keep) for n in many])

        @tasks.worker("work")
        async def work(_: Claim) -> Any:  # noqa: ANN401 - any JSON
            return RUNS[run]

        sys.stdout.write("inserted\n")
        sys.stdout.flush()
        sys.stdin.readline()
        began, worked = time.perf_counter(), time.process_time()
        await tasks.run(until_empty=True)
        print(time.perf_counter() - began, time.process_time() - worked)


def servers_cpu(but: int) -> float:
    """The CPU time in seconds of all processes that this one has started, except for one; 0: unknown."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in mine} - mine - {but}:
        mine |= more
    return sum(found[pid][1] for pid in mine - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def measured(url: str, run: str, tasks_count: int) -> dict[str, float]:
    """One run, in a process of its own."""
    command = [sys.executable, __file__, "--drain", url, run, "--tasks", str(tasks_count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "inserted\n":
            raise SystemExit(f"the run {run!r} failed")
        before = servers_cpu(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        took, worker = map(float, process.stdout.readline().split())
        server = servers_cpu(process.pid) - before
    return {
        "per_s": tasks_count / took,
        "worker_us": worker / tasks_count * 1e6,
        "server_us": server / tasks_count * 1e6,
    }


def rows_of(kind: str, tasks_count: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of a store; the first round only warms up."""
    found: dict[str, list[dict[str, float]]] = {run: [] for run in RUNS}
    load = os.getloadavg()[0]
    with store_of(kind) as url:
        for number in range(rounds + 1):
            for run in RUNS:
                row = measured(url, run, tasks_count)
                if number:
                    found[run].append(row)
    sums = {run: [row["worker_us"] + row["server_us"] for row in rows] for run, rows in found.items()}
    return [
        {"store": kind, "run": run, "load": load}
        | {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        | {"ratio": statistics.median(a / b for a, b in zip(sums[run], sums["without"], strict=True))}
        for run, rows in found.items()
    ]


def main() -> None:
    """Print one row per store and kind of run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stores", type=words, default=words(STORES), metavar="A,B", help=f"default: {STORES}"
    )
    parser.add_argument("--tasks", type=int, default=20_000, metavar="N", help="default: 20,000")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--drain", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain:
        url, run = options.drain
        anyio.run(drain, url, run, options.tasks)
        return
    print(
        table(
            COLUMNS, [row for kind in options.stores for row in rows_of(kind, options.tasks, options.rounds)]
        )
    )


if __name__ == "__main__":
    main()
