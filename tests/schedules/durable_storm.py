"""A storm over durable schedules, judged by the tasks that were inserted: none lost, none doubled.

    python tests/schedules/durable_storm.py --store postgres --schedules 1000 --processes 8 --minutes 10

Processes that run workers are killed (SIGKILL) and stopped, the server is killed and restarted, and the wall
clocks of processes and server are set. The judge takes each inserted task from its queue, and knows by the
time of its insertion whether its id comes a second time. Ends with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.fake_clock import FakeClock
from faults.targets import TARGETS, Target
from intervalq.errors import ClaimLost, StoreError, StoreUnavailable
from intervalq.tasks import Claim, Tasks

QUEUE: Final = "out"
STORES: Final = ("sqlite", "redis-aof", "postgres", "nats")
_STEP: Final = 20
"""The most seconds by which a clock is set forward or back."""
_CALM: Final = 120.0
"""Seconds after the last fault within which all schedules must have gone on."""


def process(url: str) -> None:
    """Run a worker of another queue, and with it the schedules, until killed."""
    tasks = Tasks(url)
    tasks.worker("idle")(print)
    while True:
        with suppress(StoreUnavailable):  # as its supervisor would
            anyio.run(tasks.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a storm."""

    store: str
    schedules: int = 1_000
    processes: int = 8
    seconds: float = 60.0
    every: int = 5
    """Seconds between two occurrences of each schedule."""
    faults: int = 0
    """How many faults there are at least."""
    clocks: bool = False
    """Whether wall clocks are set."""
    seed: int = 1


@dataclass(slots=True)
class Storm:
    """What was inserted, and the verdict."""

    plan: Plan
    faults: Counter[str] = field(default_factory=Counter)
    inserted: dict[str, set[float]] = field(default_factory=dict)
    """For each id, when a task of it was inserted."""
    begun: dict[str, float] = field(default_factory=dict)
    """For each schedule, when it was created, on the store's clock."""
    went_on: bool = False
    """Whether all schedules went on after the last fault."""

    @property
    def doubled(self) -> list[str]:
        """Ids that were inserted more than once."""
        return [id_ for id_, times in self.inserted.items() if len(times) > 1]

    @property
    def lost(self) -> list[str]:
        """Occurrences from the first to the last one of each schedule that were not inserted."""
        found: dict[str, list[int]] = {name: [] for name in self.begun}
        for id_ in self.inserted:
            name, _, at = id_.partition("/")
            found[name].append(round(datetime.fromisoformat(at).timestamp()))
        every, lost = self.plan.every, list[str]()
        for name, times in found.items():
            first = int(self.begun[name] // every + 1) * every
            last = max(times, default=first)
            lost += [f"{name}/{at}" for at in range(first, last + 1, every) if at not in {*times}]
        return lost

    @property
    def broken(self) -> bool:
        """Whether a promise was."""
        return bool(self.doubled or self.lost or not self.went_on)


class Driver:
    """Runs the processes of a storm, takes what they insert, and causes the faults."""

    def __init__(self, plan: Plan, target: Target, clocks: dict[str, FakeClock]) -> None:
        self.storm = Storm(plan)
        self._plan, self._target, self._clocks = plan, target, clocks
        self._random = random.Random(plan.seed)
        self._more = anyio.Event()
        self._alive: list[subprocess.Popen[bytes]] = []
        self._stopped: list[subprocess.Popen[bytes]] = []

    async def run(self, progress: Callable[[Storm], None]) -> Storm:
        """Do all of it, and return the result."""
        plan, storm = self._plan, self.storm
        async with Tasks(self._target.url) as tasks:
            for number in range(plan.schedules):
                await tasks.schedule(f"s{number}", QUEUE, number, every=plan.every)
            for row in await tasks.tasks(ids=[f"schedule/s{number}" for number in range(plan.schedules)]):
                storm.begun[row.id.removeprefix("schedule/")] = row.created
            while len(self._alive) < plan.processes:
                self._start()
            async with anyio.create_task_group() as group:
                group.start_soon(self._take)
                await self._inserted(plan.schedules)
                end = time.monotonic() + plan.seconds
                while time.monotonic() < end or storm.faults.total() < plan.faults:
                    await anyio.to_thread.run_sync(self._fault)
                    progress(storm)
                    await self._inserted(self._random.randint(1, max(1, plan.schedules)))
                for stopped in self._stopped:
                    stopped.send_signal(signal.SIGCONT)
                with anyio.move_on_after(_CALM):
                    before = self._last()
                    while not all(at > before[name] for name, at in self._last().items()):
                        await self._inserted(1)
                    storm.went_on = True
                self.end()
                await self._settle(tasks)
                group.cancel_scope.cancel()
        return storm

    def _last(self) -> dict[str, str]:
        last = dict.fromkeys(self.storm.begun, "")
        for id_ in self.storm.inserted:
            name, _, at = id_.partition("/")
            last[name] = max(last[name], at)
        return last

    async def _inserted(self, count: int) -> None:
        """Wait until so many more tasks were inserted."""
        goal = len(self.storm.inserted) + count
        while len(self.storm.inserted) < goal:
            await self._more.wait()

    async def _take(self) -> None:
        """Take what is inserted, again and again; a task that comes again has the same time of insertion."""
        async with Tasks(self._target.url) as tasks:
            while True:
                try:
                    claims = await tasks.pull(QUEUE, name="judge").fetch(500, timeout=60)
                    for claim in claims:
                        self.storm.inserted.setdefault(claim.id, set()).add(claim.created)
                    self._more.set()
                    self._more = anyio.Event()
                    async with anyio.create_task_group() as group:
                        for claim in claims:
                            group.start_soon(_settled, claim)
                except (StoreUnavailable, TimeoutError):
                    await anyio.sleep(0.1)

    async def _settle(self, tasks: Tasks) -> None:
        """Wait until the judge has all that was inserted."""
        with anyio.fail_after(_CALM):
            while await tasks.queues(QUEUE):
                await anyio.sleep(0.1)

    # --- faults -------------------------------------------------------------------------------------

    def _fault(self) -> None:
        for stopped in [each for each in self._stopped if self._random.random() < 0.6]:
            stopped.send_signal(signal.SIGCONT)
            self._stopped.remove(stopped)
        mine: dict[str, Callable[[], None]] = {"process killed": self._kill, "process stopped": self._stop}
        others = {fault.name: fault.do for fault in self._target.faults() if not fault.loses}
        for name, clock in self._clocks.items():
            others[f"clock of {name} set"] = lambda clock=clock: clock.set(
                self._random.randint(-_STEP, _STEP)
            )
        kind = self._random.choice([mine, others] if others else [mine])
        name = self._random.choice(list(kind))
        kind[name]()
        self.storm.faults[name] += 1
        self._alive = [each for each in self._alive if each.poll() is None]
        while len(self._alive) < self._plan.processes:
            self._start()

    def _start(self) -> None:
        clock = self._clocks.get("processes")
        environment = {**os.environ, **(clock.environment if clock is not None else {})}
        command = [sys.executable, __file__, "process", self._target.url]
        self._alive.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))

    def _kill(self) -> None:
        killed = self._random.choice(self._alive)
        killed.kill()
        killed.wait()

    def _stop(self) -> None:
        stopped = self._random.choice(self._alive)
        stopped.send_signal(signal.SIGSTOP)
        self._stopped.append(stopped)

    def end(self) -> None:
        """End all processes."""
        for each in self._alive:
            each.kill()
            each.wait()


