"""A storm over durable tasks: workers are killed and stopped, the server restarts, a ledger is judged.

    python tests/faults/task_storm.py --store postgres --minutes 30 --every 2

Every task that was inserted must be in the ledger once: none lost, none doubled; and those that an operator
cancelled must not be there, nor those that went to the dead-letter queue. Outcomes must say the same. A
follow-up is in the ledger once, like all others, and began when its batch had ended. No two holders of the
lock had the same fencing number. Ends with 1 if not.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.task_process import (
    BATCH,
    CHUNKS,
    EXPIRY,
    FENCES,
    HOPELESS,
    QUEUE,
    id_of,
    is_hopeless,
    parts_of,
    queue_of,
)
from faults.task_targets import TARGETS, Target
from intervalq.errors import StoreUnavailable
from intervalq.tasks import Outcome, Tasks
from intervalq.tasks.rules import Insert

_WAITING = 100
"""The number of tasks that are kept waiting."""
_ENOUGH = 100
"""The number of faults after which a storm that should show doubles has shown none."""
_CALM = 90.0
"""Seconds after the last fault within which everything must be done, even on a busy machine."""


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
    stopping: set[int] = field(default_factory=set)
    """Those of them that were running."""
    unsure: set[int] = field(default_factory=set)
    """Tasks whose cancelling was not answered."""
    committed: list[int] = field(default_factory=list)
    """Cancelled tasks that are in the ledger all the same."""
    misreported: list[int] = field(default_factory=list)
    """Tasks whose outcomes don't say what became of them."""
    dead: set[int] = field(default_factory=set)
    """Tasks that went to the dead-letter queue."""
    untimely: list[int] = field(default_factory=list)
    """Follow-ups that began before their batch had ended, and tasks that found checkpoints of others."""
    followed: int = 0
    """How many follow-ups were done."""
    fences: int = 0
    """How many holders the lock had."""
    shared_fences: list[int] = field(default_factory=list)
    """Fencing numbers that several of them had."""

    @property
    def broken(self) -> bool:
        wrong = self.lost or self.doubled or self.committed or self.misreported or self.untimely
        return bool(wrong or self.shared_fences or self.left)


