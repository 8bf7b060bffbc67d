"""Contenders of `several_limits.py`: each waits until a call with at most so many tokens may be made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from _limited_stub import Scale
from intervalq import IntervalQueue, Limit

JITTER = 0.02
"""The maximum difference in seconds between the travel times of two calls."""

Settle = Callable[[int], Awaitable[None] | None]
"""Says how many tokens a call really took."""

Take = Callable[[int], Awaitable[Settle | None]]
"""Waits until a call with at most this many tokens may be made."""

Open = Callable[[str, Scale, str], Awaitable[Take]]
"""Connects to a Redis, for these limits, which a server counts in the given way."""

FOREVER = 3_600


async def ours(url: str, scale: Scale, kind: str, *, settled: bool = True, jitter: float = JITTER) -> Take:
    """One queue with a pace and all limits."""
    edge = "utc" if kind == "fixed" else None
    limits = [Limit(*each, jitter=jitter, edge=edge) for each in scale.limits]
    queue = IntervalQueue("bench", rate=f"{scale.pace}/s", limits=limits, store=url)

    async def take(tokens: int) -> Settle | None:
        async with queue.slot(cost={"tokens": tokens}) as slot:
            return (lambda real: slot.settle(tokens=real)) if settled else None

    return take


async def paced(url: str, scale: Scale, _: str, *, mean: bool = False) -> Take:
    """One queue that has only a pace: that of the limit per second, or with `mean` that of the window."""
    rate = f"{scale.starts}/{scale.window:.0f}s" if mean else f"{scale.pace}/s"
    queue = IntervalQueue("bench", rate=rate, store=url)

    async def take(_: int) -> None:
        async with queue.slot():
            return

    return take


async def pyrate(url: str, scale: Scale, _: str) -> Take:
    """PyrateLimiter: one bucket of calls with two rates, and one of tokens, one after the other."""
    from pyrate_limiter import Limiter, Rate, RedisBucket  # noqa: PLC0415 - only where it runs
    from redis.asyncio import Redis  # noqa: PLC0415 - as above

    client, window = Redis.from_url(url), int(scale.window * 1000)
    rates = [Rate(scale.pace, 1_000), Rate(scale.starts, window)]
    calls = await RedisBucket.init(rates, client, "calls")
    units = await RedisBucket.init([Rate(scale.tokens, window)], client, "tokens")
    first, second = Limiter(units), Limiter(calls)

    async def take(tokens: int) -> None:
        await first.try_acquire_async("bench", weight=tokens)
        await second.try_acquire_async("bench")

    return take


async def windows(url: str, scale: Scale, kind: str) -> Take:
    """limits: one window after the other; it says when one has room again, and the caller sleeps until then."""
    import limits  # noqa: PLC0415 - only where it runs
    from limits.aio import strategies  # noqa: PLC0415 - as above

    storage = limits.storage.storage_from_string(f"async+{url}", implementation="redispy")
    fixed = kind == "fixed"
    limiter: Any = (strategies.FixedWindowRateLimiter if fixed else strategies.MovingWindowRateLimiter)(
        storage
    )
    items = [
        (limits.RateLimitItemPerSecond(most, round(window)), unit == "tokens", unit + str(window))
        for most, window, unit in reversed(scale.limits)
    ]

    async def take(tokens: int) -> None:
        for item, counts_tokens, name in items:
            while not await limiter.hit(item, name, cost=tokens if counts_tokens else 1):
                reset, _ = await limiter.get_window_stats(item, name)
                await asyncio.sleep(max(0.001, reset - time.time()))  # noqa: TID251 - it doesn't wait itself

    return take


async def throttled(url: str, scale: Scale, kind: str) -> Take:
    """throttled-py: one limit after the other, of the kind that the server has; it waits by its own timeout."""
    from datetime import timedelta  # noqa: PLC0415 - as below

    from throttled.asyncio import Throttled, rate_limiter, store  # noqa: PLC0415 - only where it runs

    kept = store.RedisStore(url)
    using = {"sliding": "sliding_window", "fixed": "fixed_window", "bucket": "token_bucket"}[kind]
    throttles = [
        (
            Throttled(
                key=f"{unit}-{window}",
                using=using,
                quota=rate_limiter.per_duration(timedelta(seconds=window), most, burst=most),
                store=kept,
                timeout=FOREVER,
            ),
            unit == "tokens",
        )
        for most, window, unit in reversed(scale.limits)
    ]

    async def take(tokens: int) -> None:
        for each, counts_tokens in throttles:
            await each.limit(cost=tokens if counts_tokens else 1)

    return take


_BUCKETS = """
local time = redis.call('TIME')
local now, wait, levels = time[1] + time[2] / 1e6, 0, {}
for i = 1, #KEYS do
  local most, rate, units = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local kept = redis.call('HMGET', KEYS[i], 'level', 'at')
  levels[i] = math.min(most, (tonumber(kept[1]) or most) + (now - (tonumber(kept[2]) or now)) * rate)
  wait = math.max(wait, (units - levels[i]) / rate)
end
for i = 1, #KEYS do
  local left = levels[i] - (wait > 0 and 0 or tonumber(ARGV[3 * i]))
  redis.call('HSET', KEYS[i], 'level', string.format('%.17g', left), 'at', string.format('%.17g', now))
end
return string.format('%.17g', wait)
"""


async def refunding(url: str, scale: Scale, _: str) -> Take:
    """Written by hand: a script takes from all three buckets or from none, and what wasn't needed is put back."""
    from redis.asyncio import Redis  # noqa: PLC0415 - only where it runs

    script = Redis.from_url(url).register_script(_BUCKETS)
    keys = ["second", "starts", "tokens"]

    def rates(*units: int) -> list[float]:
        pairs = [(most, most / window) for most, window, _ in scale.limits]
        return [each for pair, much in zip(pairs, units, strict=True) for each in (*pair, much)]

    async def take(tokens: int) -> Settle:
        while (wait := float(await script(keys=keys, args=rates(1, 1, tokens)))) > 0:
            await asyncio.sleep(wait)  # noqa: TID251 - as above

        async def settle(real: int) -> None:
            if real != tokens:
                await script(keys=keys[2:], args=rates(1, 1, real - tokens)[6:])

        return settle

    return take


CLIENTS: dict[str, Open] = {
    "intervalq": ours,
    "intervalq, not settled": partial(ours, settled=False),
    "intervalq, no jitter": partial(ours, jitter=0),
    "pace only": paced,
    "pace of the window": partial(paced, mean=True),
    "PyrateLimiter": pyrate,
    "limits": windows,
    "throttled-py": throttled,
    "refunding bucket": refunding,
}
