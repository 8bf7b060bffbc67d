"""Simulated workers: real handles in processes that stall, die and begin again, and a ledger that is judged.

A run is one seed of one mix. Every task that was accepted must be once in the ledger, which is written in
the same step as its acknowledgement, or once in the dead-letter queue, whatever went wrong; and soon after
nothing goes wrong any more. `python tests/tasks/simulated_workers.py MIX SEED` shows one run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel

from intervalq.errors import InboxFull, StoreError, StoreUnavailable
from intervalq.tasks import Reject, Retry, Task, Tasks
from intervalq.tasks._spec import ids as _ids
from intervalq.testing.simulation.loop import Process, ProcessClock, WorldLoop
from tasks.simulated_network import Line, Network, WakingLine

ENDS = 60.0
"""Seconds of faults."""

PATIENCE = 240.0
"""Seconds after that, in which all must be done: time-outs, lapses, backoff, work."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Which faults there are."""

    lost: float = 0.0
    """The share of messages that get lost."""
    slow: float = 0.0
    stalls: float = 0.0
    """How many of a process in a run."""
    crashes: float = 0.0
    cuts: float = 0.0
    poison: int = 0
    """How many tasks kill their worker."""


MIXES = {
    "calm": Mix(),
    "lossy": Mix(lost=0.05, slow=0.05),
    "stalls": Mix(stalls=4, slow=0.02),
    "crashes": Mix(crashes=2, poison=1),
    "all": Mix(lost=0.03, slow=0.03, stalls=2, crashes=1, cuts=1, poison=1),
}


@dataclass(slots=True)
class Run:
    """What a run gave."""

    violations: list[str]
    lines: list[str]
    tasks: int
    done: int
    runs: int
    """How often a function was called."""
    calls: int
    seconds: float


class Worker:
    """A process with a handle whose workers run."""

    def __init__(self, world: World, name: str) -> None:
        dice = world.dice
        self.world = world
        clock = ProcessClock(dice.randrange(10**12), dice.uniform(-200, 200), lambda: 0.0)
        self.process = Process(name, clock)
        self.line = (WakingLine if world.waking else Line)(world.network, self.process)
        self.tasks = Tasks(self.line, expiry=world.expiry)
        self.run_task: asyncio.Task[None] | None = None
        self.tasks.worker("a", "b", concurrency=dice.randint(1, 3), max_attempts=None, backoff=0.2)(self.work)
        self.tasks.worker("k", concurrency=dice.randint(1, 3), max_attempts=None, backoff=0.2)(self.work)
        self.tasks.worker("poison", concurrency=1, max_attempts=2, backoff=0.2)(self.poisoned)

    def start(self) -> None:
        self.process.context.run(self._start)

    def _start(self) -> None:
        self.run_task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.tasks.run(grace=1.0)
        except StoreError as error:
            self.world.network.broken(f"{self.process.name}: {error}")

    async def work(self, task: Task) -> Any:
        self.world.runs += 1
        dice = self.world.dice
        self.world.network.say(f"{self.process.name} runs {task.value}")
        chance = dice.random()
        if chance < 0.7:
            await anyio.sleep(dice.expovariate(10))
        elif chance < 0.75:
            await anyio.sleep(dice.uniform(1, 8))
        if chance > 0.95:
            raise RuntimeError("it failed")
        if chance > 0.92:
            raise Retry(delay=dice.uniform(0, 1))
        if chance > 0.91:
            raise Reject
        return self.tasks.new("ledger", task.value)

    async def poisoned(self, task: Task) -> Any:
        self.world.runs += 1
        await anyio.sleep(self.world.dice.uniform(0, 0.1))
        self.world.crash(self)
        await anyio.sleep(1)
        return self.tasks.new("ledger", task.value)


