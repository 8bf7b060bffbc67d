"""Real shards on real stores for as long as you like: does anything grow?

    python tests/soak.py --minutes 30

Each store has its own processes, which use a queue in every possible way. Each process regularly reports its
memory, and its numbers of objects, open files, threads and tasks; servers report their connections. None of
these may grow from the first quarter, in which caches fill, to the last. At the end it prints what grew, and
exits with 1 if anything did.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import anyio.lowlevel
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import postgres_servers
import servers
from intervalq import IntervalQueue
from intervalq.errors import IntervalqError

STORES: Final = ("redis", "valkey", "postgres", "sqlite", "file")
SLACK: Final = {"memory KiB": 2_048, "objects": 500, "files": 2, "threads": 6, "tasks": 12}
"""By how much a figure may exceed that of the first quarter, beside a twentieth: work in flight."""

_SAMPLES: Final = 40
"""How often each process reports, in seconds."""


class UserError(Exception):
    """The error that some jobs raise."""


# --- one shard --------------------------------------------------------------------------------------


class Shard:
    """Uses a queue in every possible way."""

    def __init__(self, store: str) -> None:
        self.queue = IntervalQueue("soak", interval=0.01, store=store, max_running=8)
        self.dice = random.Random()
        self.starts = 0
        self.ways = [
            self.run, self.run, self.slot, self.add, self.cancelled, self.impatient, self.fails, self.map,
            self.key, self.look, self.in_thread,
        ]  # fmt: skip

    async def job(self) -> None:
        """Count a start."""
        self.starts += 1
        await anyio.lowlevel.checkpoint()

    async def failing(self) -> None:
        """Count a start, and fail."""
        await self.job()
        raise UserError

    async def run(self) -> None:
        await self.queue.run(self.job)

    async def slot(self) -> None:
        async with self.queue.slot(cost=self.dice.choice((1, 2))):
            await self.job()

    async def add(self) -> None:
        await (await self.queue.add(self.job, priority=self.dice.choice((0, 1))))

    async def cancelled(self) -> None:
        with anyio.move_on_after(self.dice.uniform(0, 0.1)):
            await self.queue.run(self.job)

    async def impatient(self) -> None:
        await self.queue.run(self.job, timeout=self.dice.uniform(0.001, 0.1))

    async def fails(self) -> None:
        await self.queue.run(self.failing, retries=1)

    async def map(self) -> None:
        async for _ in self.queue.map(lambda _: self.job(), range(3)):
            pass

    async def in_thread(self) -> None:
        await (await self.queue.add(time.monotonic))

    async def key(self) -> None:
        async with self.queue[f"k{self.dice.randrange(10**9)}"].slot():
            await self.job()

    async def look(self) -> None:
        if self.dice.random() < 0.05:
            await self.queue.cool_down(0.05)
        await self.queue.inspect()

    async def use(self, seconds: float) -> None:
        """Use it until the time is over; print a line of figures now and then."""
        end = anyio.current_time() + seconds

        async def user() -> None:
            while anyio.current_time() < end:
                with suppress(IntervalqError, UserError):
                    await self.dice.choice(self.ways)()

        async def say() -> None:
            while True:
                await anyio.sleep(seconds / _SAMPLES)
                print(json.dumps({"starts": self.starts, **figures()}), flush=True)

        async with self.queue, anyio.create_task_group() as group:
            group.start_soon(say)
            async with anyio.create_task_group() as users:
                for _ in range(8):
                    users.start_soon(user)
            group.cancel_scope.cancel()


def figures() -> dict[str, int]:
    """The figures of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory KiB": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "objects": len(gc.get_objects()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
    }


# --- all of them ------------------------------------------------------------------------------------


@contextmanager
def store_of(kind: str) -> Iterator[str]:
    """The URL of a store for this test alone."""
    if kind in {"sqlite", "file"}:
        with tempfile.TemporaryDirectory(prefix="intervalq-soak-") as folder:
            yield f"{folder}/state.{'db' if kind == 'sqlite' else 'json'}"
    elif kind == "postgres":
        with servers.running(postgres_servers.postgres()) as server:
            yield server.url
    else:
        binary = servers.redis_binary() if kind == "redis" else servers.valkey_binary()
        with servers.running(servers.redis_server(binary)) as server:
            yield server.url


