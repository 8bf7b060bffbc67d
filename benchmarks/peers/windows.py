"""limits: a window of one second; it returns when to try again, and the caller sleeps until then."""

from __future__ import annotations

import asyncio
import time

from limits import RateLimitItemPerSecond
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, RateLimiter
from limits.storage import storage_from_string

from peers.base import CONNECTIONS, Adapter, Job


class Paced(Adapter):
    """R per second, in a moving window."""

    kind: type[RateLimiter] = MovingWindowRateLimiter

    async def open(self) -> None:
        """See `Adapter.open`."""
        url = self.work.url
        if url.startswith("redis"):
            storage = storage_from_string(
                f"async+{url}", implementation="redispy", max_connections=CONNECTIONS
            )
        else:
            storage = storage_from_string("async+memory://")
        self._limiter = self.kind(storage)
        self._item = RateLimitItemPerSecond(self.limit())

    def limit(self) -> int:
        """Starts per second."""
        return round(1 / self.work.interval)

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        while not await self._limiter.hit(self._item, "bench"):
            reset, _ = await self._limiter.get_window_stats(self._item, "bench")
            await asyncio.sleep(max(0.0, reset - time.time()))  # noqa: TID251
        job()


class Flood(Paced):
    """Practically without a limit, in a fixed window, the cheapest: the moving one keeps each hit."""

    kind = FixedWindowRateLimiter

    def limit(self) -> int:
        """Starts per second."""
        return 1_000_000
