"""A storm over schedules, judged by what came of them.

    python tests/schedules/storm.py --store postgres --schedules 1000 --processes 8 --minutes 10

Processes are killed (SIGKILL) and stopped, the server is killed and restarted, and the wall clocks of
processes and server are set. Each occurrence of a durable schedule must be inserted once: the judge takes the
tasks from their queue, and knows by the time of its insertion whether one comes a second time. With
`--overlap`, functions are called instead, each occurrence at most once; one that isn't must be reported as
missed or abandoned by a later one. Ends with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.fake_clock import FakeClock
from faults.targets import TARGETS, Target
from intervalq.errors import ClaimLost, StoreError, StoreUnavailable
from intervalq.tasks import Claim, Tasks

QUEUE: Final = "out"
Occurrence = tuple[str, int]
"""The name of a schedule, and the time in milliseconds since 1970."""

PROCESS: Final = Path(__file__).with_name("storm_process.py")
STORES: Final = ("sqlite", "redis-aof", "postgres", "nats")
_STEP: Final = 20
"""The most seconds by which a clock is set forward or back."""
_STUCK: Final = 30.0
_AT_ONCE: Final = 50
"""How many schedules are declared at once."""
_CALM: Final = 120.0
"""Seconds after the last fault within which all schedules must have gone on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a storm."""

    store: str
    schedules: int = 1_000
    processes: int = 8
    seconds: float = 60.0
    every: float = 5
    """Seconds between two occurrences of each schedule."""
    overlap: str = ""
    """That of functions; empty: the schedules are durable."""
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
    came: dict[Occurrence, set[float]] = field(default_factory=dict)
    """What came of each occurrence: when its tasks were inserted, or the fencing numbers of its calls."""
    reported: set[Occurrence] = field(default_factory=set)
    """Occurrences that later ones reported as missed or abandoned."""
    begun: dict[str, float] = field(default_factory=dict)
    """For each durable schedule, when it was created, on the store's clock."""
    went_on: bool = False
    """Whether all schedules went on after the last fault."""

    @property
    def doubled(self) -> list[Occurrence]:
        """Occurrences that came more than once."""
        return [which for which, times in self.came.items() if len(times) > 1]

    @property
    def lost(self) -> list[Occurrence]:
        """Occurrences from the first to the last one of each schedule that neither came nor were reported."""
        every, lost = round(self.plan.every * 1e3), list[Occurrence]()
        for name, last in self.last().items():
            first = min(at for which, at in self.came if which == name)
            if name in self.begun:
                first = int(self.begun[name] * 1e3 // every + 1) * every
            lost += [(name, at) for at in range(first, last, every) if (name, at) not in self.came]
        return [which for which in lost if which not in self.reported]

    def last(self) -> dict[str, int]:
        """The last occurrence of each schedule that came."""
        last: dict[str, int] = {}
        for name, at in self.came:
            last[name] = max(last.get(name, 0), at)
        return last

    @property
    def broken(self) -> bool:
        """Whether a promise was."""
        return bool(self.doubled or self.lost or not self.went_on)


class Driver:
    """Runs the processes of a storm, takes what they insert, and causes the faults."""

    def __init__(self, plan: Plan, target: Target, clocks: dict[str, FakeClock], folder: Path) -> None:
        self.storm = Storm(plan)
        self._plan, self._target, self._clocks = plan, target, clocks
        self._random = random.Random(plan.seed)
        self._more = anyio.Event()
        self._alive: list[subprocess.Popen[bytes]] = []
        self._stopped: list[subprocess.Popen[bytes]] = []
        self._log = folder / "log"
        self._log.touch()
        self._heard, self._bell = os.pipe()

    async def run(self, progress: Callable[[Storm], None]) -> Storm:
        """Do all of it, and return the result."""
        plan, storm = self._plan, self.storm
        if not plan.overlap:
            await self._declare()
        while len(self._alive) < plan.processes:
            self._start()
        async with anyio.create_task_group() as group:
            group.start_soon(self._take_calls if plan.overlap else self._take_tasks)
            while len(storm.last()) < plan.schedules:
                await self._more.wait()
            end = time.monotonic() + plan.seconds
            while time.monotonic() < end or storm.faults.total() < plan.faults:
                await anyio.to_thread.run_sync(self._fault)
                progress(storm)
                await self._come(self._random.randint(1, plan.schedules))
            for stopped in self._stopped:
                stopped.send_signal(signal.SIGCONT)
            with anyio.move_on_after(_CALM):
                before = storm.last()
                while not all(at > before[name] for name, at in storm.last().items()):
                    await self._come(1)
                storm.went_on = True
            self.end()
            if not plan.overlap:
                await self._settle()
            group.cancel_scope.cancel()
        return storm

    async def _declare(self) -> None:
        names = [f"s{number}" for number in range(self._plan.schedules)]
        async with Tasks(self._target.url) as tasks:
            for begin in range(0, len(names), _AT_ONCE):
                async with anyio.create_task_group() as group:
                    for name in names[begin : begin + _AT_ONCE]:
                        group.start_soon(partial(tasks.schedule, name, QUEUE, every=self._plan.every))
            for row in await tasks.tasks(ids=[f"schedule/{name}" for name in names]):
                self.storm.begun[row.id.removeprefix("schedule/")] = row.created

    async def _come(self, count: int) -> None:
        """Wait until so many more occurrences have come, or for half a minute: all may be stopped."""
        goal = len(self.storm.came) + count
        with anyio.move_on_after(_STUCK):
            while len(self.storm.came) < goal:
                await self._more.wait()

    def _note(self, which: Occurrence, mark: float) -> None:
        self.storm.came.setdefault(which, set()).add(mark)
        self._more.set()
        self._more = anyio.Event()

    async def _take_calls(self) -> None:
        """Read the log of the functions whenever the bell rings."""
        rest = ""
        with self._log.open() as log:
            while True:
                await anyio.wait_readable(self._heard)
                os.read(self._heard, 1 << 16)
                *lines, rest = (rest + log.read()).split("\n")
                for line in lines:
                    name, scheduled, fence, missed = json.loads(line)
                    self._note((name, scheduled), fence)
                    self.storm.reported.update((name, at) for at in missed)

    async def _take_tasks(self) -> None:
        """Take what is inserted, again and again; a task that comes again has the same time of insertion."""
        async with Tasks(self._target.url) as tasks:
            while True:
                try:
                    claims = await tasks.pull(QUEUE, name="judge").fetch(500, timeout=60)
                    for claim in claims:
                        name, _, at = claim.id.partition("/")
                        self._note((name, round(datetime.fromisoformat(at).timestamp() * 1e3)), claim.created)
                    async with anyio.create_task_group() as group:
                        for claim in claims:
                            group.start_soon(_settled, claim)
                except (StoreUnavailable, TimeoutError):
                    await anyio.sleep(0.1)

    async def _settle(self) -> None:
        """Wait until the judge has all that was inserted."""
        async with Tasks(self._target.url) as tasks:
            await tasks.wait_empty(QUEUE, timeout=_CALM)

    # --- faults -------------------------------------------------------------------------------------

    def _fault(self) -> None:
        for stopped in [each for each in self._stopped if self._random.random() < 0.6]:
            stopped.send_signal(signal.SIGCONT)
            self._stopped.remove(stopped)
        mine: dict[str, Callable[[], None]] = {"process killed": self._kill}
        others = {fault.name: fault.do for fault in self._target.faults() if not fault.loses}
        if others:  # a process that is stopped with the lock of a file stops all
            mine["process stopped"] = self._stop
        for name, clock in self._clocks.items():
            others[f"clock of {name} set"] = partial(self._set, clock)
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
        plan, command = self._plan, [sys.executable, str(PROCESS), "durable", self._target.url]
        if plan.overlap:
            command[2] = "functions"
            command += [str(plan.schedules), str(plan.every), plan.overlap, str(self._log), str(self._bell)]
        self._alive.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, pass_fds=[self._bell])
        )

    def _set(self, clock: FakeClock) -> None:
        clock.set(self._random.randint(-_STEP, _STEP))

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

    def close(self) -> None:
        """End what is left."""
        self.end()
        os.close(self._heard)
        os.close(self._bell)


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
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="intervalq-"))
        driver = Driver(plan, target, clocks, Path(folder))
        stack.callback(driver.close)
        return anyio.run(driver.run, progress)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, metavar="S", help="seconds between two occurrences")
    parser.add_argument("--overlap", choices=["skip", "wait", "allow"], default="", help="call functions")
    parser.add_argument("--no-clocks", action="store_true", help="leave the clocks alone")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    plan = Plan(
        store=given.store,
        schedules=given.schedules,
        processes=given.processes,
        seconds=given.minutes * 60,
        every=given.every,
        overlap=given.overlap,
        clocks=not given.no_clocks,
        seed=given.seed,
    )
    print(plan)

    def progress(storm: Storm) -> None:
        print(f"\r{storm.faults.total()} faults, {len(storm.came)} occurrences ", end="", flush=True)

    storm = run(plan, progress)
    print(f"\n{dict(storm.faults)}")
    missed = len(storm.reported - {*storm.came})
    print(f"{len(storm.came)} came, {missed} missed, {len(storm.doubled)} doubled, {len(storm.lost)} lost")
    for what in (*storm.doubled[:10], *storm.lost[:10]):
        print(what)
    if not storm.went_on:
        print(f"not all schedules went on within {_CALM:g} s after the last fault")
    return int(storm.broken)


if __name__ == "__main__":
    sys.exit(main())