def connections(kind: str, url: str) -> int:
    """How many clients a server has, except the one that asks; 0: it is not a server."""
    if kind == "postgres":
        import psycopg

        with psycopg.connect(url) as connection:
            query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])
    if kind in {"redis", "valkey"}:
        with servers.redis_client(url) as client:
            return int(client.info("clients")["connected_clients"]) - 1
    return 0


def soak(kinds: list[str], shards: int, seconds: float, console: Console) -> bool:
    """Run it, and print the figures; returns whether nothing grew."""
    looks: dict[tuple[str, int], list[dict[str, int]]] = defaultdict(list)
    clients: dict[str, list[int]] = defaultdict(list)
    with ExitStack() as stack:
        urls = {kind: stack.enter_context(store_of(kind)) for kind in kinds}
        processes: dict[tuple[str, int], subprocess.Popen[str]] = {}
        for kind, url in urls.items():
            for number in range(shards):
                command = [sys.executable, __file__, "--shard", url, "--minutes", str(seconds / 60)]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                stack.callback(_end, process)
                processes[kind, number] = process
                threading.Thread(target=_read, args=(process, looks[kind, number]), daemon=True).start()
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("soak", total=seconds)
            end = time.monotonic() + seconds
            while any(process.poll() is None for process in processes.values()):
                time.sleep(min(5.0, seconds / _SAMPLES))
                bar.update(task, completed=seconds - (end - time.monotonic()))
                if time.monotonic() < end - seconds / _SAMPLES:
                    for kind, url in urls.items():
                        clients[kind].append(connections(kind, url))
        failed = [f"{kind} {number}" for (kind, number), process in processes.items() if process.returncode]
    fine = sum_up(looks, clients, console)
    for name in failed:
        console.print(f"shard {name} failed")
    return fine and not failed


def _read(process: subprocess.Popen[str], looks: list[dict[str, int]]) -> None:
    assert process.stdout is not None
    looks.extend(json.loads(line) for line in process.stdout)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def sum_up(
    looks: dict[tuple[str, int], list[dict[str, int]]], clients: dict[str, list[int]], console: Console
) -> bool:
    """Print a row for each store, with sums over its processes; return whether nothing grew."""
    table = Table("store", "starts", *SLACK, "connections", "grew", title="first quarter / last quarter")
    fine = True
    for kind, counts in clients.items():
        mine = [taken for (store, _), taken in looks.items() if store == kind]
        cells, grew = [], []
        for name, slack in SLACK.items():
            pairs = [quarters([look[name] for look in taken]) for taken in mine]
            cells.append(f"{sum(before for before, _ in pairs):.0f} / {sum(after for _, after in pairs):.0f}")
            if any(after > 1.05 * before + slack for before, after in pairs):
                grew.append(name)
        before, after = quarters(counts)
        cells.append(f"{before:.0f} / {after:.0f}")
        if after > 1.05 * before + 4:
            grew.append("connections")
        starts = [taken[-1]["starts"] if taken else 0 for taken in mine]
        fine = fine and not grew and all(starts)
        table.add_row(kind, str(sum(starts)), *cells, ", ".join(grew) or "-")
    console.print(table)
    return fine


def quarters(numbers: list[int]) -> tuple[float, float]:
    """The medians of the first and of the last quarter."""
    size = max(1, len(numbers) // 4)
    return (median(numbers[:size]), median(numbers[-size:])) if numbers else (0.0, 0.0)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line requests; the exit code is 1 if something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--stores", default=",".join(STORES), help="of these: %(default)s")
    parser.add_argument("--shards", type=int, default=4, help="processes a store")
    parser.add_argument("--shard", metavar="URL", help=argparse.SUPPRESS)
    wanted: Any = parser.parse_args(arguments)
    if wanted.shard:
        anyio.run(Shard(wanted.shard).use, wanted.minutes * 60)
        return 0
    console = Console()
    try:
        return 0 if soak(wanted.stores.split(","), wanted.shards, wanted.minutes * 60, console) else 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
