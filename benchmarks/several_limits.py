"""Are several limits kept at once, over processes, and how much of them is used?

A stub stands for a server with three limits: it keeps sliding logs of all that it accepted, as real APIs do, and
refuses what doesn't fit. Processes with several callers each call it as fast as their limiter lets them; a
refused call is not made again. What a call takes of the tokens is heavy-tailed. It is known before the call is
made, or only its upper bound is, three times as much: "guessed" leaves it at that, "settled" says it afterwards.

"used" is the share of the limit that was used best, after the first window; "refused" the share of calls that
the stub refused; "calls" are requests to Redis for each call of the stub.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from _store import Meter, store_of
from _table import Column, table
from intervalq import IntervalQueue, Limit, Slot

WINDOW = 20.0
STARTS, TOKENS, PACE = 200, 10_000, 20
JITTER = 0.02
"""The maximum difference in seconds between the travel times of two calls."""
COLUMNS = (
    Column("contender", "contender"),
    Column("calls made", "jobs", "{:.0f}"),
    Column("refused", "refused", "{:.2%}"),
    Column("used", "used", "{:.3f}"),
    Column("calls to Redis", "calls", "{:.2f}"),
)

MAX_TOKENS = 5_000
"""The maximum number of tokens of a call."""

Take = Callable[[int], Awaitable[Slot | None]]
"""Waits until a call that takes this many tokens may be made.

Returns a slot if the real number is to be settled.
"""


class Log:
    """A sliding log of one limit."""

    def __init__(self, most: int, window: float) -> None:
        self.most, self.window = most, window
        self.taken = 0
        self.entries: deque[tuple[float, int]] = deque()

    def has_room(self, now: float, units: int) -> bool:
        """Whether this many units fit in now."""
        while self.entries and self.entries[0][0] <= now - self.window:
            self.taken -= self.entries.popleft()[1]
        return self.taken + units <= self.most

    def add(self, now: float, units: int) -> None:
        """Count units."""
        self.entries.append((now, units))
        self.taken += units


class Stub:
    """Accepts what fits into all limits, by its own clock."""

    def __init__(self) -> None:
        self.limits = (Log(PACE, 1.0), Log(STARTS, WINDOW), Log(TOKENS, WINDOW))
        self.accepted: list[tuple[float, int]] = []
        self.refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        while line := await reader.readline():
            now, tokens = time.monotonic(), int(line)
            units = (1, 1, tokens)
            fits = all(log.has_room(now, much) for log, much in zip(self.limits, units, strict=True))
            if fits:
                for log, much in zip(self.limits, units, strict=True):
                    log.add(now, much)
                self.accepted.append((now, tokens))
            else:
                self.refused += 1
            writer.write(b"1\n" if fits else b"0\n")
        writer.close()

    def used(self, begin: float, end: float) -> float:
        """The largest share of a limit that was used between these times."""
        some = [(at, tokens) for at, tokens in self.accepted if begin <= at < end]
        windows = (end - begin) / WINDOW
        return max(len(some) / (STARTS * windows), sum(tokens for _, tokens in some) / (TOKENS * windows))


async def ours(url: str, *, limited: bool, bound: int = 1, settled: bool = False) -> Take:
    """One queue with a pace and both windows; its limit of tokens is multiplied by `bound`."""
    counted = ((PACE, 1.0, "starts"), (STARTS, WINDOW, "starts"), (TOKENS, WINDOW, "tokens"))
    limits = [Limit(*each, jitter=JITTER) for each in counted]
    queue = IntervalQueue("bench", rate=f"{PACE}/s", limits=limits if limited else None, store=url)

    async def take(tokens: int) -> Slot | None:
        async with queue.slot(cost={"tokens": min(MAX_TOKENS, bound * tokens)} if limited else 1) as slot:
            return slot if settled else None

    return take


async def pyrate(url: str) -> Take:
    """PyrateLimiter: one bucket of calls with two rates, and one of tokens, one after the other."""
    from pyrate_limiter import Limiter, Rate, RedisBucket  # noqa: PLC0415 - only where it runs
    from redis.asyncio import Redis  # noqa: PLC0415 - as above

    client, window = Redis.from_url(url), int(WINDOW * 1000)
    calls = await RedisBucket.init([Rate(PACE, 1_000), Rate(STARTS, window)], client, "calls")
    units = await RedisBucket.init([Rate(TOKENS, window)], client, "tokens")
    first, second = Limiter(calls), Limiter(units)

    async def take(tokens: int) -> None:
        await first.try_acquire_async("bench")
        await second.try_acquire_async("bench", weight=tokens)

    return take


CONTENDERS: dict[str, Callable[[str], Awaitable[Take]]] = {
    "intervalq": partial(ours, limited=True),
    "guessed": partial(ours, limited=True, bound=3),
    "settled": partial(ours, limited=True, bound=3, settled=True),
    "pace only": partial(ours, limited=False),
    "PyrateLimiter": pyrate,
}


class Work(NamedTuple):
    """The work of one process."""

    contender: str
    url: str
    port: int
    callers: int
    end: float


def process(work: Work, seed: int) -> None:
    """Call the stub until the end."""

    async def caller(take: Take, draw: random.Random) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", work.port)
        while time.monotonic() < work.end:
            tokens = min(MAX_TOKENS, int(17 * draw.paretovariate(1.5)))
            slot = await take(tokens)
            writer.write(b"%d\n" % tokens)
            await reader.readline()
            if slot is not None:
                slot.settle(tokens=tokens)
        writer.close()

    async def main() -> None:
        take = await CONTENDERS[work.contender](work.url)
        draws = [random.Random(seed * 1_000 + number) for number in range(work.callers)]
        async with asyncio.timeout(work.end - time.monotonic()):
            await asyncio.gather(*(caller(take, draw) for draw in draws))

    with contextlib.suppress(TimeoutError):  # those that still wait
        asyncio.run(main())


async def measure(contender: str, url: str, processes: int, callers: int, seconds: float) -> dict[str, Any]:
    """One run of one contender."""
    stub, meter = Stub(), Meter(url)
    server = await asyncio.start_server(stub.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    begin = time.monotonic() + 1
    spawn = multiprocessing.get_context("spawn").Process
    work = Work(contender, url, port, callers, begin + seconds)
    children = [spawn(target=process, args=(work, seed), daemon=True) for seed in range(processes)]
    before = meter.read()
    for child in children:
        child.start()
    for child in children:
        await asyncio.to_thread(child.join, seconds + 30)
    after = meter.read()
    server.close()
    jobs = len(stub.accepted) + stub.refused
    first = stub.accepted[0][0] if stub.accepted else begin
    return {
        "contender": contender,
        "jobs": jobs,
        "refused": stub.refused / max(1, jobs),
        "used": stub.used(first + WINDOW, begin + seconds),
        "calls": meter.between(before, after, jobs)["store_calls"],
    }


def main() -> None:
    """Run all contenders, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5 * WINDOW)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, separated by commas")
    options = parser.parse_args()
    rows = []
    for contender in options.only.split(","):
        with store_of("redis") as url:
            measured = measure(contender, url, options.processes, options.callers, options.seconds)
            rows.append(asyncio.run(measured))
            print(table(COLUMNS, rows[-1:]), flush=True)
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
