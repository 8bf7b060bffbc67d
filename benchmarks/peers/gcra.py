"""throttled-py: GCRA with a burst of one, waiting by its own timeout."""

from __future__ import annotations

from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

from peers.base import CONNECTIONS, Adapter, Job


class Paced(Adapter):
    """R per second."""

    async def open(self) -> None:
        """See `Adapter.open`."""
        url = self.work.url
        options = {"CONNECTION_POOL_KWARGS": {"max_connections": CONNECTIONS}}
        kept = store.RedisStore(url, options) if url.startswith("redis") else store.MemoryStore()
        rate, burst = self.quota()
        self._throttled = Throttled(
            key="bench",
            using=RateLimiterType.GCRA.value,
            quota=rate_limiter.per_sec(rate, burst=burst),
            store=kept,
            timeout=3_600,
        )

    def quota(self) -> tuple[int, int]:
        """Starts per second, and the size of a burst."""
        return round(1 / self.work.interval), 1

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        await self._throttled.limit()
        job()


class Flood(Paced):
    """Settings that are practically without a limit."""

    def quota(self) -> tuple[int, int]:
        """So many per second that nobody waits."""
        return 1_000_000, 1_000_000
