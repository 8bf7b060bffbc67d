"""Simulated workers: real handles in processes that stall, die and restart, and a ledger that is judged.

A run is one seed of one mix. Whatever goes wrong, every accepted task must be once in the ledger, which is
written in the step of its acknowledgement, or once in the dead-letter queue, soon after the last fault.
`python tests/tasks/simulated_workers.py MIX SEED` shows one run.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
import anyio
import anyio.lowlevel

from intervalq.errors import InboxFull, StoreUnavailable
from intervalq.tasks import Tasks
from intervalq.tasks._spec import ids as _ids
from intervalq.tasks._spec.row import Row
from intervalq_stores.memory.queues import MemoryStore
from simulation.loop import Process, ProcessClock, SimulatedScope, WorldLoop
from tasks.simulated_judge import Judge
from tasks.simulated_mixes import MIXES, Mix
from tasks.simulated_network import Connection, Network
from tasks.simulated_process import Worker
from tasks.simulated_stores import connection_of
from tasks.simulated_users import User

ENDS = 30.0
"""Seconds of faults."""

MAX_LINES = 20_000
"""Five times as many as any run has needed: a run that makes more has a fault, and would only take time."""

PATIENCE = 240.0
"""Seconds after that within which there must be fewer tasks left: time-outs, lapses, backoff, work."""

FOUND = 2.0
"""Seconds after which the store has noticed that a process is dead, if others watch."""

QUEUES = ("a", "b", "c", "k", "m", "q", "h", "poison")


@dataclass(slots=True)
class Run:
    """The result of a run."""

    violations: list[str]
    lines: list[str]
    tasks: int
    done: int
    runs: int
    """How often a function was called."""
    calls: int
    seconds: float
    waited: float
    """Seconds for which tasks were ready before they began."""
    steps: int
    """How many steps of event loops all workers took."""


class World:
    """The store, the processes and their faults in one run, and what became of each task."""

    def __init__(self, mix: Mix, seed: str, loop: WorldLoop) -> None:
        self.loop = loop
        self.mix = mix
        self.dice, self.seed = Random(seed), seed
        self.network = Network(Random(f"{seed}:network"), lost=mix.lost, slow=mix.slow)
        calm = not (mix.lost or mix.slow or mix.stalls or mix.cuts or mix.refusals or mix.outages)
        self.steps = 0  # of all workers
        self.judge = Judge(self.network, loop.time, calm=calm)
        self.network.observe, self.network.answered = self.judge.saw, self.judge.answered
        self.judge.patience = mix.patience
        self.pace = MemoryStore(clock=self.network.now)
        self.is_paced = self.dice.random() < 0.5
        self.holders: dict[str, tuple[User, float, float]] = {}
        """Tasks that are claimed by hand: who has each, until when at least, and since when."""
        self.waking = self.dice.random() < 0.5
        self.expiry = self.dice.choice([1.0, 5.0])
        self.workers: list[Worker] = []
        self.users: list[User] = []
        self.accepted: dict[int, str | None] = {}
        """Of each task that was accepted: the key; in the order in which the inserts were answered."""
        self.cancelled: set[int] = set()
        """Tasks that were cancelled, as the operator was told."""
        self.maybe_cancelled: set[int] = set()
        """Those of which that is not known."""
        self.producing = 0
        self.runs = 0
        self.over = False
        self._names = itertools.count()

    def at(self, instant: float, action: Callable[..., object], *args: object) -> None:
        self.loop.call_at(instant, action, *args, context=Context())

    def begin(self) -> None:
        if not self.over:
            worker = Worker(self, f"worker{next(self._names)}")
            self.workers.append(worker)
            worker.start()
            if self.mix.beside:
                worker.start_user()

    def crash(self, worker: Worker) -> None:
        """Kill the process, and start another one in its place."""
        if not worker.process.dead and not self.over:
            self.network.say(f"{worker.process.name} dies")
            worker.process.dead = True
            self.judge.dies(worker.process)
            self.at(self.loop.time() + self.dice.uniform(0.1, 3), self.begin)
            if self.mix.guards:
                since = self.loop.time()
                for other in self.workers:
                    self.at(since + FOUND, other.judge_dead, worker.process, since)

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
            worker.process.trap(self.dice.randrange(1, 60), lambda: self._stall(worker, length))
        elif kind == "stop":
            cancel = self.dice.random() < 0.3
            worker.process.trap(self.dice.randrange(1, 60), partial(worker.stop, cancel=cancel))
        elif kind == "close":
            worker.process.trap(self.dice.randrange(1, 60), worker.close)
        elif kind == "away":
            self._cut(self.dice.choice(self.users).connection, length)
        elif kind == "refuse":
            until = self.loop.time() + self.dice.choice([0.01, min(length, 3.0)])
            self.dice.choice(self._everybody()).connection.refused_until = until
        else:
            worker.seat.back = max(worker.seat.back, self.loop.time() + length)
            self._cut(worker.connection, length)

    def _cut(self, connection: Connection, length: float) -> None:
        connection.is_cut = True
        self.at(self.loop.time() + length, setattr, connection, "is_cut", False)

    def _stall(self, worker: Worker, length: float) -> None:
        worker.seat.back = max(worker.seat.back, self.loop.time() + length)
        self.loop.stop_process(worker.process, length)

    def connection(self, process: Process) -> Connection:
        """A connection of a process to the store."""
        return connection_of(self.network, process, self.mix, wakes=self.waking)

    def has_session(self, process: Process) -> bool:
        """Whether the store has a session of a process."""
        return not self.judge.sessions_of(process).isdisjoint(self.network.store._tasks.table._sessions)

    def has_claims(self, process: Process) -> bool:
        """Whether a process has claimed tasks. One that dies while it comes leaves a session without any."""
        sessions = self.judge.sessions_of(process)
        return any(row.session in sessions for row in self.network.rows())

    def _prepare(self) -> None:
        processes = self.dice.randint(2, 4)
        for _ in range(processes):
            self.at(self.dice.uniform(0, 2), self.begin)
        mix = self.mix
        for kind, rate in mix.faults().items():
            for _ in range(round(rate * processes)):
                self.at(self.dice.uniform(0, ENDS), self._hurt, kind)
        for name in ("producer0", "producer1"):
            process = Process(name, ProcessClock(0, 0.0, lambda: 0.0))
            producer = Tasks(Connection(self.network, process))
            self.producing += 1
            process.context.run(self._spawn, self._produce(producer, int(name[-1])))
        if mix.cancels:
            process = Process("operator", ProcessClock(0, 0.0, lambda: 0.0))
            operator = Tasks(Connection(self.network, process))
            process.context.run(self._spawn, self._operate(operator, Random(f"{self.seed}:operator")))
        for look in range(int(4 * ENDS)):
            self.at(look / 2, self.judge.look)
        for number in range(mix.user_processes):
            first = User(self, f"hand{number}")
            self.users.append(first)
            first.process.context.run(self._spawn, first.work())
            for other in range(1, mix.users):
                user = User(self, f"user {other} of hand{number}", other=first)
                self.users.append(user)
                user.process.context.run(self._spawn, user.work())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(coroutine)

    async def _produce(self, tasks: Tasks, first: int) -> None:
        dice = self.dice
        for number in range(first, dice.randint(20, 60), 2):
            await anyio.sleep(dice.expovariate(2))
            queue = dice.choice(["a", "b", "k", "m", "h"] if self.users else ["a", "b", "k", "m"])
            if dice.random() < (0.2 if self.mix.chunks or self.mix.stops else 0.04):
                await self._insert_many(tasks, 100 * number + 2000)
            if self.mix.chunks and dice.random() < 0.5:
                queue = "c"
            key = (
                f"key{dice.randrange(3)}" if queue == "k" or (queue == "c" and dice.random() < 0.3) else None
            )
            await self._insert(tasks, queue, number, key)
        if first == 0:
            for number in range(self.mix.poison):
                await self._insert(tasks, "poison", 1000 + number, None)
        self.producing -= 1

    async def _insert(self, tasks: Tasks, queue: str, number: int, key: str | None) -> None:
        dice = self.dice
        options: dict[str, Any] = {"delay": dice.choice([0, 0, dice.uniform(0, 3)])}
        # With only an id, a task that was inserted, done and removed could be inserted again.
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

    async def _operate(self, tasks: Tasks, dice: Random) -> None:
        """Cancel some tasks, mostly running ones."""
        for _ in range(self.mix.cancels):
            await anyio.sleep(dice.uniform(0, 2 * ENDS / self.mix.cancels))
            rows = [row for row in self.network.rows() if row.queue in QUEUES]
            held = [row for row in rows if row.session is not None]
            some = dice.sample(held or rows, min(len(held or rows), dice.choice([1, 1, 3])))
            numbers = {row.id: int(row.json) for row in some}
            self.judge.unsure.update(numbers)
            self.maybe_cancelled.update(numbers.values())
            try:
                answer = await tasks.cancel(*numbers) if numbers else None
            except StoreUnavailable:
                continue
            if answer is not None:
                self.cancelled.update(numbers[id_] for id_ in (*answer.removed, *answer.stopping))
                self.network.say(f"cancelled {answer}")

    async def _insert_many(self, tasks: Tasks, first: int) -> None:
        """Insert tasks that take nearly no time, all at once."""
        numbers = range(first, first + self.dice.randint(10, 60))
        queue = "c" if self.mix.chunks else "q"
        parts = [tasks.new(queue, number, id=f"own{number}") for number in numbers]
        try:
            await tasks.modify(*parts)
        except StoreUnavailable:
            return  # whether they exist is unknown
        self.accepted.update(dict.fromkeys(numbers))

    # --- the run ------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._prepare()
        await self._until(ENDS)
        self.network.is_healthy = True
        for each in self._everybody():
            each.connection.is_cut, each.connection.refused_until = False, 0.0
            each.process.traps.clear()
        fewest, deadline = math.inf, 0.0
        while (left := self._left()) or self.producing:
            # Hundreds of tasks that were lost together run alone, one after the other.
            if len(left) < fewest:
                fewest, deadline = len(left), self.loop.time() + PATIENCE
            if self.loop.time() > deadline or len(self.network.lines) > MAX_LINES:
                self.network.broken(f"no progress in time after the last fault: {left[:5]}")
                break
            await self._until(self.loop.time() + 0.5)
        self.over = True
        await self._end()
        self.steps = sum(worker.process.steps for worker in self.workers)
        self._judge()
        await self._sweep()

    def _everybody(self) -> list[Worker | User]:
        return [*self.workers, *self.users]

    def _left(self) -> list[Row]:
        return [row for row in self.network.rows() if row.queue in QUEUES]

    async def _until(self, instant: float) -> None:
        reached = self.loop.create_future()
        self.at(instant, reached.set_result, None)
        await reached

    async def _end(self) -> None:
        """Stop all live processes in an orderly way, so that nothing is left."""
        while any(worker.process.stops for worker in self.workers if not worker.process.dead):
            await self._until(self.loop.time() + 0.5)
        for worker in self.workers:
            if not worker.process.dead:
                worker.stop(cancel=False)
        await self._until(self.loop.time() + 40)
        for process in [each.process for each in self._everybody() if not each.process.dead]:
            running = [task for task in process.tasks if not task.done()]
            if running or self.loop.timers(process):
                self.network.broken(f"{process.name} has ended and has tasks or timers: {running}")
            for task in process.tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self.network.broken(f"a task of {process.name} failed: {task.exception()!r}")

    def _judge(self) -> None:
        ended: dict[str, Counter[int]] = {"ledger": Counter(), "dead": Counter()}
        for row in self.network.rows():
            kind = "ledger" if row.queue == "ledger" else "dead"
            ended[kind][int(row.json)] += 1
        for number in self.accepted:
            times = ended["ledger"][number] + ended["dead"][number]
            if number in self.cancelled and times:
                self.network.broken(f"task {number} was cancelled, and ended {times} times")
            may_be_gone = number in self.maybe_cancelled and not times
            if times != 1 and not may_be_gone and not self.network.violations:
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
        """End what is left, after the judgment: dead processes resume in order to end."""
        self.network.is_over = True
        for _ in range(300):
            everybody = self._everybody()
            left = [task for each in everybody for task in each.process.tasks if not task.done()]
            if not left:
                return
            for worker in everybody:
                worker.connection.is_cut = True
                worker.process.revive()
                self.loop.release(worker.process)
            await anyio.lowlevel.checkpoint()
            for task in left:
                task.cancel()


def simulate(mix: str, seed: int) -> Run:
    """Run one schedule, and judge it."""
    logger = logging.getLogger("intervalq")
    quiet, logger.disabled = logger.disabled, True  # the faults are intended
    state = random.getstate()
    random.seed(f"{mix}:{seed}")
    dice = Random(f"{mix}:{seed}:ids")
    loop = WorldLoop(horizon=1e5)
    clock = mock.Mock(side_effect=itertools.count(10**18, 10**6).__next__)
    try:
        with (
            mock.patch("anyio._backends._asyncio.CancelScope", SimulatedScope),
            mock.patch.object(SimulatedScope, "made", itertools.count()),
            mock.patch("intervalq.tasks._spec.ids._last", _ids._Last()),
            mock.patch("intervalq.tasks._spec.ids.os.urandom", dice.randbytes),
            mock.patch("intervalq.tasks._spec.ids.time.time_ns", clock),
            mock.patch("intervalq.tasks._session.alone.PATIENCE", MIXES[mix].patience),
        ):
            world = World(MIXES[mix], f"{mix}:{seed}", loop)
            loop.run_until_complete(world.run())
            ended = loop.time()
    finally:
        loop.close()
        random.setstate(state)
        logger.disabled = quiet
    network = world.network
    done = sum(row.queue == "ledger" for row in network.rows())
    return Run(
        network.violations, network.lines, len(world.accepted), done, world.runs, network.calls, ended,
        world.judge.waited, world.steps,
    )  # fmt: skip


if __name__ == "__main__":
    shown = simulate(sys.argv[1], int(sys.argv[2]))
    print("\n".join(shown.lines[-400:]))
    print(shown.violations, shown.tasks, shown.done, shown.runs, shown.calls)
