"""What share of the counting rate of a NATS server do ticket requests reach?

Writers on connections of their own, tasks of one process, all on the same key. Beside each other: increments of a bare
counter; by the store, tickets of a queue with a backlog, with slots that are used as well, and of an idle one; and a
counter in a key-value bucket, which is read and written back until no other writer was faster. Rounds take turns, so that a busy machine is busy for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import nats
from nats.js.errors import KeyWrongLastSequenceError

from _store import store_of
from intervalq.rules import Advance, Settings
from intervalq_stores.nats.queues import NATSStore

Write = Callable[[], Awaitable[object]]

BACKLOG = Advance(settings=Settings(interval=1_000_000), nonce="backlog", take=1)
IDLE = Advance(settings=Settings(interval=1), nonce="idle", take=1)


async def bare(url: str, stack: AsyncExitStack) -> Write:
    """A bare counter, by the driver alone."""
    client = await nats.connect(url)
    stack.push_async_callback(client.close)
    stream = {"name": "bare", "subjects": ["bare"], "allow_msg_counter": True, "max_msgs_per_subject": 1_024}
    await client.request("$JS.API.STREAM.CREATE.bare", json.dumps(stream).encode())
    context = client.jetstream()
    return lambda: context.publish("bare", b"", headers={"Nats-Incr": "+1"})


async def swapped(url: str, stack: AsyncExitStack) -> Write:
    """A counter in a bucket, by compare-and-set."""
    client = await nats.connect(url)
    stack.push_async_callback(client.close)
    bucket = await client.jetstream().create_key_value(bucket="swapped")
    await bucket.put("key", b"0")

    async def write() -> None:
        while True:
            entry = await bucket.get("key")
            try:
                await bucket.update("key", b"%d" % (int(entry.value or b"0") + 1), last=entry.revision)
            except KeyWrongLastSequenceError:
                continue
            return

    return write


async def tickets(url: str, stack: AsyncExitStack, queue: str, command: Advance) -> Write:
    """Tickets of a queue, by the store."""
    store = NATSStore(url)
    stack.push_async_callback(store.aclose)
    await store.apply(queue, replace(command, nonce="first"))
    return lambda: store.apply(queue, command)


async def slots(url: str, stack: AsyncExitStack) -> Write:
    """The same, and each call uses the slot that it took before, as busy shards do."""
    store = NATSStore(url)
    stack.push_async_callback(store.aclose)
    last = await store.apply("slots", replace(BACKLOG, nonce="first", take=2))

    async def write() -> None:
        nonlocal last
        assert last.state is not None
        command = replace(BACKLOG, generation=last.state.generation, slots=last.taken[:1])
        last = await store.apply("slots", command)

    return write


KINDS: dict[str, Callable[[str, AsyncExitStack], Awaitable[Write]]] = {
    "bare counter": bare,
    "queue, backlog": lambda url, stack: tickets(url, stack, "backlog", BACKLOG),
    "queue, slots used": slots,
    "queue, idle": lambda url, stack: tickets(url, stack, "idle", IDLE),
    "compare-and-set": swapped,
}


async def measure(url: str, writers: int, rounds: int, seconds: float) -> dict[str, list[list[float]]]:
    """For each kind and round, the duration of each write in seconds."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    async with AsyncExitStack() as stack:
        made = {kind: [await make(url, stack) for _ in range(writers)] for kind, make in KINDS.items()}
        for number in range(rounds + 1):
            for kind, writes in made.items():
                taken: list[float] = []
                end = time.perf_counter() + (seconds if number else min(seconds, 0.3))
                await asyncio.gather(*[work(write, end, taken) for write in writes])
                if number:  # the first one warms up
                    found[kind].append(taken)
    return found


async def work(write: Write, end: float, taken: list[float]) -> None:
    """Repeat the write."""
    while (begin := time.perf_counter()) < end:
        await write()
        taken.append(time.perf_counter() - begin)


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="nats", help="or the URL of one")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each kind in each round")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    with store_of(arguments.store) as url:
        found = asyncio.run(measure(url, arguments.writers, arguments.rounds, arguments.seconds))
    rows = []
    print(
        f"{arguments.writers} writers, Python {platform.python_version()}; medians of {arguments.rounds} rounds"
    )
    print("                   writes/s   of bare   p50 us   p99 us")
    base = statistics.median(len(taken) for taken in found["bare counter"])
    for kind, all_taken in found.items():
        rate = statistics.median(len(taken) for taken in all_taken)
        middle, slow = (
            statistics.median(sorted(taken)[int(len(taken) * part)] * 1e6 for taken in all_taken)
            for part in (0.5, 0.99)
        )
        print(f"{kind:17}  {rate / arguments.seconds:8.0f}  {rate / base:8.2f}  {middle:7.0f}  {slow:7.0f}")
        rows.append({"kind": kind, "rate": rate / arguments.seconds, "p50": middle, "p99": slow})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
