"""A storm over the work tokens of NATS: workers are killed, and the ledger of all is judged.

    python tests/faults/token_storm.py --minutes 30 --every 1.5

Never may two workers be on a key at the same time, in the ledger's order; the tasks of a key come in order;
none is lost; and none is begun once more after a worker was told that it is acknowledged. Ends with 1 if not.
A task may be done twice, when its worker is killed before it is told so.

With --server the server is killed with -9, too, and with --replicas 3 the leader of the stream, of three. The
server forgets deliveries of the last moments then, so that a task which is being worked on may be handed to a
second worker, of which one can acknowledge it. So two on a key are forgiven if the first began before a
restart was complete, and the second after the kill before that; even then no more than one may be told that
it has acknowledged.

Nor can a worker give up a claim that has lapsed while the machine doesn't run it. All workers write all the
time that they run: two on a key are forgiven if the first one didn't when the second began.
"""

from __future__ import annotations

import argparse
import os
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
from faults.nats_cluster import Cluster, clustered
from faults.token_process import ALIVE, EXPIRY
from intervalq.errors import StoreUnavailable
from intervalq.tasks import Tasks

QUEUE = "storm"
_KEYS = 6
_WAITING = 60
"""The number of tasks that are kept waiting."""
_LOOKS = 400
"""How often the ledger is read for a worker that is at work, before any is killed."""
_CALM = 300.0
"""Seconds without news of any worker, after which the remaining tasks aren't waited for."""

_PATIENCE = 120.0
"""Seconds by which a storm is extended that must show two workers on a key, until it does."""


@dataclass(slots=True)
class Seen:
    """The result of a storm, and what its ledger says."""

    faults: Counter[str] = field(default_factory=Counter)
    inserted: int = 0
    left: int = 0
    """How many tasks were not done in time."""
    lost: list[int] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)
    """Two workers on a key, the first of which the server had forgotten, or the machine didn't run."""
    twice: list[str] = field(default_factory=list)
    """Acknowledgements that two workers got for the same task."""
    disorder: list[str] = field(default_factory=list)
    again: int = 0
    """How many tasks were begun more than once."""
    unsure: set[int] = field(default_factory=set)
    """Tasks that may never have been inserted, because there was no answer."""
    acknowledged: int = 0
    returned: list[str] = field(default_factory=list)
    """Tasks that were begun after they had been acknowledged."""

    @property
    def broken(self) -> bool:
        tokens = self.overlaps or self.twice or self.disorder
        return bool(tokens or self.returned or self.lost or self.left)


def judge(seen: Seen, lines: list[str]) -> None:
    """Read the ledger. A worker's tasks end with its death at the latest, which is recorded, too."""
    running: dict[str, tuple[int, int]] = {}  # by key: the task, and its worker
    since: dict[str, int] = {}  # by key: how many restarts were complete when that began
    kills = restarts = 0
    signs = _signs(lines)
    latest: dict[str, int] = {}
    begun: Counter[int] = Counter()
    ended: set[int] = set()
    acked: dict[int, int] = {}
    for line in [each for each in lines if not each.startswith("alive")]:
        what, *rest = line.split()
        if what == "server":
            kills, restarts = kills + (rest[0] == "-"), restarts + (rest[0] == "+")
            continue
        if what == "kill":
            running = {key: value for key, value in running.items() if value[1] != int(rest[0])}
            continue
        key, task, worker = rest[0], int(rest[1]), int(rest[2])
        if what == "begin":
            begun[task] += 1
            if task in acked:
                seen.returned.append(line)
            if key != "-":
                if key in running:
                    stopped = _is_stopped(signs.get(running[key][1], []), rest[3:])
                    two = seen.forgiven if since[key] < kills or stopped else seen.overlaps
                    two.append(f"{line}, while {running[key]}")
                if latest.get(key, -1) > task:
                    seen.disorder.append(f"{line}, after {latest[key]}")
                running[key], latest[key], since[key] = (task, worker), task, restarts
        elif what == "acked":
            if acked.setdefault(task, worker) != worker:
                seen.twice.append(line)
        else:
            ended |= {task} if what == "end" else set()
            if running.get(key) == (task, worker):
                del running[key]
    seen.again = sum(count > 1 for count in begun.values())
    seen.acknowledged = len(acked)
    seen.lost = [task for task in range(seen.inserted) if task not in ended | seen.unsure]


