"""The limits that people use for calls in Spark today, each as a function for `mapInArrow`.

All read rows, call the stand-in with at most 16 calls in flight per task, and on a 429 wait for its Retry-After and
call again. They differ in when a call may start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

Limit = Callable[[], Awaitable[None]]


def own(rate: float, _tasks: int, _store: str) -> Callable[[], Limit]:
    """Each task has the whole rate: aiolimiter, the usual one for asyncio."""

    def make() -> Limit:
        from aiolimiter import AsyncLimiter

        limiter = AsyncLimiter(rate, 1.0)
        return limiter.acquire

    return make


def divided(rate: float, tasks: int, _store: str) -> Callable[[], Limit]:
    """Each task gets its share of the rate, and makes one call at a time, so that nothing is saved up."""

    def make() -> Limit:
        from aiolimiter import AsyncLimiter

        limiter = AsyncLimiter(1, tasks / rate)
        return limiter.acquire

    return make


def window(rate: float, _tasks: int, store: str) -> Callable[[], Limit]:
    """All tasks share a budget per second of the clock, counted in Redis, and wait when it is used up."""

    def make() -> Limit:
        import asyncio
        import time

        import redis.asyncio

        client = redis.asyncio.from_url(store)

        async def acquire() -> None:
            while True:
                now = time.time()
                key = f"budget:{int(now)}"
                used = await client.incr(key)
                if used == 1:
                    await client.expire(key, 10)
                if used <= rate:
                    return
                await asyncio.sleep(int(now) + 1 - now)

        return acquire

    return make


def stage(
    url: str, make: Callable[[], Limit], within: float, most: int = 16
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`: yields the ids of rows that were accepted within this many seconds."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import asyncio
        import contextlib

        import aiohttp
        import pyarrow as pa

        done: list[int] = []

        async def call_all(rows: list[dict[str, Any]]) -> None:
            limit = make()
            room = asyncio.Semaphore(most)
            async with aiohttp.ClientSession() as http:

                async def call(row: dict[str, Any]) -> None:
                    async with room:
                        while True:
                            await limit()
                            async with http.get(f"{url}/rows/{row['id']}") as answer:
                                await answer.read()
                                if answer.status != 429:
                                    done.append(row["id"])
                                    return
                            await asyncio.sleep(float(answer.headers["Retry-After"]))

                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        await asyncio.gather(*map(call, rows))

        for batch in batches:
            rows = batch.to_pylist()
            asyncio.run(call_all(rows))
            yield pa.RecordBatch.from_pydict({"id": pa.array(done, pa.int64())})
            done.clear()

    return run


LIMITS: dict[str, Callable[[float, int, str], Callable[[], Limit]]] = {
    "own limiter": own,
    "divided rate": divided,
    "shared window": window,
}
