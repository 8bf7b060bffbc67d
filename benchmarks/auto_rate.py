"""How well a rate that adapts finds a server's hidden limit: one rate for all processes, or one for each.

    python benchmarks/auto_rate.py [SECONDS]

Sixteen handles call a simulated server, which allows a number of calls in any second and answers others with
status 429. With `rate="auto"` the handles share one queue. Compared with them are sixteen clients that adapt
each for itself, as libraries do: a client adds to its rate with each success, and halves it with each refusal
(AIMD). Everything runs in virtual time, with calls of 60 ms that arrive after 1 to 10 ms, so the figures are
those of the rules, not of the machine. The first minute isn't counted.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio

from intervalq import IntervalQueue
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore

HANDLES: Final = 16
_CALLERS: Final = 4
"""Callers of each handle: enough for the longest calls at the highest rate."""

_LIMITS: Final = (10, 50, 200)
_WARM: Final = 60.0


class Refused(Exception):
    """What a client raises for status 429."""

    status = 429

    def __init__(self, wait: float | None) -> None:
        super().__init__(f"429, {wait}")
        self.headers = {} if wait is None else {"Retry-After": str(wait)}


class HiddenLimit:
    """A server that allows a number of calls in any second, which changes at times.

    Args:
        limits: pairs of a time, in seconds from the beginning, and the number that holds from then on.
        retry_after: seconds that a refusal asks to wait; None: it doesn't say.
    """

    def __init__(self, *limits: tuple[float, int], retry_after: float | None = None) -> None:
        self._limits = limits
        self._retry_after = retry_after
        self._log = deque[float]()
        self.calls: list[tuple[float, bool]] = []
        """When each call arrived, and whether it was served."""
        self._random = random.Random(7)

    def limit(self, at: float) -> int:
        """The limit at this time."""
        return self._limits[bisect_right(self._limits, at, key=lambda each: each[0]) - 1][1]

    async def call(self) -> None:
        """One call of a client.

        Raises:
            Refused: it was one too many.
        """
        way = self._random.uniform(0.001, 0.01)
        await anyio.sleep(way)
        at = anyio.current_time()
        while self._log and self._log[0] <= at - 1:
            self._log.popleft()
        served = len(self._log) < self.limit(at)
        self.calls.append((at, served))
        if served:
            self._log.append(at)
            await anyio.sleep(0.06 - way)
        else:
            await anyio.sleep(way)
            raise Refused(self._retry_after)

    def share(self, since: float, until: float) -> Share:
        """The shares in this time that were used of the limit, which must not change in it, and refused."""
        found = [served for at, served in self.calls if since <= at < until]
        return Share(
            sum(found) / (self.limit(since) * (until - since)),
            1 - sum(found) / max(1, len(found)),
            len(found),
        )


class Share(NamedTuple):
    """The result of some calls."""

    used: float
    """The share of the limit that was used."""
    refused: float
    """The share of all calls that was refused."""
    calls: int


async def one_rate(server: HiddenLimit, seconds: float) -> None:
    """All handles share one queue that finds the limit."""
    store = MemoryStore(clock=virtual_micros)
    queues = [
        IntervalQueue("api", rate="auto", floor="1/s", ceiling="500/s", store=store) for _ in range(HANDLES)
    ]

    async def caller(queue: IntervalQueue) -> None:
        while anyio.current_time() < seconds:
            try:
                async with queue.slot():
                    await server.call()
            except Refused:
                pass

    await _together([partial(caller, queue) for queue in queues for _ in range(_CALLERS)])
    for queue in queues:
        await queue.close()


async def each_alone(server: HiddenLimit, seconds: float) -> None:
    """Each client has a rate of its own, and learns from its own refusals only."""

    async def client() -> None:
        rate, draw = 1.0, random.Random(3)

        async def call() -> None:
            nonlocal rate
            try:
                await server.call()
                rate = min(500.0, rate + 1 / rate)  # by one per second, each second
            except Refused:
                rate = max(0.1, rate / 2)

        async with anyio.create_task_group() as group:
            while anyio.current_time() < seconds:
                await anyio.sleep(draw.uniform(0.9, 1.1) / rate)
                group.start_soon(call)

    await _together([client] * HANDLES)


async def _together(functions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(function)


Way = Callable[[HiddenLimit, float], Awaitable[None]]


def steady(way: Way, limit: int, seconds: float, retry_after: float | None) -> Share:
    """The result of one way with a limit that doesn't change, after the first minute."""
    server = HiddenLimit((0, limit), retry_after=retry_after)
    virtual_time(way, server, _WARM + seconds)
    return server.share(_WARM, _WARM + seconds)


def main(seconds: float) -> None:
    """Print the table."""
    print("| hidden limit | Retry-After | one rate: used | refused | each alone: used | refused |")
    print("|---|---|---|---|---|---|")
    for limit in _LIMITS:
        for retry_after in (None, 1.0):
            one, many = (steady(way, limit, seconds, retry_after) for way in (one_rate, each_alone))
            asked = "none" if retry_after is None else f"{retry_after:g} s"
            print(
                f"| {limit}/s | {asked} | {one.used:.3f} | {one.refused:.2%} | "
                f"{many.used:.3f} | {many.refused:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 240.0)