class Driver:
    """Keeps tasks waiting and workers running, and causes the faults."""

    def __init__(self, target: Target, *, workers: int, seed: int, mode: str) -> None:
        self.target = target
        self.storm = Storm()
        self._outcomes: list[Outcome] = []
        self._dead: list[int] = []
        self._fences: list[tuple[int, str]] = []
        self._random = random.Random(seed)
        self._mode = mode
        self._alive: list[subprocess.Popen[bytes]] = []
        self._stopped: dict[int, subprocess.Popen[bytes]] = {}
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("task_process.py"))
        command = [sys.executable, script, self.target.url, self._mode]
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
            try:
                waiting = await tasks.queues(QUEUE, CHUNKS)
                if sum(queue.size for queue in waiting) >= _WAITING:
                    await anyio.sleep(0.05)
                    continue
            except StoreUnavailable:
                await anyio.sleep(0.1)
                continue
            with anyio.CancelScope(shield=True):  # what was inserted is known in the end
                first = self.storm.inserted
                *some, last = (self._new(tasks, number) for number in range(first, first + BATCH))
                while not await self._is_inserted(tasks, some, last):
                    await anyio.sleep(0.1)
                self.storm.inserted += BATCH

    def _new(self, tasks: Tasks, number: int) -> Insert:
        key = f"key{number % 3}" if number % 5 == 0 else None
        return tasks.new(
            queue_of(number), number, id=id_of(number), keep="1d", key=key,
            concurrency_per_key=1 if key is None else 2, priority=number % 7 - 3,
        )  # fmt: skip

    async def _is_inserted(self, tasks: Tasks, some: list[Insert], last: Insert) -> bool:
        """Insert them, unless that was done before without an answer; returns whether they are."""
        try:
            if await tasks.tasks(ids=[last.id]) or await tasks.outcomes(ids=[last.id]):
                return True
            if parts_of(self.storm.inserted + BATCH - 1):
                await tasks.batch(some, last)
            else:
                await tasks.modify(*some, last)
        except StoreUnavailable:
            return False
        return True

    async def _operate(self, tasks: Tasks, scope: anyio.CancelScope) -> None:
        """Cancel some tasks again and again, mostly running ones."""
        while not scope.cancel_called:
            await anyio.sleep(self._random.uniform(0, 0.3))
            with anyio.CancelScope(shield=True):
                try:
                    there = await tasks.tasks(self._random.choice([QUEUE, CHUNKS]), limit=50)
                    some = [task for task in there if task.claimant] or there
                    numbers = {task.id: task.value for task in some[: self._random.randint(1, 3)]}
                    self.storm.unsure.update(numbers.values())
                    if not numbers:
                        continue
                    answer = await tasks.cancel(*numbers)
                except StoreUnavailable:
                    continue
                self.storm.unsure.difference_update(numbers.values())
                self.storm.stopping.update(numbers[id_] for id_ in answer.stopping)
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
            while (left := await tasks.queues(QUEUE, CHUNKS)) and time.monotonic() < end:
                await anyio.sleep(0.1)
            self._outcomes = [
                one for queue in (QUEUE, CHUNKS) for one in await tasks.outcomes(queue, limit=None)
            ]
            self._dead = [task.value for task in await tasks.tasks(f"{QUEUE}.dead", limit=None)]
            self._fences = [tuple(task.value) for task in await tasks.tasks(FENCES, limit=None)]
        self.storm.left = sum(queue.size for queue in left)

    def judge(self) -> None:
        """Compare the ledger with the inserted tasks."""
        storm, rows = self.storm, self.target.done()
        counts = {task: count for task, count, _ in rows}
        storm.dead = {number for number in self._dead if is_hopeless(number)}
        gone = storm.cancelled | storm.unsure | storm.dead
        storm.lost = [number for number in range(storm.inserted) if number not in {*counts, *gone}]
        storm.committed = [number for number in storm.cancelled | {*self._dead} if number in counts]
        storm.doubled = [task for task, count in counts.items() if count > 1]
        storm.untimely = [task for task, _, claims in rows if claims < 0]
        storm.followed = sum(bool(parts_of(task)) for task in counts)
        storm.again = sum(claims > 1 for _, _, claims in rows)
        holders: defaultdict[int, set[str]] = defaultdict(set)
        for fence, holder in self._fences:
            holders[fence].add(holder)
        storm.fences = len(self._fences)
        storm.shared_fences = [fence for fence, some in holders.items() if len(some) > 1]
        if self._mode == "commit":
            self._judge_outcomes(set(counts))

    def _judge_outcomes(self, committed: set[int]) -> None:
        """Each task must have left one outcome: that of its commit, its death, or its cancelling.

        The step that came first decides: a task that was running when it was cancelled has not failed, and
        one that had failed before has, although the cancel then removed it from the dead-letter queue.
        """
        left: defaultdict[int, list[Outcome]] = defaultdict(list)
        for outcome in self._outcomes:
            left[outcome.value].append(outcome)
        storm = self.storm
        storm.misreported = [
            number
            for number in {*left, *range(storm.inserted)}
            if [one.state for one in left[number]] != [self._became(number, left[number], committed)]
        ]

    def _became(self, number: int, left: list[Outcome], committed: set[int]) -> str:
        """How a task must have ended, to judge by the ledger, the operator's answers, and its errors."""
        if number in committed:
            return "done"
        if number in self.storm.stopping:
            return "cancelled"
        was_rejected = any(HOPELESS in failed.error for one in left for failed in one.errors)
        return "failed" if number in self.storm.dead or was_rejected else "cancelled"

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
    print(f"outcomes that say something else: {len(storm.misreported)}; dead {len(storm.dead)}")
    print(f"follow-ups {storm.followed}, untimely {len(storm.untimely)}")
    print(f"holders of the lock {storm.fences}, with the number of another one: {len(storm.shared_fences)}")
    print(f"not done in time: {storm.left}")
    print(f"done by another than the first claim: {storm.again}; a session lapses after {EXPIRY:g} s")
    return int(storm.broken)


if __name__ == "__main__":
    sys.exit(main())
