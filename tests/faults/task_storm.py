"""A storm over durable tasks: workers are killed and stopped, the server restarts, a ledger is judged.

    python tests/faults/task_storm.py --store postgres --minutes 30 --every 2

Every task that was inserted must be in the ledger once: none lost, none doubled; and those that an operator
cancelled must not be there. Where tasks leave outcomes, these must say the same. Ends with 1 if not.
"""

from __future__ import annotations

import argparse
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
import postgres_servers
import servers
from faults.task_process import EXPIRY, LEDGER
from intervalq.errors import StoreUnavailable
from intervalq.tasks import Outcome, Tasks
from intervalq.tasks.sync import Tasks as BlockingTasks

QUEUE = "storm"
_DONE = "select task, count(*), max(claims) from ledger group by task"
_LEDGER = "create table if not exists ledger (task bigint, claims integer)"
_WAITING = 100
"""The number of tasks that are kept waiting."""
_ENOUGH = 100
"""The number of faults after which a storm that should show doubles has shown none."""
_CALM = 90.0
"""Seconds after the last fault within which everything must be done, even on a busy machine."""


class Target(ABC):
    """A store, and the ledger beside its tasks."""

    url: str
    keep: str | None = None
    """How long outcomes are kept; None: it keeps none."""

    @abstractmethod
    def restart(self) -> None:
        """End it at once, and start it again."""

    @abstractmethod
    def done(self) -> list[tuple[int, int, int]]:
        """The numbers in the ledger: how often each one is there, and by which claim of its task at last."""

    def faults(self) -> dict[str, Callable[[], None]]:
        return {"server restarted": self.restart}

    @abstractmethod
    def close(self) -> None:
        """Remove everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostgresTarget(Target):
    keep = "1d"

    def __init__(self) -> None:
        self._server = postgres_servers.postgres().start()
        self.url = self._server.url
        self._query(_LEDGER)

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def done(self) -> list[tuple[int, int, int]]:
        return self._query(_DONE)

    def _query(self, sql: str) -> list[tuple[int, int, int]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._server.close()


class SQLiteTarget(Target):
    keep = "1d"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="intervalq-")
        self._path = Path(self._folder.name) / "app.db"
        self.url = f"sqlite://{self._path}"
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(_LEDGER)
        self._path.chmod(0o600)

    def restart(self) -> None:
        pass

    def faults(self) -> dict[str, Callable[[], None]]:
        return {}

    def done(self) -> list[tuple[int, int, int]]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            return connection.execute(_DONE).fetchall()

    def close(self) -> None:
        self._folder.cleanup()


class RedisTarget(Target):
    """Odd tasks insert an entry into the ledger, a queue; the others leave one as their result."""

    keep = "1d"

    def __init__(self) -> None:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        self._server = servers.redis_server(servers.redis_binary(), *options).start()
        self.url = self._server.url

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def done(self) -> list[tuple[int, int, int]]:
        with BlockingTasks(self.url) as tasks:
            entries = [task.value for task in tasks.tasks(LEDGER, limit=None)]
            entries += [one.result for one in tasks.outcomes(QUEUE, state="done", limit=None) if one.result]
        claims: dict[int, list[int]] = {}
        for number, claim in entries:
            claims.setdefault(number, []).append(claim)
        return [(number, len(those), max(those)) for number, those in claims.items()]

    def close(self) -> None:
        self._server.close()


TARGETS: dict[str, Callable[[], Target]] = {
    "postgres": PostgresTarget,
    "sqlite": SQLiteTarget,
    "redis": RedisTarget,
}


@dataclass(slots=True)
class Storm:
    """The result of a storm."""

    faults: Counter[str] = field(default_factory=Counter)
    inserted: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    again: int = 0
    """How many tasks were done by a later claim than their first."""
    left: int = 0
    """How many tasks were not done in time."""
    cancelled: set[int] = field(default_factory=set)
    """Tasks that were cancelled, as the operator was told."""
    unsure: set[int] = field(default_factory=set)
    """Tasks whose cancelling was not answered."""
    committed: list[int] = field(default_factory=list)
    """Cancelled tasks that are in the ledger all the same."""
    misreported: list[int] = field(default_factory=list)
    """Tasks whose outcomes don't say what became of them."""

    @property
    def broken(self) -> bool:
        return bool(self.lost or self.doubled or self.left or self.committed or self.misreported)


