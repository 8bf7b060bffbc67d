"""The baseline: a process that only sleeps until its points of a grid, with the timers that intervalq uses.

What is short or late here is the machine's doing, and nobody's merit.
"""

from __future__ import annotations

import random
import time

from intervalq._timing.clock import SystemClock
from peers.base import Adapter, Job


class Timer(Adapter):
    """Point k of the grid belongs to process k modulo N."""

    def used(self, point: int) -> bool:  # noqa: ARG002 - see `Half`
        """Whether there is a job for it."""
        return True

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._clock = SystemClock()
        await self._clock.sleep_until(self._clock.now() + 10_000)  # so that all that it needs is loaded
        self._next: int | None = None

    async def call(self, job: Job) -> None:
        """See `Adapter.call`; for one caller."""
        work = self.work
        point = self._next
        # The grid is counted from the machine's start, so all processes have the same one.
        if point is None:
            first = int(self._clock.now() / 1e6 / work.interval) + 2
            point = first + (work.index - first) % work.processes
        while not self.used(point):
            point += work.processes
        self._next = point + work.processes
        due = round(point * work.interval * 1e6)
        await self._clock.sleep_until(due)
        now = self._clock.now()
        job(point, time.time() - (now - due) / 1e6, None)


class Half(Timer):
    """Each point is used at random, with a probability of one half."""

    def used(self, point: int) -> bool:
        """Whether a caller uses this point: at random, every other one."""
        return random.Random(point).random() < 0.5
