"""Runs many schedules, in one or several processes, and adds up their figures."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from simulation.run import Run, simulate

_CHUNK: Final = 50
"""How many schedules a process runs before it returns their figures."""

_SHOWN: Final = 3
"""How many traces of broken schedules are kept per chunk: they are long."""


Planted: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Plants a bug while schedules run, to see that the judges find it."""


@dataclass(slots=True)
class Tally:
    """Figures of the schedules of one mix."""

    mix: str
    schedules: int = 0
    jobs: int = 0
    starts: int = 0
    given_up: int = 0
    late: int = 0
    calls: int = 0
    steps: int = 0
    """Of event loops."""
    used: int = 0
    wanted: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0
    """Virtual seconds."""
    broken: list[Run] = field(default_factory=list)

    def add(self, run: Run) -> None:
        """Count a schedule."""
        self.schedules += 1
        self.jobs += run.jobs
        self.starts += run.starts
        self.given_up += run.given_up
        self.late += run.late
        self.calls += run.calls
        self.steps += run.steps
        self.used += run.used
        self.wanted += run.wanted
        self.waited += run.waited
        self.seconds += run.seconds
        if run.violations:
            self.broken.append(run)
            if len(self.broken) > _SHOWN:
                run.lines.clear()

    def merge(self, other: Tally) -> None:
        """Add the figures of another tally."""
        sums = (
            "schedules",
            "jobs",
            "starts",
            "given_up",
            "late",
            "calls",
            "steps",
            "used",
            "wanted",
            "waited",
            "seconds",
        )
        for name in sums:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.broken += other.broken

    @property
    def rate(self) -> float:
        """The share of slots that were used while jobs waited and the queue was not held."""
        return self.used / self.wanted if self.wanted else 0.0

    @property
    def calls_a_job(self) -> float:
        """Commands to the store, per job."""
        return self.calls / self.jobs if self.jobs else 0.0

    @property
    def steps_a_job(self) -> float:
        """Steps of event loops, per job."""
        return self.steps / self.jobs if self.jobs else 0.0

    @property
    def wait(self) -> float:
        """The average wait of a job, in seconds."""
        return self.waited / self.starts if self.starts else 0.0


def several(mix: str, seeds: range, *, planted: Planted = nullcontext) -> Tally:
    """Run the schedules of a mix, one after the other."""
    tally = Tally(mix)
    with _quiet(), planted():
        for seed in seeds:
            tally.add(simulate(mix, seed))
    return tally


def in_chunks(
    mixes: list[str], seeds: range, *, planted: Planted = nullcontext, processes: int = 1
) -> Iterator[Tally]:
    """Run the schedules of several mixes, and yield the figures of each chunk when it is done."""
    chunks = [(mix, seeds[first : first + _CHUNK]) for mix in mixes for first in range(0, len(seeds), _CHUNK)]
    if processes == 1:
        for mix, part in chunks:
            yield several(mix, part, planted=planted)
        return
    context = multiprocessing.get_context("spawn")
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=ignore)
    try:
        pending: list[Future[Tally]] = [
            pool.submit(several, mix, part, planted=planted) for mix, part in chunks
        ]
        for done in as_completed(pending):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about jobs that fail on purpose; they are logged when garbage is collected."""
    logger = logging.getLogger("intervalq")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