class Driver:
    """Keeps tasks waiting and workers running, and causes the faults."""

    def __init__(self, target: Target, *, workers: int, seed: int, mode: str) -> None:
        self.target = target
        self.storm = Storm()
        self._outcomes: list[Outcome] = []
        self._random = random.Random(seed)
        self._mode = mode
        self._alive: list[subprocess.Popen[bytes]] = []
        self._stopped: dict[int, subprocess.Popen[bytes]] = {}
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("task_process.py"))
        command = [sys.executable, script, self.target.url, QUEUE, self._mode]
        self._alive.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    async def run(self, seconds: float, every: float, *, least: int) -> Storm:
        tasks = Tasks(self.target.url)
        end = time.monotonic() + seconds
        async with anyio.create_task_group() as group:
            group.start_soon(self._produce, tasks, group.cancel_scope)
            if self._mode == "commit":  # in the other one, the ledger is written whatever becomes of the task
                group.start_soon(self._operate, tasks, group.cancel_scope)
            while time.monotonic() < end or self.storm.faults.total() < least or self._shows_nothing():
                await anyio.sleep(every * self._random.uniform(0.5, 1.5))
                await anyio.to_thread.run_sync(self._fault)
            for process in self._stopped.values():
                process.send_signal(signal.SIGCONT)
            group.cancel_scope.cancel()
        await self._settle()
        await tasks.aclose()
        return self.storm

    def _shows_nothing(self) -> bool:
        """Whether a storm that should show a kill between a commit and its acknowledgement has had none."""
        if self._mode != "unguarded" or self.storm.faults.total() >= _ENOUGH:
            return False
        return all(count == 1 for _, count, _ in self.target.done())

    async def _produce(self, tasks: Tasks, scope: anyio.CancelScope) -> None:
        while not scope.cancel_called:
            number = self.storm.inserted
            try:
                waiting = await tasks.queues(QUEUE)
                if waiting and waiting[0].size >= _WAITING:
                    await anyio.sleep(0.05)
                    continue
                with anyio.CancelScope(shield=True):
                    for _ in range(20):
                        number = self.storm.inserted
                        await tasks.insert(
                            QUEUE, number, dedupe_key=f"t{number}", dedupe_for=3600, keep=self.target.keep
                        )
                        self.storm.inserted += 1
            except StoreUnavailable:
                await anyio.sleep(0.1)

    async def _operate(self, tasks: Tasks, scope: anyio.CancelScope) -> None:
        """Cancel some tasks again and again, mostly running ones."""
        while not scope.cancel_called:
            await anyio.sleep(self._random.uniform(0, 0.3))
            with anyio.CancelScope(shield=True):
                try:
                    there = await tasks.tasks(QUEUE, limit=50)
                    some = [task for task in there if task.claimant] or there
                    numbers = {task.id: task.value for task in some[: self._random.randint(1, 3)]}
                    self.storm.unsure.update(numbers.values())
                    if not numbers:
                        continue
                    answer = await tasks.cancel(*numbers)
                except StoreUnavailable:
                    continue
                self.storm.unsure.difference_update(numbers.values())
                self.storm.cancelled.update(numbers[id_] for id_ in (*answer.removed, *answer.stopping))

    def _fault(self) -> None:
        for pid, process in list(self._stopped.items()):
            if self._random.random() < 0.6:
                process.send_signal(signal.SIGCONT)
                del self._stopped[pid]
        mine = {"worker killed": self._kill, "worker stopped": self._stop}
        name, do = self._random.choice(list((mine | mine | self.target.faults()).items()))
        do()
        self.storm.faults[name] += 1
        for process in [process for process in self._alive if process.poll() is not None]:
            self._alive.remove(process)
            self._start()

    def _kill(self) -> None:
        process = self._random.choice(self._alive)
        process.kill()
        process.wait()
        self._stopped.pop(process.pid, None)

    def _stop(self) -> None:
        """As often as not, it is stopped for longer than its session's expiry."""
        process = self._random.choice(self._alive)
        process.send_signal(signal.SIGSTOP)
        self._stopped[process.pid] = process

    async def _settle(self) -> None:
        end = time.monotonic() + _CALM
        async with Tasks(self.target.url) as tasks:
            while (left := await tasks.queues(QUEUE)) and time.monotonic() < end:
                await anyio.sleep(0.1)
            if self.target.keep is not None:
                self._outcomes = await tasks.outcomes(QUEUE, limit=None)
        self.storm.left = left[0].size if left else 0

    def judge(self) -> None:
        """Compare the ledger with the inserted tasks."""
        rows = self.target.done()
        counts = {task: count for task, count, _ in rows}
        # The last insert may have been done without an answer.
        gone = self.storm.cancelled | self.storm.unsure
        self.storm.lost = [n for n in range(self.storm.inserted) if n not in counts and n not in gone]
        self.storm.committed = [number for number in self.storm.cancelled if number in counts]
        self.storm.doubled = [task for task, count in counts.items() if count > 1]
        if self.target.keep is not None:
            self._judge_outcomes(set(counts))
        self.storm.again = sum(claims > 1 for _, _, claims in rows)

    def _judge_outcomes(self, committed: set[int]) -> None:
        """Each task must have left one outcome: that of its commit, or of its cancelling."""
        states: dict[int, list[str]] = {number: [] for number in range(self.storm.inserted)}
        for outcome in self._outcomes:
            states.setdefault(outcome.value, []).append(outcome.state)
        self.storm.misreported = [
            number
            for number, said in states.items()
            if said != ["done" if number in committed else "cancelled"]
        ]

    def end(self) -> None:
        """End all processes."""
        for process in self._alive:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._alive:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _driver(target: Target, workers: int, seed: int, mode: str) -> Iterator[Driver]:
    driver = Driver(target, workers=workers, seed=seed, mode=mode)
    try:
        yield driver
    finally:
        driver.end()


