"""A storm over the work tokens of NATS: workers are killed, and the ledger of all is judged.

    python tests/faults/token_storm.py --minutes 30 --every 1.5

Never may two workers be on a key at the same time, in the ledger's order; the tasks of a key come in order;
and none is lost. Ends with 1 if not. A task may be done twice, when its worker is killed before it says so.

With --server the server is killed, too. It forgets removals of the last minutes and deliveries of the last
moments then, so that tasks which were done come back, out of order, and some run twice at a time: this is
shown, and no failure; none may be lost all the same.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
import servers
from faults.token_process import EXPIRY
from intervalq.errors import StoreUnavailable
from intervalq.tasks import Tasks
from servers import Server

QUEUE = "storm"
_KEYS = 6
_WAITING = 60
"""So many tasks are kept waiting."""
_LOOKS = 400
"""How often the ledger is looked at for a worker that is at work, before any is killed."""
_CALM = 90.0
"""Seconds after the last fault in which everything must be done, on however busy a machine."""


@dataclass(slots=True)
class Seen:
    """A storm as it went, and what its ledger says."""

    faults: Counter[str] = field(default_factory=Counter)
    inserted: int = 0
    left: int = 0
    """How many tasks were not done in time."""
    lost: list[int] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    again: int = 0
    """How many tasks were begun more than once."""

    @property
    def broken(self) -> bool:
        tokens = not self.faults["server killed"] and bool(self.overlaps or self.disorder)
        return tokens or bool(self.lost or self.left)


def judge(seen: Seen, lines: list[str]) -> None:
    """Read the ledger. A worker's tasks end with its death at the latest, which is noted, too."""
    running: dict[str, tuple[int, int]] = {}  # by key: the task, and its worker
    latest: dict[str, int] = {}
    begun: Counter[int] = Counter()
    ended: set[int] = set()
    for line in lines:
        what, *rest = line.split()
        if what == "kill":
            running = {key: value for key, value in running.items() if value[1] != int(rest[0])}
            continue
        key, task, worker = rest[0], int(rest[1]), int(rest[2])
        if what == "begin":
            begun[task] += 1
            if key != "-":
                if key in running:
                    seen.overlaps.append(f"{line}, while {running[key]}")
                if latest.get(key, -1) > task:
                    seen.disorder.append(f"{line}, after {latest[key]}")
                running[key], latest[key] = (task, worker), task
        else:
            ended |= {task} if what == "end" else set()
            if running.get(key) == (task, worker):
                del running[key]
    seen.again = sum(count > 1 for count in begun.values())
    seen.lost = [task for task in range(seen.inserted) if task not in ended]


class Driver:
    """Keeps tasks waiting and workers running, and does the faults."""

    def __init__(
        self, server: Server, ledger: Path, *, workers: int, seed: int, mode: str, restarts: bool
    ) -> None:
        self.seen = Seen()
        self._server = server
        self._ledger = ledger
        self._random = random.Random(seed)
        self._mode = mode
        self._restarts = restarts
        self._alive: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("token_process.py"))
        command = [sys.executable, script, self._server.url, QUEUE, str(self._ledger), self._mode]
        self._alive.append(subprocess.Popen(command))

    async def run(self, seconds: float, every: float) -> None:
        end = time.monotonic() + seconds
        async with Tasks(self._server.url) as tasks:
            async with anyio.create_task_group() as group:
                group.start_soon(self._produce, tasks, group.cancel_scope)
                while time.monotonic() < end:
                    await anyio.sleep(every * self._random.uniform(0.5, 1.5))
                    await anyio.to_thread.run_sync(self._fault)
                group.cancel_scope.cancel()
            end = time.monotonic() + _CALM
            while (left := await tasks.queues(QUEUE)) and time.monotonic() < end:
                await anyio.sleep(0.05)
            self.seen.left = left[0].size if left else 0

    async def _produce(self, tasks: Tasks, scope: anyio.CancelScope) -> None:
        while not scope.cancel_called:
            try:
                waiting = await tasks.queues(QUEUE)
                if waiting and waiting[0].size >= _WAITING:
                    await anyio.sleep(0.02)
                    continue
                with anyio.CancelScope(shield=True):
                    for _ in range(10):
                        number = self.seen.inserted
                        key = f"k{number % _KEYS}" if number % 3 else None
                        await tasks.insert(QUEUE, number, id=f"t{number}", key=key, skip=True)
                        self.seen.inserted += 1
            except StoreUnavailable:
                await anyio.sleep(0.05)

    def _fault(self) -> None:
        if self._restarts and self._random.random() < 0.2:
            self._server.stop()
            self._server.start()
            self.seen.faults["server killed"] += 1
            return
        process = self._at_work()
        process.kill()
        self._alive.remove(process)
        process.wait()
        with self._ledger.open("ab", buffering=0) as ledger:
            ledger.write(f"kill {process.pid}\n".encode())
        self.seen.faults["worker killed"] += 1
        self._start()

    def _at_work(self) -> subprocess.Popen[bytes]:
        """A worker that is in the middle of a task, as far as its ledger says; after a while, any."""
        for _ in range(_LOOKS):
            open_by: Counter[int] = Counter()
            for line in self._ledger.read_text().splitlines():
                what, *_, worker = line.split()
                open_by[int(worker)] += {"begin": 1, "kill": -1_000}.get(what, -1)
            busy = [process for process in self._alive if open_by[process.pid] > 0]
            if busy:
                return self._random.choice(busy)
            time.sleep(0.005)
        return self._random.choice(self._alive)

    def end(self) -> None:
        """No process stays."""
        for process in self._alive:
            process.terminate()
        for process in self._alive:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _driver(workers: int, seed: int, mode: str, restarts: bool) -> Iterator[tuple[Driver, Path]]:
    with servers.running(servers.nats_server()) as server, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        driver = Driver(server, ledger, workers=workers, seed=seed, mode=mode, restarts=restarts)
        try:
            yield driver, ledger
        finally:
            driver.end()


def run(
    seconds: float,
    *,
    every: float = 1.5,
    workers: int = 3,
    seed: int = 1,
    mode: str = "careful",
    restarts: bool = False,
) -> Seen:
    """A whole storm."""
    with _driver(workers, seed, mode, restarts) as (driver, ledger):
        anyio.run(driver.run, seconds, every)
        judge(driver.seen, ledger.read_text().splitlines())
        return driver.seen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two faults, on average")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=["careful", "careless"], default="careful")
    parser.add_argument("--server", action="store_true", help="kill the server, too")
    wanted = parser.parse_args()
    seen = run(
        wanted.minutes * 60, every=wanted.every, workers=wanted.workers, seed=wanted.seed, mode=wanted.mode,
        restarts=wanted.server,
    )  # fmt: skip
    print(dict(seen.faults))
    print(f"inserted {seen.inserted}, lost {len(seen.lost)}, not done in time {seen.left}")
    print(f"two workers on a key: {seen.overlaps[:3]}, out of order: {seen.disorder[:3]}")
    print(f"begun again: {seen.again}; a claim is free after {EXPIRY:g} s")
    return int(seen.broken)


if __name__ == "__main__":
    sys.exit(main())
