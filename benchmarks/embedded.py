"""How do the stores in files compare: steps a second, and the longest wait for one?

Each process takes ticket after ticket, as many at the same time as it has callers; "queues" is the number of queues
in the store, and each step is on one of them, chosen at random. Rows of both stores take turns, so that
a moment in which the machine is slow doesn't fall on one of them. "share" is what the process that came off
worst got of a fair share, "jain" Jain's index of all of them: 1 is even, 1 / processes means that one process got everything.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import random
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from intervalq.rules import Advance, Settings
from intervalq.store import open_store

FILES = {"file": "state.json", "sqlite": "state.db"}
TAKE = Advance(settings=Settings(interval=1_000), nonce="n", take=1)


@dataclass(frozen=True)
class Work:
    """The work of every process."""

    url: str
    callers: int
    queues: int
    seconds: float


def process(work: Work, ready: Barrier, results: Any) -> None:  # noqa: ANN401 - a multiprocessing queue
    """Take tickets for some seconds, from when all processes are ready."""
    waits: list[float] = []
    figures = {"cpu": 0.0}

    async def main() -> None:
        store = open_store(work.url)
        store.patience = 600  # type: ignore[attr-defined] - the slowest rows must be shown, too
        await to_thread.run_sync(ready.wait)
        end = time.monotonic_ns() + int(work.seconds * 1e9)

        async def caller(draw: random.Random) -> None:
            while time.monotonic_ns() < end:
                asked = time.perf_counter()
                await store.apply(f"q:{draw.randrange(work.queues)}", TAKE)
                waits.append((time.perf_counter() - asked) * 1e3)

        used = resource.getrusage(resource.RUSAGE_SELF)
        async with anyio.create_task_group() as group:
            for _ in range(work.callers):
                group.start_soon(caller, random.Random())
        after = resource.getrusage(resource.RUSAGE_SELF)
        figures["cpu"] = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        await store.aclose()

    anyio.run(main)
    results.put((waits, figures["cpu"]))


async def prepare(url: str, queues: int) -> None:
    """Create the records, many at once."""
    store = open_store(url)
    store.patience = 600  # type: ignore[attr-defined]
    async with anyio.create_task_group() as group:
        for number in range(queues):
            group.start_soon(store.apply, f"q:{number}", TAKE)
    await store.aclose()


def measure(kind: str, folder: str, processes: int, queues: int, arguments: argparse.Namespace) -> str:
    """One run of all processes; the figures of a row."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        url = f"{kind}://{place}/{FILES[kind]}"
        anyio.run(prepare, url, queues)
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        work = Work(url, arguments.callers, queues, arguments.seconds)
        ready = context.Barrier(processes)
        workers = [context.Process(target=process, args=(work, ready, results)) for _ in range(processes)]
        for each in workers:
            each.start()
        answers = [results.get(timeout=arguments.seconds + 600) for _ in workers]
        for each in workers:
            each.join()
        size = sum(path.stat().st_size for path in Path(place).iterdir())
    waits = [wait for part, _ in answers for wait in part]
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    counts = [len(part) for part, _ in answers]
    share = min(counts) / sum(counts) * processes
    jain = sum(counts) ** 2 / (processes * sum(count * count for count in counts))
    cpu = sum(used for _, used in answers) / len(waits) * 1e6
    return (
        f"{kind:6}  {processes:9}  {queues:6}  {len(waits) / arguments.seconds:8.0f}  {cuts[49]:8.2f}  {cuts[98]:8.2f}"
        f"  {max(waits):9.1f}  {share:5.2f}  {jain:5.3f}  {cpu:11.0f}  {size / 1024:8.0f}"
    )


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", default="file,sqlite", help="one or both stores")
    parser.add_argument("--processes", default="1,4")
    parser.add_argument(
        "--queues", default="1,100,10000", help="numbers of queues in one store; one row each"
    )
    parser.add_argument("--callers", type=int, default=1, help="steps at the same time in each process")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="a folder on the disk to be measured")
    arguments = parser.parse_args()
    print(
        f"{arguments.callers} callers a process, {arguments.seconds:g} s, Python {platform.python_version()}"
    )
    print(
        "store   processes  queues   steps/s  wait ms: p50     p99    longest  share   jain  CPU us/step  size KiB"
    )
    for _ in range(arguments.runs):
        for queues in arguments.queues.split(","):
            for processes in arguments.processes.split(","):
                for kind in arguments.store.split(","):
                    print(measure(kind, arguments.folder, int(processes), int(queues), arguments), flush=True)


if __name__ == "__main__":
    main()