def _signs(lines: list[str]) -> dict[int, list[float]]:
    """When each worker ran or was killed, in seconds, as far as the ledger has times."""
    signs: dict[int, list[float]] = {}
    for what, *rest in map(str.split, lines):
        if what == "kill" and rest[1:]:
            signs.setdefault(int(rest[0]), []).append(float(rest[1]))
        elif rest[3:]:
            signs.setdefault(int(rest[2]), []).append(float(rest[3]))
    return signs


def _is_stopped(signs: list[float], at: list[str]) -> bool:
    """Whether a worker didn't run at an instant: between two signs is far more time than there should be."""
    if not at or not signs:
        return False
    before = max((sign for sign in signs if sign <= float(at[0])), default=float("-inf"))
    after = min((sign for sign in signs if sign > float(at[0])), default=float("inf"))
    return after - before > 3 * ALIVE


class Driver:
    """Keeps tasks waiting and workers running, and causes the faults."""

    def __init__(
        self,
        servers: Cluster,
        ledger: Path,
        *,
        workers: int,
        seed: int,
        mode: str,
        restarts: bool,
    ) -> None:
        self.seen = Seen()
        self._servers = servers
        self._ledger = ledger
        self._random = random.Random(seed)
        self._mode = mode
        self._restarts = restarts
        self._alive: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("token_process.py"))
        command = [sys.executable, script, self._servers.url, QUEUE, str(self._ledger), self._mode]
        self._alive.append(subprocess.Popen(command))

    async def run(self, seconds: float, every: float, least: int) -> None:
        end = time.monotonic() + seconds
        async with Tasks(self._servers.url) as tasks:
            while await self._left(tasks) < 0:  # which creates the stream
                await anyio.sleep(0.05)
            async with anyio.create_task_group() as group:
                group.start_soon(self._produce, tasks, group.cancel_scope)
                while time.monotonic() < end or self.seen.faults.total() < least or self._shows_nothing(end):
                    await anyio.sleep(every * self._random.uniform(0.5, 1.5))
                    await anyio.to_thread.run_sync(self._fault)
                group.cancel_scope.cancel()
            self.seen.left = await self._done(tasks)
            if self._restarts:  # now nothing is stored above what would come back
                await anyio.to_thread.run_sync(self._kill_server)
                self.seen.left += await self._done(tasks)

    def _shows_nothing(self, end: float) -> bool:
        """Whether claims are not renewed on purpose, and no two workers were on a key yet."""
        if self._mode == "careful" or time.monotonic() > end + _PATIENCE:
            return False
        seen = Seen(inserted=self.seen.inserted)
        judge(seen, self._ledger.read_text().splitlines())
        return not seen.overlaps

    async def _done(self, tasks: Tasks) -> int:
        """Wait until all is done, or nothing more happens, however busy the machine is; return what is left.

        With replicas, a node that is behind may answer. So an answer counts only once the ledger agrees.
        """
        known, since = -1, time.monotonic()
        while ((left := await self._left(tasks)) or self._undone()) and time.monotonic() < since + _CALM:
            size = self._ledger.stat().st_size
            if size != known:
                known, since = size, time.monotonic()
            await anyio.sleep(0.05)
        return left

    def _undone(self) -> set[int]:
        """Which of the tasks that certainly exist have not ended, by the ledger."""
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        ended = {int(line[2]) for line in lines if line[0] == "end"}
        return {*range(self.seen.inserted)} - self.seen.unsure - ended

    async def _left(self, tasks: Tasks) -> int:
        try:
            return sum(queue.size for queue in await tasks.queues(QUEUE))
        except StoreUnavailable:
            return -1

    async def _produce(self, tasks: Tasks, scope: anyio.CancelScope) -> None:
        while not scope.cancel_called:
            try:
                waiting = await tasks.queues(QUEUE)
                if waiting and waiting[0].size >= _WAITING:
                    await anyio.sleep(0.02)
                    continue
                with anyio.CancelScope(shield=True):
                    for _ in range(10):
                        await self._insert(tasks)
            except StoreUnavailable:
                await anyio.sleep(0.05)

    async def _insert(self, tasks: Tasks) -> None:
        """Insert a task; if the outcome is unknown, it isn't inserted again, as it may be done by then."""
        number = self.seen.inserted
        self.seen.inserted += 1
        key = f"k{number % _KEYS}" if number % 3 else None
        dedupe = f"d{number}" if number % 5 == 0 else None
        try:
            await tasks.insert(QUEUE, number, id=f"t{number}", key=key, dedupe_key=dedupe, dedupe_for=1)
        except StoreUnavailable:
            self.seen.unsure.add(number)
            raise

    def _fault(self) -> None:
        if self._restarts and self._random.random() < 0.4:
            self._kill_server(self._random.choice(["begin", "end", "acked"]))
            return
        process = self._random.choice([self._at_work, self._ending])()
        process.kill()
        self._alive.remove(process)
        process.wait()
        self._note(f"kill {process.pid} {time.monotonic():.3f}")
        self.seen.faults["worker killed"] += 1
        self._start()

    def _kill_server(self, after: str = "") -> None:
        """Kill a worker right after it has reported that, or after a while."""
        server = self._servers.leader()
        if after:
            self._next(after)
        server.stop()
        self._note("server -")
        server.start()
        self._note("server +")
        self.seen.faults["server killed"] += 1

    def _next(self, what: str) -> str:
        """The line in which a worker reports that, as soon as one does; after a while, nothing."""
        with self._ledger.open() as ledger:
            ledger.seek(0, os.SEEK_END)
            for _ in range(_LOOKS):
                for line in ledger:
                    if line.startswith(what):
                        return line
                time.sleep(0.001)
        return ""

    def _ending(self) -> subprocess.Popen[bytes]:
        """A worker that has just begun to acknowledge a task; after a while, any."""
        line = self._next("end")
        named = [process for process in self._alive if f" {process.pid} " in line]
        return named[0] if named else self._random.choice(self._alive)

    def _note(self, line: str) -> None:
        with self._ledger.open("ab", buffering=0) as ledger:
            ledger.write(f"{line}\n".encode())

    def _at_work(self) -> subprocess.Popen[bytes]:
        """A worker that is in the middle of a task, by its ledger; after a while, any."""
        for _ in range(_LOOKS):
            open_by: Counter[int] = Counter()
            for line in self._ledger.read_text().splitlines():
                what, *rest = line.split()
                if what != "server":
                    worker = rest[0] if what == "kill" else rest[2]
                    open_by[int(worker)] += {"begin": 1, "kill": -1_000, "acked": 0, "alive": 0}.get(what, -1)
            busy = [process for process in self._alive if open_by[process.pid] > 0]
            if busy:
                return self._random.choice(busy)
            time.sleep(0.005)
        return self._random.choice(self._alive)

    def end(self) -> None:
        """End all processes."""
        for process in self._alive:
            process.terminate()
        for process in self._alive:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _driver(
    workers: int, seed: int, mode: str, restarts: bool, replicas: int, sync: str
) -> Iterator[tuple[Driver, Path]]:
    with tempfile.TemporaryDirectory() as folder, clustered(Path(folder), replicas, sync) as cluster:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        driver = Driver(cluster, ledger, workers=workers, seed=seed, mode=mode, restarts=restarts)
        try:
            yield driver, ledger
        finally:
            driver.end()


