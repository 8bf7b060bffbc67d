"""How soon after a resume does every shard that waited know of it, beside a bare round trip to the store?

Eight shards in one process, each with connections of its own, wait in a pause. The time is measured from sending
the resume until the first one, and the last one, has been woken, has asked the store, and knows that the queue goes
on. Their requests are steps on one record, which the store takes one after the other.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import time
from pathlib import Path

import anyio
import anyio.lowlevel

from _store import store_of
from intervalq import IntervalQueue


async def measure(store: str, rounds: int, shards: int) -> tuple[list[float], list[float], list[float]]:
    """Microseconds until the first shard knows and until all know, and of a step with its round trip."""
    firsts, waits, trips = [], [], []
    boss = IntervalQueue("wakeup", interval=0.01, store=store)
    await boss.run(anyio.lowlevel.checkpoint)
    for _ in range(rounds):
        await boss.pause()
        queues = [IntervalQueue("wakeup", interval=0.01, store=store) for _ in range(shards)]
        async with anyio.create_task_group() as group:
            for queue in queues:
                group.start_soon(queue.run, anyio.lowlevel.checkpoint)
            while not all(queue._shard().is_held for queue in queues):
                await anyio.sleep(0.01)
            await anyio.sleep(0.2)  # all of them listen
            begin = time.perf_counter()
            await boss.pause()  # held already: a step like any other
            sent = time.perf_counter()
            await boss.resume()
            while all(queue._shard().is_held for queue in queues):
                await anyio.lowlevel.checkpoint()
            firsts.append((time.perf_counter() - sent) * 1e6)
            while any(queue._shard().is_held for queue in queues):
                await anyio.lowlevel.checkpoint()
            waits.append((time.perf_counter() - sent) * 1e6)
            trips.append((sent - begin) * 1e6)
        for queue in queues:
            await queue.close()
    await boss.close()
    return firsts, waits, trips


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="memory,redis,valkey,postgres,file", help="some of these, or URLs")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    rows = []
    print(f"{arguments.shards} shards wait in a pause, Python {platform.python_version()}")
    print("store       first knows after us: p50    max   all know after us: p50    max   one step us: p50")
    logging.getLogger("intervalq").setLevel(logging.ERROR)
    for kind in arguments.store.split(","):
        with store_of(kind) as store:
            firsts, waits, trips = anyio.run(measure, store, arguments.rounds, arguments.shards)
        print(f"{kind:10}  {statistics.median(firsts):25.0f}  {max(firsts):5.0f}  {statistics.median(waits):22.0f}"
              f"  {max(waits):5.0f}  {statistics.median(trips):17.0f}", flush=True)  # fmt: skip
        rows.append({"store": kind, "firsts": firsts, "waits": waits, "trips": trips})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