async def _settled(claim: Claim) -> None:
    with suppress(ClaimLost, StoreError):  # it comes again
        await claim.ack()


@contextmanager
def _faked(clock: FakeClock) -> Iterator[None]:
    """Start a server under this clock."""
    before = dict(os.environ)
    os.environ.update(clock.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(plan: Plan, progress: Callable[[Storm], None] = lambda _: None) -> Storm:
    """Run a storm, and leave nothing behind."""
    with ExitStack() as stack:
        clocks: dict[str, FakeClock] = {}
        target = TARGETS[plan.store]()
        if plan.clocks:
            clocks["processes"] = FakeClock()
            stack.callback(clocks["processes"].close)
        if plan.clocks and target.faults():
            clocks["server"] = FakeClock()
            stack.callback(clocks["server"].close)
            stack.enter_context(_faked(clocks["server"]))
        stack.enter_context(target)
        driver = Driver(plan, target, clocks)
        stack.callback(driver.end)
        return anyio.run(driver.run, progress)


def main() -> int:
    if sys.argv[1:2] == ["process"]:
        process(sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=int, default=5, metavar="S", help="seconds between two occurrences")
    parser.add_argument("--no-clocks", action="store_true", help="leave the clocks alone")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    plan = Plan(
        store=given.store,
        schedules=given.schedules,
        processes=given.processes,
        seconds=given.minutes * 60,
        every=given.every,
        clocks=not given.no_clocks,
        seed=given.seed,
    )
    print(plan)

    def progress(storm: Storm) -> None:
        print(f"\r{storm.faults.total()} faults, {len(storm.inserted)} inserted ", end="", flush=True)

    storm = run(plan, progress)
    print(f"\n{dict(storm.faults)}")
    print(f"{len(storm.inserted)} inserted, {len(storm.doubled)} doubled, {len(storm.lost)} lost")
    for what in (*storm.doubled[:10], *storm.lost[:10]):
        print(what)
    if not storm.went_on:
        print(f"not all schedules went on within {_CALM:g} s after the last fault")
    return int(storm.broken)


if __name__ == "__main__":
    sys.exit(main())
