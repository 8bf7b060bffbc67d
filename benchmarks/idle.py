"""How long does one call on an idle queue wait, beside a bare round trip to the same store?

Calls are made one after the other, each after the interval of the one before has passed, so that each finds
its slot free. The round trip is an inspect of the same queue, right before each call.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import anyio
import anyio.lowlevel

from intervalq import IntervalQueue
from pacing import store_of


async def measure(store: str, calls: int, interval: float) -> tuple[list[float], list[float]]:
    """Microseconds of the calls, and of the round trips."""
    queue = IntervalQueue("idle", interval=interval, store=store)
    waits, trips = [], []
    async with queue:
        await queue.run(anyio.lowlevel.checkpoint)
        for _ in range(calls + 10):
            await anyio.sleep(interval * 1.5)
            begin = time.perf_counter()
            await queue.inspect()
            asked = time.perf_counter()
            async with queue.slot():
                waits.append((time.perf_counter() - asked) * 1e6)
            trips.append((asked - begin) * 1e6)
    return waits[10:], trips[10:]


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="memory://,redis,valkey,postgres,file", help="several, or URLs")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--interval", type=float, default=0.02)
    arguments = parser.parse_args()
    print(
        f"{arguments.calls} calls on an idle queue, interval {arguments.interval:g} s, Python {platform.python_version()}"
    )
    print("store       wait us: p50    p99   round trip us: p50    p99   difference p50")
    for kind in arguments.store.split(","):
        with store_of(kind) as store:
            waits, trips = anyio.run(measure, store, arguments.calls, arguments.interval)
        wait, trip = (statistics.quantiles(each, n=100) for each in (waits, trips))
        print(
            f"{kind:10}  {wait[49]:12.0f}  {wait[98]:5.0f}  {trip[49]:18.0f}  {trip[98]:5.0f}  {wait[49] - trip[49]:15.0f}"
        )


if __name__ == "__main__":
    main()
