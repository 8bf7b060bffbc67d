"""Durable tasks on JetStream beside the driver of NATS itself: the same messages on the same server, in one run.

Raw: nats-py's `pull_subscribe`, `fetch` and `msg.ack()` each, on a stream of its own with work-queue retention.
Confirmed: the same with `msg.ack_sync()`, gathered, which waits for the server's answer, as ours does. Ours:
`tasks.pull(...)`, `fetch` and `claim.ack()`, gathered. Connections are made, and the first batch is done, before
the clock starts, except where there are two processes. Rows take turns; medians are shown. "idle" is how long it
takes from the beginning of an insert until an idle worker begins. "feed" is how long it takes from the
acknowledgement of a key's task until the next one of the key is claimed elsewhere: here, and where the server
itself feeds a stream of one message a subject from an inbox, by a source.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import nats
import nats.errors
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, StreamConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import servers
from intervalq.tasks import Claim, Tasks

PAYLOAD = {"value": "x" * 100}
_TURNS = 3
"""Single fetches of each run: most of their time is waiting, which other work on the machine lengthens."""

WINDOW = 500
"""The maximum number of messages that raw `publish` has in flight."""


class Raw:
    """The driver alone."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    async def put(self, count: int) -> None:
        """Publish, with an acknowledgement each, many at a time."""
        client = await nats.connect(self.url)
        stream = client.jetstream()
        config = StreamConfig(name=self.name, subjects=[f"{self.name}.*"], retention="workqueue")
        await stream.add_stream(config)
        await stream.add_consumer(
            self.name, ConsumerConfig(durable_name="c", ack_policy="explicit", max_ack_pending=-1)
        )
        data = json.dumps(PAYLOAD).encode()
        for first in range(0, count, WINDOW):
            some = range(first, min(first + WINDOW, count))
            await asyncio.gather(*(stream.publish(f"{self.name}.{number}", data) for number in some))
        await client.close()

    async def drain(self, count: int, batch: int) -> float:
        """Fetch and acknowledge until `count` are done or none come; messages per second after the first."""
        client = await nats.connect(self.url)
        pull = await client.jetstream().pull_subscribe_bind("c", self.name)
        done, first, begun = 0, 0, 0.0
        while done < count:
            try:
                messages = await pull.fetch(batch, timeout=1)
            except nats.errors.TimeoutError:
                break
            await self.acknowledge(messages)
            done += len(messages)
            if not begun:
                first, begun = done, time.perf_counter()
        await client.flush()
        rate = (done - first) / (time.perf_counter() - begun)
        await client.close()
        return rate

    async def acknowledge(self, messages: list[Msg]) -> None:
        """Acknowledge without waiting for a confirmation."""
        for message in messages:
            json.loads(message.data)
            await message.ack()


class Confirmed(Raw):
    """The driver alone, with `ack_sync`, which waits until the server has confirmed the acknowledgement."""

    async def acknowledge(self, messages: list[Msg]) -> None:
        """Acknowledge all messages of a batch at once."""
        for message in messages:
            json.loads(message.data)
        await asyncio.gather(*(message.ack_sync() for message in messages))