class World:
    """The store, the processes and what befalls them in one run, and what became of each task."""

    def __init__(self, mix: Mix, seed: str, loop: WorldLoop) -> None:
        self.loop = loop
        self.mix = mix
        self.dice = Random(seed)
        self.network = Network(Random(f"{seed}:network"), lost=mix.lost, slow=mix.slow)
        self.waking = self.dice.random() < 0.5
        self.expiry = self.dice.choice([1.0, 5.0])
        self.workers: list[Worker] = []
        self.accepted: dict[int, str | None] = {}
        """Of each task that was accepted: the key; in the order in which the inserts were answered."""
        self.producing = 0
        self.runs = 0
        self.over = False
        self._names = itertools.count()

    def _at(self, instant: float, action: Callable[..., object], *args: object) -> None:
        self.loop.call_at(instant, action, *args, context=Context())

    def _begin(self) -> None:
        if not self.over:
            worker = Worker(self, f"worker{next(self._names)}")
            self.workers.append(worker)
            worker.start()

    def crash(self, worker: Worker) -> None:
        """The process is no more; another one comes in its place."""
        if not worker.process.dead and not self.over:
            self.network.say(f"{worker.process.name} dies")
            worker.process.dead = True
            self._at(self.loop.time() + self.dice.uniform(0.1, 3), self._begin)

    def _hurt(self, kind: str) -> None:
        living = [worker for worker in self.workers if not worker.process.dead]
        if self.loop.time() >= ENDS or not living:
            return
        worker = self.dice.choice(living)
        length = self.dice.choice([self.dice.uniform(0, 2), self.dice.uniform(2, 20)])
        self.network.say(f"{worker.process.name} {kind} {length:.3f}")
        if kind == "crash":
            worker.process.trap(self.dice.randrange(1, 60), lambda: self.crash(worker))
        elif kind == "stall":
            worker.process.trap(
                self.dice.randrange(1, 60), lambda: self.loop.stop_process(worker.process, length)
            )
        else:
            worker.line.is_cut = True
            self._at(self.loop.time() + length, setattr, worker.line, "is_cut", False)

    def _prepare(self) -> None:
        processes = self.dice.randint(2, 4)
        for _ in range(processes):
            self._at(self.dice.uniform(0, 2), self._begin)
        for kind, rate in (("stall", self.mix.stalls), ("crash", self.mix.crashes), ("cut", self.mix.cuts)):
            for _ in range(round(rate * processes)):
                self._at(self.dice.uniform(0, ENDS), self._hurt, kind)
        for name in ("producer0", "producer1"):
            process = Process(name, ProcessClock(0, 0.0, lambda: 0.0))
            producer = Tasks(Line(self.network, process))
            self.producing += 1
            process.context.run(self._spawn, self._produce(producer, int(name[-1])))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(coroutine)

    async def _produce(self, tasks: Tasks, first: int) -> None:
        dice = self.dice
        for number in range(first, dice.randint(20, 60), 2):
            await anyio.sleep(dice.expovariate(2))
            queue = dice.choice(["a", "b", "k"])
            key = f"key{dice.randrange(3)}" if queue == "k" else None
            await self._insert(tasks, queue, number, key)
        if first == 0:
            for number in range(self.mix.poison):
                await self._insert(tasks, "poison", 1000 + number, None)
        self.producing -= 1

    async def _insert(self, tasks: Tasks, queue: str, number: int, key: str | None) -> None:
        dice = self.dice
        options: dict[str, Any] = {"delay": dice.choice([0, 0, dice.uniform(0, 3)])}
        # With an id of its own alone, a task that was inserted, done and removed could be inserted again.
        options |= {"dedupe_key": f"d{number}", "dedupe_for": 1000}
        if dice.random() < 0.3:
            options["id"] = f"own{number}"
        if key is not None and dice.random() < 0.3:
            options["inbox"] = 5
        while True:
            try:
                await tasks.insert(queue, number, key=key, **options)
            except StoreUnavailable:
                await anyio.sleep(dice.uniform(0, 0.5))
            except InboxFull:
                return
            else:
                self.accepted[number] = key
                return

    # --- the run ------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._prepare()
        await self._until(ENDS)
        self.network.is_healthy = True
        for worker in self.workers:
            worker.line.is_cut = False
            worker.process.traps.clear()
        deadline = self.loop.time() + PATIENCE
        while self.producing or any(row.queue in ("a", "b", "k", "poison") for row in self.network.rows()):
            if self.loop.time() > deadline:
                left = [row for row in self.network.rows() if row.queue != "ledger"]
                self.network.broken(f"not done {PATIENCE:g} s after the last fault: {left[:5]}")
                break
            await self._until(self.loop.time() + 0.5)
        self.over = True
        await self._end()
        self._judge()
        await self._sweep()

    async def _until(self, instant: float) -> None:
        reached = self.loop.create_future()
        self._at(instant, reached.set_result, None)
        await reached

    async def _end(self) -> None:
        """All that live stop in good order, and leave nothing."""
        while any(worker.process.stops for worker in self.workers if not worker.process.dead):
            await self._until(self.loop.time() + 0.5)
        for worker in self.workers:
            if not worker.process.dead:
                worker.process.context.run(worker.tasks.stop)
        await self._until(self.loop.time() + 40)
        for worker in self.workers:
            process = worker.process
            if process.dead:
                continue
            running = [task for task in process.tasks if not task.done()]
            if running or self.loop.timers(process):
                self.network.broken(f"{process.name} has ended and has tasks or timers: {running}")
            for task in process.tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self.network.broken(f"a task of {process.name} failed: {task.exception()!r}")

    def _judge(self) -> None:
        ended: dict[str, Counter[int]] = {"ledger": Counter(), "dead": Counter()}
        order: dict[str, list[int]] = {}
        rows = sorted(self.network.rows(), key=lambda row: (row.created, row.id))
        for row in rows:
            kind = "ledger" if row.queue == "ledger" else "dead"
            number = int(row.json)
            ended[kind][number] += 1
            key = self.accepted.get(number)
            if key is not None and kind == "ledger":
                order.setdefault(key, []).append(number)
        for number in self.accepted:
            times = ended["ledger"][number] + ended["dead"][number]
            if times != 1 and not self.network.violations:
                self.network.broken(
                    f"task {number} was committed {ended['ledger'][number]} times, died {times}"
                )
        for number, times in (ended["ledger"] + ended["dead"]).items():
            if times > 1:
                self.network.broken(f"task {number} ended {times} times")
        for number in ended["dead"]:
            if number >= 1000 and ended["ledger"][number]:
                self.network.broken(f"poison {number} was done")

    async def _sweep(self) -> None:
        for _ in range(300):
            left = [task for worker in self.workers for task in worker.process.tasks if not task.done()]
            if not left:
                return
            for worker in self.workers:
                worker.line.is_cut = True
                worker.process.revive()
                self.loop.release(worker.process)
            await anyio.lowlevel.checkpoint()
            for task in left:
                task.cancel()


