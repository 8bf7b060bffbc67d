"""A storm of kill -9 over services and their workers: what was acknowledged is done, and is done once.

By hand: python tests/service/remote_storm.py STORE TASKS KILLS [early]

With `early`, the services answer before the store has done what they were asked, which the storm must show.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from intervalq.errors import StoreUnavailable
from intervalq.tasks import Claim, Tasks
from service.processes import Served

CALM = 120.0
"""Seconds after the last kill within which everything must be done, even on a busy machine."""
_EARLY = Path(__file__).with_name("early_service.py")


def work(url: str) -> None:
    """Do tasks until killed: each leaves another one, in the step that ends it."""
    tasks = Tasks(url, expiry=2)

    @tasks.worker("in", concurrency=4, max_attempts=None, backoff=0.05)
    async def done(claim: Claim) -> object:
        await anyio.sleep(random.uniform(0, 0.005))
        return tasks.new("out", claim.value)

    anyio.run(tasks.run)


async def insert(url: str, numbers: range, pause: float) -> None:
    """Insert tasks until each is acknowledged; one whose answer was lost is sent again."""
    async with Tasks(url) as tasks:
        for number in numbers:
            while True:
                try:
                    await tasks.insert("in", number, dedupe_key=str(number), dedupe_for=3_600)
                    break
                except StoreUnavailable:
                    await anyio.sleep(0.05)
            await anyio.sleep(pause)


async def done(store: str) -> Counter[int]:
    """What is done, by the store itself."""
    async with Tasks(store) as tasks:
        return Counter([task.value for task in await tasks.tasks("out", limit=1_000_000)])


def storm(store: str, *, tasks: int, kills: int, program: str | None = None) -> dict[str, int]:
    """Kill services, one after the other, and now and then a worker; return the verdict.

    Returns:
        How many tasks are done, are lost, were doubled: all, none, none.
    """
    services = [Served(store, "--http", "none", program=program) for _ in range(2)]
    hosts = [service.address for service in services]

    def started(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, *arguments], stderr=subprocess.DEVNULL)

    def worker(number: int) -> subprocess.Popen[bytes]:
        order = hosts if number % 2 else hosts[::-1]
        return started("work", f"intervalq://{','.join(order)}")

    def grown(least: int) -> int:
        end = time.monotonic() + CALM
        while (count := sum(anyio.run(done, store).values())) < least:
            if inserter.poll() is not None or time.monotonic() > end:
                break
            time.sleep(0.05)
        return count

    inserter = started("insert", f"intervalq://{','.join(hosts)}", str(tasks))
    workers = [worker(number) for number in range(3)]
    chance = random.Random(tasks)
    try:
        count = grown(1)
        for number in range(kills):
            services[number % 2].kill()
            if number % 3 == 2:
                place = chance.randrange(len(workers))
                workers[place].kill()
                workers[place].wait()
                workers[place] = worker(place)
            count = grown(count + tasks // (2 * kills))
            services[number % 2].start()
        inserter.wait(CALM)
        end = time.monotonic() + CALM
        while len(found := anyio.run(done, store)) < tasks and time.monotonic() < end:
            if program is not None and not anyio.run(left, store):
                break
            time.sleep(0.1)
    finally:
        for process in (inserter, *workers):
            process.kill()
            process.wait()
        for service in services:
            service.kill()
    doubled = sum(count - 1 for count in found.values())
    return {"done": len(found), "lost": tasks - len(found), "doubled": doubled}


async def left(store: str) -> int:
    """How many tasks are still to be done."""
    async with Tasks(store) as tasks:
        return sum([queue.size for queue in await tasks.queues() if queue.name == "in"])


def main() -> None:
    if sys.argv[1] == "work":
        work(sys.argv[2])
    elif sys.argv[1] == "insert":
        anyio.run(insert, sys.argv[2], range(int(sys.argv[3])), 0.002)
    else:
        store, tasks, kills, *plant = sys.argv[1:]
        with tempfile.TemporaryDirectory() as folder:
            store = store or f"{folder}/app.db"
            program = str(_EARLY) if plant else None
            verdict = storm(store, tasks=int(tasks), kills=int(kills), program=program)
        print(json.dumps(verdict))
        sys.exit(1 if verdict["lost"] or verdict["doubled"] else 0)


if __name__ == "__main__":
    main()