def run(
    seconds: float,
    *,
    every: float = 1.5,
    least: int = 0,
    workers: int = 3,
    seed: int = 1,
    mode: str = "careful",
    restarts: bool = False,
    replicas: int = 1,
    sync: str = "2m",
) -> Seen:
    """Run a whole storm with at least this many faults, however slow the machine is."""
    with _driver(workers, seed, mode, restarts, replicas, sync) as (driver, ledger):
        anyio.run(driver.run, seconds, every, least)
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
    parser.add_argument("--replicas", type=int, choices=[1, 3], default=1)
    parser.add_argument("--sync", default="2m", help="the server's sync_interval, which may be: always")
    wanted = parser.parse_args()
    seen = run(
        wanted.minutes * 60, every=wanted.every, workers=wanted.workers, seed=wanted.seed, mode=wanted.mode,
        restarts=wanted.server, replicas=wanted.replicas, sync=wanted.sync,
    )  # fmt: skip
    print(dict(seen.faults))
    print(f"inserted {seen.inserted}, lost {len(seen.lost)}, not done in time {seen.left}")
    print(f"acknowledged {seen.acknowledged}, of which begun again {len(seen.returned)}: {seen.returned[:3]}")
    print(f"two workers on a key: {seen.overlaps[:3]}, forgiven: {seen.forgiven[:3]}")
    print(f"acknowledged twice: {seen.twice[:3]}, out of order: {seen.disorder[:3]}")
    print(f"begun again: {seen.again}; a claim is free after {EXPIRY:g} s")
    return int(seen.broken)


if __name__ == "__main__":
    sys.exit(main())