def simulate(mix: str, seed: int) -> Run:
    """Run one schedule, and judge it."""
    logger = logging.getLogger("intervalq")
    quiet, logger.disabled = logger.disabled, True  # the faults are meant
    state = random.getstate()
    random.seed(f"{mix}:{seed}")
    dice = Random(f"{mix}:{seed}:ids")
    loop = WorldLoop(horizon=1e5)
    clock = mock.Mock(side_effect=itertools.count(10**18, 10**6).__next__)
    try:
        with (
            mock.patch("intervalq.tasks._spec.ids._last", _ids._Last()),
            mock.patch("intervalq.tasks._spec.ids.os.urandom", dice.randbytes),
            mock.patch("intervalq.tasks._spec.ids.time.time_ns", clock),
        ):
            world = World(MIXES[mix], f"{mix}:{seed}", loop)
            loop.run_until_complete(world.run())
    finally:
        loop.close()
        random.setstate(state)
        logger.disabled = quiet
    network = world.network
    done = sum(row.queue == "ledger" for row in network.rows())
    return Run(
        network.violations, network.lines, len(world.accepted), done, world.runs, network.calls, loop.time()
    )


if __name__ == "__main__":
    shown = simulate(sys.argv[1], int(sys.argv[2]))
    print("\n".join(shown.lines[-400:]))
    print(shown.violations, shown.tasks, shown.done, shown.runs, shown.calls)