def run(
    store: str,
    seconds: float,
    *,
    every: float = 2.0,
    workers: int = 3,
    seed: int = 1,
    mode: str = "commit",
    least: int = 0,
) -> Storm:
    """Run a whole storm."""
    with TARGETS[store]() as target, _driver(target, workers, seed, mode) as driver:
        anyio.run(lambda: driver.run(seconds, every, least=least))
        driver.judge()
        return driver.storm


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=list(TARGETS), default="postgres")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument(
        "--every", type=float, default=2.0, help="seconds from one fault to the next, on average"
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=["commit", "unguarded"], default="commit")
    wanted = parser.parse_args()
    storm = run(
        wanted.store, wanted.minutes * 60, every=wanted.every, workers=wanted.workers, seed=wanted.seed,
        mode=wanted.mode,
    )  # fmt: skip
    print(dict(storm.faults))
    print(f"inserted {storm.inserted}, lost {len(storm.lost)}, doubled {len(storm.doubled)}")
    print(f"cancelled {len(storm.cancelled)}, and committed all the same {len(storm.committed)}")
    print(f"outcomes that say something else: {len(storm.misreported)}")
    print(f"not done in time: {storm.left}")
    print(f"done by another than the first claim: {storm.again}; a session lapses after {EXPIRY:g} s")
    return int(storm.broken)


if __name__ == "__main__":
    sys.exit(main())
