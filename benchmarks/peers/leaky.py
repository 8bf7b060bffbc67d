"""aiolimiter: a leaky bucket in each process, independent of the others."""

from __future__ import annotations

from aiolimiter import AsyncLimiter

from peers.base import Adapter, Job, Tally


class Paced(Adapter):
    """One start in N intervals."""

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._limiter = AsyncLimiter(1, self.work.interval * self.work.processes)

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        async with self._limiter:
            job()


class Flood(Paced):
    """Settings that are practically without a limit."""

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._limiter = AsyncLimiter(1e9, 1)

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            async with self._limiter:
                tally.jobs += 1
