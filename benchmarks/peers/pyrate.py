"""PyrateLimiter: its best setting for even starts, and that of its README."""

from __future__ import annotations

from abc import abstractmethod

from pyrate_limiter import GCRA, AbstractBucket, Limiter, Rate, RedisBucket, StateBucket
from pyrate_limiter.buckets import RedisStateStore
from redis.asyncio import Redis

from peers.base import CONNECTIONS, Adapter, Job


class _Pyrate(Adapter):
    buffer_ms = 0

    async def open(self) -> None:
        """See `Adapter.open`."""
        redis = (
            Redis.from_url(self.work.url, max_connections=CONNECTIONS)
            if self.work.url.startswith("redis")
            else None
        )
        self._limiter = Limiter(await self.bucket(redis), buffer_ms=self.buffer_ms)

    @abstractmethod
    async def bucket(self, redis: Redis | None) -> AbstractBucket:
        """The state of the bucket."""

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        await self._limiter.try_acquire_async("bench")
        job()


class Best(_Pyrate):
    """GCRA, burst 1, no buffer."""

    def rate(self) -> Rate:
        """1 per interval, as a whole number per second or ten seconds."""
        whole = round(10 / self.work.interval)
        return Rate(whole, 10_000, burst=1)

    async def bucket(self, redis: Redis | None) -> AbstractBucket:
        """The bucket of this setting, in Redis."""
        store = RedisStateStore(redis, "bench") if redis is not None else None
        return StateBucket([self.rate()], GCRA(), store)


class Flood(Best):
    """Practically without a limit: the algorithm counts whole microseconds."""

    def rate(self) -> Rate:
        """One per microsecond."""
        return Rate(1_000_000, 1_000)


class Documented(_Pyrate):
    """R per second over a sorted set, with the default buffer."""

    buffer_ms = 50

    async def bucket(self, redis: Redis | None) -> AbstractBucket:
        """The bucket of this setting, in Redis."""
        assert redis is not None
        made: AbstractBucket = await RedisBucket.init(
            [Rate(round(1 / self.work.interval), 1_000)], redis, "bench"
        )
        return made
