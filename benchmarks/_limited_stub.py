"""A stub of a server with several limits, and how soon it could have accepted the same calls.

It counts in sliding logs, in fixed windows or in token buckets, and refuses what doesn't fit, by its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

CLOCK = time.time() - time.monotonic()
"""CLOCK_MONOTONIC plus this is the time of day, at whose edges fixed windows begin."""

ANSWERS = 0.05, 0.25
"""How long a call takes, in seconds: any time between these."""


class Scale(NamedTuple):
    """The limits of a server: calls a second, calls a window, and tokens a window."""

    pace: int
    starts: int
    tokens: int
    window: float

    @property
    def most(self) -> int:
        """The maximum number of tokens of a call."""
        return self.tokens // 6

    @property
    def limits(self) -> tuple[tuple[int, float, str], ...]:
        """The number, the window and the unit of each limit."""
        return (
            (self.pace, 1.0, "starts"),
            (self.starts, self.window, "starts"),
            (self.tokens, self.window, "tokens"),
        )


class Counter(Protocol):
    """What was taken of one limit. Time never goes back."""

    def when(self, now: float, units: int) -> float:
        """The time from which this many units fit in; `inf`: they are more than the limit."""

    def add(self, now: float, units: int) -> None:
        """Count units."""


class SlidingLog:
    """At most `most` units in any window."""

    def __init__(self, most: int, window: float) -> None:
        self.most, self.window = most, window
        self.taken = 0
        self.entries: deque[tuple[float, int]] = deque()

    def when(self, now: float, units: int) -> float:
        """See `Counter.when`."""
        while self.entries and self.entries[0][0] <= now - self.window:
            self.taken -= self.entries.popleft()[1]
        if units > self.most:
            return math.inf
        taken, at = self.taken, now
        for begun, much in self.entries:
            if taken + units <= self.most:
                break
            taken, at = taken - much, begun + self.window
        return at

    def add(self, now: float, units: int) -> None:
        """See `Counter.add`."""
        self.entries.append((now, units))
        self.taken += units


class FixedWindow:
    """At most `most` units between two edges of the clock."""

    def __init__(self, most: int, window: float) -> None:
        self.most, self.window = most, window
        self.edge, self.taken = 0.0, 0

    def when(self, now: float, units: int) -> float:
        """See `Counter.when`."""
        if now >= self.edge:
            self.edge, self.taken = (math.floor(now / self.window) + 1) * self.window, 0
        if units > self.most:
            return math.inf
        return now if self.taken + units <= self.most else self.edge

    def add(self, now: float, units: int) -> None:
        """See `Counter.add`."""
        self.when(now, units)
        self.taken += units


class TokenBucket:
    """A bucket of `most` units that is full at first, and fills in one window."""

    def __init__(self, most: int, window: float) -> None:
        self.most, self.rate = most, most / window
        self.level, self.at = float(most), -math.inf

    def when(self, now: float, units: int) -> float:
        """See `Counter.when`."""
        self.level = min(float(self.most), self.level + (now - self.at) * self.rate)
        self.at = now
        if units > self.most:
            return math.inf
        return now + max(0.0, units - self.level - 1e-9) / self.rate

    def add(self, now: float, units: int) -> None:
        """See `Counter.add`."""
        self.when(now, units)
        self.level -= units


KINDS: dict[str, Callable[[int, float], Counter]] = {
    "sliding": SlidingLog,
    "fixed": FixedWindow,
    "bucket": TokenBucket,
}


class Call(NamedTuple):
    """A call that was accepted."""

    at: float
    tokens: int
    bound: int
    """The upper bound of its tokens that was known before it."""
    length: float
    """How long it took."""


class Stub:
    """Accepts what fits into all limits when it arrives."""

    def __init__(self, kind: str, scale: Scale, seed: int = 0) -> None:
        self.scale = scale
        self.counters = [KINDS[kind](most, window) for most, window, _ in scale.limits]
        self.accepted: list[Call] = []
        self.refused: list[float] = []
        self._draw = random.Random(seed)

    def judge(self, now: float, tokens: int, bound: int, length: float) -> bool:
        """Whether a call is accepted."""
        units = (1, 1, tokens)
        if any(each.when(now, much) > now for each, much in zip(self.counters, units, strict=True)):
            self.refused.append(now)
            return False
        for each, much in zip(self.counters, units, strict=True):
            each.add(now, much)
        self.accepted.append(Call(now, tokens, bound, length))
        return True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection, one after the other, until its process or the benchmark ends."""
        # The streams of Python 3.11 report a cancelled handler as an unhandled error.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            now = time.monotonic() + CLOCK
            tokens, bound = map(int, line.split())
            length = self._draw.uniform(*ANSWERS)
            fits = self.judge(now, tokens, bound, length)
            if fits:
                await asyncio.sleep(length)  # noqa: TID251 - the work of a server
            writer.write(b"1\n" if fits else b"0\n")
        writer.close()

    def used(self) -> float:
        """The largest share of a window's limit that was used, in whole windows after the first one."""
        if not self.accepted:
            return 0.0
        window, begin = self.scale.window, self.accepted[0].at
        windows = math.floor((self.accepted[-1].at - begin) / window)
        if windows < 2:
            return math.nan
        some = [call for call in self.accepted if begin + window <= call.at < begin + windows * window]
        share = max(len(some) / self.scale.starts, sum(call.tokens for call in some) / self.scale.tokens)
        return share / (windows - 1)


def soonest(kind: str, scale: Scale, calls: Sequence[Call], *, bounded: bool) -> float:
    """The time of the last call, if a client of perfect timing had made these calls in this order.

    It knows what each call takes; with `bounded`, it knows only an upper bound until the call ends, and is never refused.
    """
    counters = [KINDS[kind](most, window) for most, window, _ in scale.limits]
    now, spare = calls[0].at, 0
    ends: list[tuple[float, int]] = []
    for call in calls:
        more = call.bound - call.tokens if bounded else 0
        while True:
            while ends and ends[0][0] <= now:
                spare -= heapq.heappop(ends)[1]
            units = (1, 1, call.tokens + more + spare)
            at = max(each.when(now, much) for each, much in zip(counters, units, strict=True))
            if at <= now:
                break
            now = min(at, ends[0][0]) if ends else at
        for each, much in zip(counters, (1, 1, call.tokens), strict=True):
            each.add(now, much)
        if more:
            spare += more
            heapq.heappush(ends, (now + call.length, more))
    return now


def share(stub: Stub, kind: str, *, bounded: bool) -> float:
    """The shortest time for the accepted calls, as a share of the time that they took."""
    if len(stub.accepted) < 2:
        return math.nan
    begin, end = stub.accepted[0].at, stub.accepted[-1].at
    return (soonest(kind, stub.scale, stub.accepted, bounded=bounded) - begin) / (end - begin)