class Ours:
    """The same, through tasks."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    async def put(self, count: int) -> None:
        """Insert."""
        async with Tasks(self.url) as tasks:
            await tasks.put(self.name, [PAYLOAD] * count)

    async def drain(self, count: int, batch: int) -> float:
        """Fetch and acknowledge until `count` are done or none come; tasks per second after the first."""
        async with Tasks(self.url) as tasks:
            pull = tasks.pull(self.name, name="bench", max_ack_pending=None)
            done, first, begun = 0, 0, 0.0
            while done < count:
                claims = await pull.fetch(batch, timeout=1)
                if not claims:
                    break
                for claim in claims:
                    assert claim.value
                await asyncio.gather(*(claim.ack() for claim in claims))
                done += len(claims)
                if not begun:
                    first, begun = done, time.perf_counter()
            return (done - first) / (time.perf_counter() - begun)


KINDS: dict[str, Callable[[str, str], Raw | Ours]] = {"raw": Raw, "confirmed": Confirmed, "ours": Ours}


def timed(job: Awaitable[None]) -> float:
    """The seconds that this takes."""

    async def run() -> float:
        begun = time.perf_counter()
        await job
        return time.perf_counter() - begun

    return asyncio.run(run())


def _process(share: tuple[str, str, str, int], ready: Any) -> None:  # noqa: ANN401 - a barrier
    kind, url, name, count = share
    ready.wait()
    asyncio.run(KINDS[kind](url, name).drain(count, 100))


def by_processes(kind: str, url: str, name: str, count: int, number: int = 2) -> float:
    """The seconds that several processes take, each for its share."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(number + 1)
    each = [
        context.Process(target=_process, args=((kind, url, name, count // number), ready))
        for _ in range(number)
    ]
    for process in each:
        process.start()
    ready.wait()
    begun = time.perf_counter()
    for process in each:
        process.join()
    return time.perf_counter() - begun


async def idle_raw(url: str, turns: int) -> list[float]:
    """Milliseconds from the beginning of `publish` until a `fetch` that waits elsewhere has the message."""
    raw = Raw(url, f"i{secrets.token_hex(4)}")
    await raw.put(0)
    one, two = await nats.connect(url), await nats.connect(url)
    pull = await two.jetstream().pull_subscribe_bind("c", raw.name)
    took: list[float] = []
    for number in range(turns):
        waiting = asyncio.ensure_future(pull.fetch(1, timeout=10))
        await anyio.sleep(0.05)
        begun = time.perf_counter()
        publishing = asyncio.ensure_future(one.jetstream().publish(f"{raw.name}.{number}", b"1"))
        (message,) = await waiting
        took.append((time.perf_counter() - begun) * 1e3)
        await publishing
        await message.ack_sync()
    await one.close()
    await two.close()
    return took


async def idle_ours(url: str, turns: int) -> list[float]:
    """Milliseconds from the beginning of `insert` until an idle worker's function begins."""
    queue, took = f"i{secrets.token_hex(4)}", list[float]()
    async with Tasks(url) as tasks, Tasks(url) as others:
        inserted, begun = 0.0, asyncio.Event()

        @tasks.worker(queue)
        async def work(_: Claim) -> None:
            took.append((time.perf_counter() - inserted) * 1e3)
            begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            for number in range(turns):
                await anyio.sleep(0.05)
                begun.clear()
                inserted = time.perf_counter()
                inserting = asyncio.ensure_future(others.insert(queue, number))
                await begun.wait()
                await inserting
            tasks.stop()
    return took


async def feed_ours(url: str, turns: int) -> list[float]:
    """Milliseconds from the acknowledgement until another process's waiting call has the next of the key."""
    queue = f"feed-{secrets.token_hex(4)}"
    async with Tasks(url) as one, Tasks(url) as two:
        for number in range(turns + 1):
            await one.insert(queue, number, key="k")
        took: list[float] = []

        async def next_of(tasks: Tasks) -> tuple[Claim, float]:
            return await tasks.claim(queue), time.perf_counter()

        claim = await one.claim(queue)
        for turn in range(turns):
            waiting = asyncio.ensure_future(next_of(two if turn % 2 == 0 else one))
            await anyio.sleep(0.05)
            begun = time.perf_counter()
            await claim.ack()
            claim, ended = await waiting
            took.append((ended - begun) * 1e3)
        await claim.ack()
    return took


async def round_trip(url: str, turns: int) -> list[float]:
    """Milliseconds that `publish` takes, with its acknowledgement."""
    client = await nats.connect(url)
    stream, name = client.jetstream(), f"t{secrets.token_hex(4)}"
    await stream.add_stream(name=name, subjects=[f"{name}.*"])
    took: list[float] = []
    for number in range(turns):
        await anyio.sleep(0.05)
        begun = time.perf_counter()
        await stream.publish(f"{name}.{number}", b"1")
        took.append((time.perf_counter() - begun) * 1e3)
    await client.close()
    return took


async def feed_by_source(url: str, turns: int) -> list[float]:
    """The same where the server feeds: an inbox, and a stream of one message per subject that sources it."""
    name = f"S{secrets.token_hex(4)}"
    client = await nats.connect(url)

    async def ask(subject: str, body: dict[str, Any]) -> None:
        reply = json.loads((await client.request(f"$JS.API.{subject}", json.dumps(body).encode())).data)
        assert "error" not in reply, reply

    full = {"discard": "new", "discard_new_per_subject": True}
    inbox = {"name": f"I{name}", "subjects": [f"{name}.*"], "max_msgs_per_subject": turns + 1}
    await ask(f"STREAM.CREATE.I{name}", inbox | full)
    work = {"name": f"W{name}", "retention": "workqueue", "max_msgs_per_subject": 1}
    await ask(f"STREAM.CREATE.W{name}", work | full | {"sources": [{"name": f"I{name}"}]})
    await ask(
        f"CONSUMER.DURABLE.CREATE.W{name}.c",
        {"stream_name": f"W{name}", "config": {"durable_name": "c", "ack_policy": "explicit"}},
    )
    for _ in range(turns + 1):
        await client.request(f"{name}.k", b"1")
    pull = await client.jetstream().pull_subscribe_bind("c", f"W{name}")
    took: list[float] = []
    (message,) = await pull.fetch(1, timeout=10)
    for _ in range(turns):
        begun = time.perf_counter()
        await message.ack()
        (message,) = await pull.fetch(1, timeout=10)
        took.append((time.perf_counter() - begun) * 1e3)
    await client.close()
    return took


def rows(url: str, options: argparse.Namespace) -> None:
    """Measure and print."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(row: str, kind: str, rate: float) -> None:
        found.setdefault(row, {}).setdefault(kind, []).append(rate)

    few = max(2, options.tasks // 10)
    for _ in range(options.runs * _TURNS):
        for kind, make in KINDS.items():
            one = make(url, f"b{secrets.token_hex(4)}")
            timed(one.put(few))
            note("fetch(1) + ack", kind, asyncio.run(one.drain(few, 1)))
    for _ in range(options.runs):
        for kind, make in KINDS.items():
            one = make(url, f"b{secrets.token_hex(4)}")
            note("insert", kind, options.tasks / timed(one.put(options.tasks)))
            note("fetch(100) + ack", kind, asyncio.run(one.drain(options.tasks, 100)))
            one = make(url, f"b{secrets.token_hex(4)}")
            timed(one.put(options.tasks))
            took = by_processes(kind, url, one.name, options.tasks)
            note("fetch(100) + ack, 2 processes", kind, options.tasks / took)
    print(f"{'tasks a second':32}{'raw':>9}{'confirmed':>11}{'ours':>9}{'of raw':>8}{'of confirmed':>14}")
    for row, kinds in found.items():
        raw, sure, ours = (statistics.median(kinds[kind]) for kind in KINDS)
        print(f"{row:32}{raw:9.0f}{sure:11.0f}{ours:9.0f}{ours / raw:8.2f}{ours / sure:14.2f}", flush=True)
    for name, took in (
        ("idle, raw", asyncio.run(idle_raw(url, options.turns))),
        ("idle, ours", asyncio.run(idle_ours(url, options.turns))),
        ("round trip", asyncio.run(round_trip(url, options.turns))),
        ("feed here", asyncio.run(feed_ours(url, options.turns))),
        ("feed by source", asyncio.run(feed_by_source(url, min(options.turns, 5)))),
    ):
        print(f"{name:15} median {statistics.median(took):8.2f} ms, longest {max(took):8.2f} ms")


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20, help="turns of the feed")
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, nats-py {version('nats-py')}, {os.cpu_count()} processors, "
        f"load {os.getloadavg()[0]:.1f}, {options.tasks} tasks, median of {options.runs}"
    )
    with servers.running(servers.nats_server()) as server:
        rows(server.url, options)


if __name__ == "__main__":
    main()
