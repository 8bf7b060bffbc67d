"""Do the keys of durable tasks take turns, whatever their backlogs?

One key has very many tasks, and nine others that came later have ten each. A worker does them one at a time, as the
last one of these could be any of the nine. `starts` is the number of tasks that began until the nine were done, and
`x share` that number divided by 100: ten turns of ten keys.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import anyio

from _report import words
from _store import store_of
from _table import Column, table
from intervalq.tasks import Claim, Tasks

STORES = "memory,sqlite,redis,valkey,postgres,nats"
SMALL, EACH = 9, 10
AT_ONCE = 1_000
COLUMNS = (
    Column("store", "store"),
    Column("backlog", "backlog", "{:.0f}"),
    Column("concurrency", "concurrency", "{:.0f}"),
    Column("starts", "starts", "{:.0f}"),
    Column("x share", "share", "{:.2f}"),
    Column("load", "load", "{:.1f}"),
)


async def starts(url: str, backlog: int, concurrency: int) -> int:
    """How many tasks began until the small keys were done."""
    async with Tasks(url) as tasks:
        begun, left = 0, SMALL * EACH

        @tasks.worker("work", concurrency=concurrency)
        async def work(task: Claim) -> None:
            nonlocal begun, left
            await anyio.sleep(0.001)
            begun += left > 0
            left -= task.key != "large"
            if not left:
                tasks.stop()

        for first in range(0, backlog, AT_ONCE):
            many = min(AT_ONCE, backlog - first)
            await tasks.modify(*[tasks.new("work", 1, key="large") for _ in range(many)])
        for key in range(SMALL):
            await tasks.modify(*[tasks.new("work", 1, key=f"small{key}") for _ in range(EACH)])
        await tasks.run()
        return begun


def main() -> None:
    """Print one row per store and concurrency."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stores", type=words, default=words(STORES), metavar="A,B", help=f"default: {STORES}"
    )
    parser.add_argument("--backlog", type=int, default=100_000, metavar="N", help="default: 100,000")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind in options.stores:
        for concurrency in (1, 10):
            with store_of(kind) as url:
                load = os.getloadavg()[0]
                count = anyio.run(partial(starts, url, options.backlog, concurrency))
            rows.append(
                {"store": kind, "backlog": options.backlog, "concurrency": concurrency, "starts": count}
            )
            rows[-1] |= {"share": count / (SMALL + 1) / EACH, "load": load}
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
