"""Hand-written baselines in memory and over Redis."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from typing import Any

from redis.asyncio import Redis

from peers.base import CONNECTIONS, Adapter, Job, Tally

_SLOT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slot = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%d', slot))
return {redis.call('INCR', KEYS[2]), string.format('%d', slot), string.format('%d', now)}
"""


_SLOTS = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slot = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + tonumber(ARGV[1]))
redis.call('SET', KEYS[1], string.format('%d', slot + (ARGV[2] - 1) * ARGV[1]))
return {redis.call('INCRBY', KEYS[2], ARGV[2]), string.format('%d', slot), string.format('%d', now)}
"""


class Futures(Adapter):
    """A future and a `call_soon` for each job: the minimum that waiting costs in an event loop."""

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
        job()


class Naive(Adapter):
    """No store: sleeps one interval before each start, as most hand-written code does."""

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        await asyncio.sleep(self.work.interval)  # noqa: TID251
        job()


class _Redis(Adapter):
    async def open(self) -> None:
        """See `Adapter.open`."""
        self._redis = Redis.from_url(self.work.url, max_connections=CONNECTIONS)
        await self._redis.ping()
        self._slot = await self._redis.script_load(_SLOT)


class SlotScript(_Redis):
    """One script per job assigns it a slot; then the job sleeps."""

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        step = round(self.work.interval * 1e6)
        ticket, slot, now = await self._redis.evalsha(self._slot, 2, "slot", "ticket", step)
        received = time.monotonic()
        wait = (int(slot) - int(now)) / 1e6
        while (left := received + wait - time.monotonic()) > 0:
            await asyncio.sleep(left)  # noqa: TID251
        job(ticket, int(slot) / 1e6)


class _Pipeline(_Redis):
    @property
    def in_batches(self) -> bool:
        """See `Adapter.in_batches`."""
        return True

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            await self.step(self.work.callers)
            tally.jobs += self.work.callers

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        await self.step(1)
        job()

    async def step(self, count: int) -> None:
        """Do this many at once."""
        if count == 1:
            await self.add(self._redis)
            return
        pipeline = self._redis.pipeline(transaction=False)
        for _ in range(count):
            self.add(pipeline)
        await pipeline.execute()

    @abstractmethod
    def add(self, client: Any) -> Any:  # noqa: ANN401 - a client or a pipeline
        """Do one of them."""


class Incr(_Pipeline):
    """The minimum cost of a shared count."""

    def add(self, client: Any) -> Any:  # noqa: ANN401 - a client or a pipeline
        """One INCR, the cheapest way to count."""
        return client.incr("count")


class SlotPipeline(_Pipeline):
    """The minimum cost of a slot on the server's clock."""

    def add(self, client: Any) -> Any:  # noqa: ANN401 - a client or a pipeline
        """One call of the script that takes a slot."""
        return client.evalsha(self._slot, 2, "slot", "ticket", 1)


class SlotBatch(_Redis):
    """One script for all who ask in one iteration of the event loop; each waits for a future of its own."""

    async def open(self) -> None:
        """See `Adapter.open`."""
        await super().open()
        self._slots = await self._redis.script_load(_SLOTS)
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._task is None:
            self._task = asyncio.create_task(self._ask())
        await future
        job()

    async def _ask(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            await self._redis.evalsha(self._slots, 2, "slot", "ticket", 1, len(asked))
            for future in asked:
                future.set_result(None)
            await asyncio.sleep(0)  # noqa: TID251 - callers that ask again at once are included
        self._task = None
