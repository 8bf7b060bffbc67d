"""A storm: real shard processes call a real service while processes and servers are killed around them.

    python tests/faults/storm.py --store redis-aof --minutes 30 --every 2

Faults are drawn from a seed, each kind equally often. At the end the log of the called service is compared
with the promises (see `verdict.py`). The exit code is 1 if one was broken; Ctrl-C ends a storm early, judges
it, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.called import now
from faults.shards import SCRIPT, Shard
from faults.targets import TARGETS, Fault
from faults.trial import Trial
from faults.verdict import Loss, Verdict

_STEP: Final = 0.003
"""Seconds, from the beginning of a step, within which a process that is to die in a step dies."""

_TOLD: Final = 0.012
"""Seconds within which a process that is to stop in a step stops: until its next slot has nearly come."""

AGAIN: Final = 5
"""The number of jobs that must begin after the last fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of a storm."""

    store: str
    seconds: float
    every: float = 1.0
    """Seconds from one fault to the next, on average."""
    interval: float = 0.1
    shards: int = 3
    callers: int = 6
    seed: int = 1
    script: Path = SCRIPT
    more: tuple[str, ...] = ()
    """The command-line options of a shard."""
    least: int = 0
    """The minimum number of faults, however slow the machine is."""
    calm: bool = False
    """True: no faults at all."""


@dataclass(slots=True)
class Storm:
    """The result of a storm."""

    plan: Plan
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """How calls of processes that survived ended."""
    verdict: Verdict = field(default_factory=Verdict)
    interrupted: bool = False


class Driver:
    """Causes the faults of one storm, one after the other."""

    def __init__(self, plan: Plan, trial: Trial, faults: list[Fault]) -> None:
        self.plan = plan
        self.trial = trial
        self.shards = trial.shards
        self.done: Counter[str] = Counter()
        self._random = random.Random(plan.seed)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        on_shards = {
            "shard killed": self._kill,
            "shard killed in a step": lambda: self._any().tell(
                f"die-in-step {self._random.uniform(1e-5, _STEP)}"
            ),
            "all shards killed": self._kill_all,
            "shard stopped": self._stop,
            "shard stopped in a step": lambda: self._stop(
                f"stop-in-step {self._random.uniform(1e-5, _TOLD)}"
            ),
            "shard stopped at a start": lambda: self._stop("stop-at-start"),
        }
        if not Path(
            "/proc/self/stat"
        ).exists():  # where it isn't visible whether a process has stopped itself
            del on_shards["shard stopped in a step"], on_shards["shard stopped at a start"]
        mine = [Fault(name, do) for name, do in on_shards.items()]
        self._faults = self._forever([*mine, *faults])

    def run(self, progress: Callable[[float], None]) -> None:
        """Cause faults until the time is over."""
        begin = time.monotonic()
        end = begin + self.plan.seconds
        due = math.inf if self.plan.calm else begin + self.plan.every
        while True:
            wake = min([due, *(at for at, _, _ in self._later[:1])])
            time.sleep(max(0.0, min(wake - time.monotonic(), 0.2)))
            at = time.monotonic()
            progress(min(at - begin, self.plan.seconds))
            while self._later and self._later[0][0] <= at:
                heapq.heappop(self._later)[2]()
            self._replace_fallen()
            if at >= end and self.done.total() >= self.plan.least:
                break
            if at >= due:
                self._do(next(self._faults))
                due = max(at, due) + self.plan.every * self._random.uniform(0.5, 1.5)
        for shard in self.shards.alive:
            self.shards.go_on(shard)
        self._replace_fallen()
        self.trial.last_fault = now()

    def _do(self, fault: Fault) -> None:
        begin = now()
        try:
            fault.do()
        finally:
            if fault.loses:
                self.trial.losses.append(Loss(begin, now()))
        self.done[fault.name] += 1

    def _forever(self, faults: list[Fault]) -> Iterator[Fault]:
        while True:
            self._random.shuffle(faults)
            yield from faults

    def _any(self) -> Shard:
        return self._random.choice(self.shards.alive)

    def _kill(self) -> None:
        self.shards.kill(self._any())
        self.shards.start()

    def _kill_all(self) -> None:
        for shard in list(self.shards.alive):
            self.shards.kill(shard)
            self.shards.start()

    def _replace_fallen(self) -> None:
        for _ in self.shards.fallen():
            self.shards.start()

    def _stop(self, how: str = "") -> None:
        shard = self._any()
        self.shards.stop(shard, how)
        self._go_on_after(self._random.uniform(0.2, 3), shard)

    def _go_on_after(self, seconds: float, shard: Shard) -> None:
        at = time.monotonic() + seconds
        heapq.heappush(self._later, (at, next(self._numbers), lambda: self._go_on(shard)))

    def _go_on(self, shard: Shard) -> None:
        if shard in self.shards.alive and not self.shards.go_on(shard):
            self._go_on_after(0.1, shard)


def run(plan: Plan, progress: Callable[[float], None] = lambda _: None) -> Storm:
    """Run one storm, and judge it."""
    storm = Storm(plan)
    with (
        TARGETS[plan.store]() as target,
        Trial(
            target.url, interval=plan.interval, callers=plan.callers, script=plan.script, more=plan.more
        ) as trial,
    ):
        driver = Driver(plan, trial, target.faults())
        for _ in range(plan.shards):
            trial.shards.start()
        try:
            trial.go_on(1)
            driver.run(progress)
            trial.go_on(2)
        except KeyboardInterrupt:
            storm.interrupted = True
        storm.faults = driver.done
        storm.verdict = trial.verdict(again=0 if storm.interrupted else AGAIN)
        for report in trial.shards.reports:
            storm.ended.update(report.ended)
    return storm


# --- by hand ------------------------------------------------------------------------------------------

_FIGURES: Final = ("starts", "short", "stopped", "frozen", "lost", "old", "stepped", "widened", "unexplained")


def main() -> int:
    """Run what the command line requests, show its progress, and sum up; 1: a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", action="append", choices=list(TARGETS), help="may be repeated; without: all"
    )
    parser.add_argument("--minutes", type=float, default=3, help="for each store")
    parser.add_argument("--every", type=float, default=2, help="seconds from one fault to the next")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--callers", type=int, default=6, help="in each shard")
    parser.add_argument("--seed", type=int, help="of the faults; without: a new one")
    wanted = parser.parse_args()
    seed = random.randrange(1 << 32) if wanted.seed is None else wanted.seed
    storms = []
    for store in wanted.store or TARGETS:
        plan = Plan(
            store=store, seconds=wanted.minutes * 60, every=wanted.every, interval=wanted.interval,
            shards=wanted.shards, callers=wanted.callers, seed=seed,
        )  # fmt: skip
        with shown(store, plan.seconds) as progress, ending(progress) as progress_or_end:
            storm = run(plan, progress_or_end)
        storms.append(storm)
        for what in (*storm.verdict.allowed, *storm.verdict.broken):
            print(f"{store}, seed {seed}: {what}")
        if storm.interrupted:
            break
    print(summary(storms))
    print(f"seed {seed}")
    return int(any(storm.verdict.broken for storm in storms))


@contextmanager
def shown(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Shows the progress on standard error, if rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def ending(progress: Callable[[float], None]) -> Iterator[Callable[[float], None]]:
    """Lets Ctrl-C end a storm between two faults, not within one; a second one ends it at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def go_on_or_end(done: float) -> None:
        progress(done)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield go_on_or_end
    finally:
        signal.signal(signal.SIGINT, before)


def summary(storms: list[Storm]) -> str:
    """A table of the faults, the allowances that were needed, and the violations."""
    rows = [["store", "faults", *_FIGURES, "least gap", "calls that failed", "broken"]]
    for storm in storms:
        verdict = storm.verdict
        failed = sum(times for how, times in storm.ended.items() if how != "returned")
        figures = [str(getattr(verdict, name)) for name in _FIGURES]
        rows.append([
            storm.plan.store, str(storm.faults.total()), *figures, f"{verdict.least:.3f}", str(failed),
            str(len(verdict.broken)),
        ])  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for storm in storms:
        done = ", ".join(f"{times} x {name}" for name, times in sorted(storm.faults.items()))
        lines.append(f"{storm.plan.store}: {done}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
