"""How soon does a cancel reach the function of a running task?

A worker runs in a process of its own. Another process inserts a task, waits until it runs, and cancels it. `ms` is the
time from right before that call to the first instruction of the function after it was cancelled: all processes of a
machine share CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Any, Final

import anyio

from _judge import quantile
from _report import words
from _store import store_of
from _table import Column, table
from intervalq.tasks import Claim, Tasks

STORES: Final = "redis,valkey,postgres,sqlite"
COLUMNS: Final = (
    Column("store", "store"),
    Column("cancels", "cancels", "{:.0f}"),
    Column("p50 ms", "p50", "{:.1f}"),
    Column("p99", "p99", "{:.1f}"),
    Column("max", "max", "{:.1f}"),
    Column("load", "load", "{:.1f}"),
)


async def work(url: str) -> None:
    """Say when each task begins, and when its function is cancelled."""
    async with Tasks(url) as tasks:

        @tasks.worker("work")
        async def job(_: Claim) -> None:
            print("begun", flush=True)
            try:
                await anyio.sleep_forever()
            finally:
                print(time.monotonic(), flush=True)

        await tasks.run()


async def cancel(url: str, output: Any, count: int) -> list[float]:  # noqa: ANN401 - a pipe for text
    """The times of so many cancels, in milliseconds."""
    found: list[float] = []
    async with Tasks(url) as tasks:
        for _ in range(count):
            id_ = await tasks.insert("work", 1)
            if await anyio.to_thread.run_sync(output.readline) != "begun\n":
                raise SystemExit("the worker failed")
            began = time.monotonic()
            await tasks.cancel(id_)
            found.append((float(await anyio.to_thread.run_sync(output.readline)) - began) * 1e3)
    return found


def row_of(kind: str, count: int) -> dict[str, Any]:
    """The row of a store."""
    load = os.getloadavg()[0]
    with store_of(kind) as url:
        command = [sys.executable, __file__, "--work", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                found = sorted(anyio.run(cancel, url, process.stdout, count))
            finally:
                process.kill()
    return {
        "store": kind, "cancels": count, "p50": quantile(found, 0.5), "p99": quantile(found, 0.99),
        "max": found[-1], "load": load,
    }  # fmt: skip


def main() -> None:
    """Print one row per store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stores", type=words, default=words(STORES), metavar="A,B", help=f"default: {STORES}"
    )
    parser.add_argument("--cancels", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        anyio.run(work, options.work)
        return
    print(table(COLUMNS, [row_of(kind, options.cancels) for kind in options.stores]))


if __name__ == "__main__":
    main()
