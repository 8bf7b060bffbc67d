"""redis-rate-limiters: a token bucket, whose script gives the time to wake up, in milliseconds."""

from __future__ import annotations

from limiters import AsyncTokenBucket
from redis.asyncio import Redis

from peers.base import CONNECTIONS, Adapter, Job


class Paced(Adapter):
    """One token per interval."""

    capacity = 1

    @property
    def every(self) -> float:
        """Seconds from one refill to the next."""
        return self.work.interval

    async def open(self) -> None:
        """See `Adapter.open`."""
        redis = Redis.from_url(self.work.url, max_connections=CONNECTIONS)
        await redis.ping()
        self._bucket = AsyncTokenBucket(
            redis, "bench", self.capacity, refill_frequency=self.every, refill_amount=self.capacity
        )

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        async with self._bucket:
            job()


class Flood(Paced):
    """Settings that are practically without a limit."""

    capacity = 1_000_000_000

    @property
    def every(self) -> float:
        """See above; at each refill a caller waits for 20 ms, a penalty that its script adds."""
        return 1
