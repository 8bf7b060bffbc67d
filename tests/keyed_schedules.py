"""Random schedules of keys under one rate in virtual time: real handles and rules, faults, and judges.

A schedule has several processes, each with a connection of its own to one store, and keys whose jobs wait in
some of them. Requests and answers are slow, lost, or delivered twice; processes are cut off for ever; all of
them stand still for a moment; the queue or a key is paused and resumed. The judges know when each job began
and what users did, and compare that with docs/promises.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import anyio

from intervalq import IntervalQueue
from intervalq.errors import IntervalqError, StoreTimeout, StoreUnavailable
from intervalq.keyed import Common, KeyedAnswer
from intervalq.rules import Answer, Command
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore
from keyed_quotes import Asking


@dataclass(eq=False)
class Connection:
    """A store behind a connection that may lose, delay and duplicate messages."""

    behind: MemoryStore
    delay: float
    dice: Random
    lost: float = 0.0
    again: float = 0.0
    is_cut: bool = False

    def __post_init__(self) -> None:
        self.url = self.behind.url
        self.wakeups = self.behind.wakeups

    async def _way(self) -> None:
        await anyio.sleep(self.dice.uniform(0.5, 1) * self.delay)
        if self.is_cut:
            raise StoreUnavailable(self.url, "the connection is cut")

    async def _both_ways(self, step: Any) -> Any:
        await self._way()
        if self.dice.random() < self.lost:
            raise StoreTimeout(self.url, "the request was lost")
        answer = await step()
        if self.dice.random() < self.again:
            await anyio.sleep(self.dice.uniform(0, 2) * self.delay)
            await step()  # delivered once more, and nobody gets its answer
        await self._way()
        if self.dice.random() < self.lost:
            raise StoreTimeout(self.url, "the answer was lost")
        return answer

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        made: Answer = await self._both_ways(lambda: self.behind.apply(queue, command, now))
        return made

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        made: KeyedAnswer = await self._both_ways(lambda: self.behind.apply_keyed(queue, command, known, now))
        return made

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return await self.behind.names()

    async def aclose(self) -> None:
        """See `Store.aclose`."""


@dataclass
class Seen:
    """What happened in a schedule."""

    starts: list[tuple[int, str, int, int]] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[tuple[int, int, str]] = field(default_factory=list)
    """Their beginnings and ends, and the key, which is empty for a pause of the queue itself."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Jobs of live processes that have not begun."""
    troubles: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Records in the store after a long idle time."""


class Schedule:
    """One random schedule.

    Args:
        seed: of all choices.
        calm: whether there are no faults and no pauses, so that shares can be judged.
        limited: whether the keys have common limits of starts and of tokens, too.
    """

    def __init__(self, seed: int, *, calm: bool, limited: bool = False) -> None:
        self.seed, self.dice = seed, (dice := Random(f"{seed}:{calm}"))
        self.calm = calm
        self.interval = dice.choice((0.01, 0.02, 0.05, 0.1))
        self.own = None if calm or dice.random() < 0.5 else self.interval * dice.choice((1.0, 2.5, 4.0))
        self.each = "shared" if self.own is None else 1 / self.own
        self.keys = [f"k{number}" for number in range(dice.randint(2, 6))]
        self.weights = {key: 1 if self.own else dice.choice((1, 1, 2, 3)) for key in self.keys}
        self.backlog = 40 if calm else 0
        self.seen = Seen()
        self.connections: list[Connection] = []
        self.stalls = not calm and dice.random() < 0.5
        self.tokens = Random(f"{seed}:tokens")
        self.limits: list[tuple[int, int, str]] = []
        if limited:
            lengths = [round(self.interval * self.tokens.choice((8, 30)) * 1_000) for _ in "12"]
            self.limits = [(6, lengths[0], "starts"), (100, lengths[1], "tokens")]
        self.options: dict[str, Any] = {
            "interval": self.interval,
            "each": self.each,
            "limits": [f"{most} {unit}/{length} ms" for most, length, unit in self.limits] or None,
        }

    async def run(self) -> Seen:
        """Run it to its end."""
        dice, store = self.dice, MemoryStore(clock=virtual_micros)
        delay = dice.choice((0.0002, 0.001)) if self.calm else dice.choice((0.0002, 0.001, 0.003, 0.02))
        processes = dice.randint(1, 4)
        for number in range(processes):
            faulty = not self.calm and dice.random() < 0.6
            self.connections.append(
                Connection(
                    store, delay, Random(f"{number}:{dice.random()}"),
                    lost=0.05 if faulty else 0.0, again=0.1 if faulty else 0.0,
                )
            )  # fmt: skip
        async with anyio.create_task_group() as group:
            if not self.calm:
                group.start_soon(self._pauses, store)
                if self.stalls:
                    group.start_soon(self._stalls)
            for number, connection in enumerate(self.connections):
                dies = not self.calm and number > 0 and dice.random() < 0.3
                group.start_soon(self._process, number, connection, dies)
        await self._quotes(store)
        await anyio.sleep(100)
        async with (
            IntervalQueue("api", store=store, **self.options) as queue,
            queue["last"].slot(),
        ):
            pass
        self.seen.left = await store.names()
        return self.seen

    async def _quotes(self, store: MemoryStore) -> None:
        """Once all jobs have ended, ask when one would begin."""
        delay = 0.0005
        handles = [
            IntervalQueue("api", store=Connection(store, delay, Random(number)), **self.options)
            for number in range(2)
        ]
        cells = 3 * self.interval if self.limits else 0.0
        allowance = 8 * delay + self.interval / 5 + cells
        asking = Asking(self.seed, handles, self.keys, allowance, units=bool(self.limits))
        await asking.run()
        self.seen.troubles += asking.found
        for handle in handles:
            await handle.close()

    async def _process(self, number: int, connection: Connection, dies: bool) -> None:
        queue = IntervalQueue("api", store=connection, **self.options)
        mine = self.keys if self.calm else [key for key in self.keys if self.dice.random() < 0.7]
        if (
            self.calm and len(self.connections) >= 2
        ):  # each key in one process, because a weight belongs to a handle
            mine = [key for at, key in enumerate(self.keys) if at % len(self.connections) == number]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                for key in mine:
                    count = self.backlog or self.dice.randint(1, 12)
                    for _ in range(count):
                        at = 0.0 if self.calm else self.dice.uniform(0, 3) * self.dice.random()
                        cost = 1 if self.calm else self.dice.choice((1, 1, 1, 1, 3))
                        group.start_soon(self._job, number, queue, key, at, cost)
                if dies:
                    await anyio.sleep(self.dice.uniform(0.05, 1.5))
                    connection.is_cut = True
                    scope.cancel()
        if not dies:
            await queue.close()

    async def _job(self, number: int, queue: IntervalQueue, key: str, at: float, cost: int) -> None:
        await anyio.sleep(at)
        self.seen.waiting[key] += 1
        began = False
        tokens = self.tokens.choice((0, 1, 10, 40, 100)) if self.limits else 0
        took = self.tokens.choice((tokens, tokens // 2))
        if self.connections[number].again:
            took = tokens  # a refund counts twice if its request is delivered twice, see docs/promises.md
        units = {"starts": cost, "tokens": tokens}
        try:
            while not began:
                with suppress(
                    StoreUnavailable, StoreTimeout
                ):  # at the first use of a handle, they are raised at once
                    async with queue.key(key, weight=self.weights[key]).slot(
                        cost=units if self.limits else cost
                    ) as slot:
                        began = True
                        self.seen.starts.append((virtual_micros(), key, cost, number))
                        self.seen.tokens.append((virtual_micros(), took))
                        if took < tokens:
                            slot.settle(tokens=took)
        except IntervalqError as error:
            self.seen.troubles.append(f"a job of {key} in {number}: {error!r}")
        finally:
            self.seen.waiting[key] -= 1

    async def _pauses(self, store: MemoryStore) -> None:
        """Pause the queue, or one of its keys, for a while, by a handle with a perfect connection."""
        queue = IntervalQueue("api", store=store, **self.options)
        for _ in range(self.dice.randint(0, 3)):
            await anyio.sleep(self.dice.uniform(0.1, 0.8))
            key = self.dice.choice(["", "", *self.keys])
            handle = queue[key] if key else queue
            await handle.pause()
            since = virtual_micros()
            await anyio.sleep(self.dice.uniform(0.2, 1.0))
            self.seen.pauses.append((since, virtual_micros(), key))
            await handle.resume()
        await queue.close()

    async def _stalls(self) -> None:
        """All processes stand still for a moment, now and then."""
        loop: Any = __import__("asyncio").get_running_loop()
        for _ in range(self.dice.randint(1, 4)):
            await anyio.sleep(self.dice.uniform(0.05, 0.6))
            loop.stall(self.dice.uniform(0.2, 3) * self.interval)

    # --- the judges -----------------------------------------------------------------------------------

    def verdict(self) -> list[str]:
        """The broken promises, in words."""
        starts, step = sorted(self.seen.starts), round(self.interval * 1e6)
        found = [*self.seen.troubles]
        found += [f"{count} jobs of {key} never began" for key, count in self.seen.waiting.items() if count]
        found += self._spacing(starts, step, "all keys")
        if self.own is not None:
            for key in self.keys:
                mine = [start for start in starts if start[1] == key]
                found += self._spacing(mine, round(self.own * 1e6), key)
        # Granted jobs may begin for two round trips or 50 ms, and 100 ms more in a process that wakes late.
        # A copy of a request, or a moment in which processes stand still, makes round trips longer.
        trip = 4 * max(connection.delay for connection in self.connections) + 3 * self.interval * self.stalls
        grace = round(max(0.05, 2 * trip) * 1e6) + 100_000 + min(step, 50_000)
        for since, until, key in self.seen.pauses:
            began = [at for at, whose, *_ in starts if since + grace < at < until and key in {"", whose}]
            if began:
                found.append(f"{len(began)} jobs began in the pause of {key or 'the queue'} at {since}")
        found += self._windows(starts)
        if self.calm and not self.limits:
            found += self._shares(starts, step)
        if {*self.seen.left} - {"api", "api:last"}:
            found.append(f"left behind: {self.seen.left}")
        return found

    def _spacing(self, starts: list[tuple[int, str, int, int]], step: int, whose: str) -> list[str]:
        """Starts are an interval apart, minus the common tolerance, or more if the store is far away."""
        tolerance = round(self.interval * 1e5) + 1
        far = 2 * max(round(connection.delay * 1e6) for connection in self.connections)
        least = -tolerance - (far if far * 3 > tolerance else 0)
        return [
            f"{whose}: {b[0] - a[0]} us between two starts, after a cost of {a[2]}"
            for a, b in pairwise(starts)
            if b[0] - a[0] < a[2] * step + least
        ]

    def _windows(self, starts: list[tuple[int, str, int, int]]) -> list[str]:
        """No window that ends with a start has more than its limit allows."""
        found = []
        for most, length, unit in self.limits:
            taken = (
                sorted(self.seen.tokens) if unit == "tokens" else [(at, cost) for at, _, cost, _ in starts]
            )
            for last, some in taken:
                counted = sum(units for at, units in taken if last - length * 1_000 < at <= last)
                if some and counted > most:
                    found.append(f"{counted} of {most} {unit} in {length} ms until {last}")
        return found

    def _shares(self, starts: list[tuple[int, str, int, int]], step: int) -> list[str]:
        """While all keys wait, each has its turns, and no slot stays empty."""
        found = []
        last = {key: max(at for at, whose, *_ in starts if whose == key) for key in self.keys}
        instants = [at for at, *_ in starts]
        begin = bisect_left(instants, instants[0] + 6 * step * sum(self.weights.values()) // 2)
        end = bisect_left(instants, min(last.values()))
        while_all = starts[begin:end]
        total, counted = len(while_all), Counter([key for _, key, *_ in while_all])
        if total >= 20:
            for key in self.keys:
                share = total * self.weights[key] / sum(self.weights.values())
                if abs(counted[key] - share) > 2 * self.weights[key] + 2:
                    found.append(f"{key} has {counted[key]} of {total} starts instead of {share:.0f}")
        used = (len(starts) - 1) * step / (instants[-1] - instants[0])
        if used < 0.93:
            found.append(f"only {used:.2f} of the slots were used")
        return found


def verdict(seed: int, *, limited: bool = False) -> list[str]:
    """The promises that one schedule broke; every fourth schedule is calm."""
    schedule = Schedule(seed, calm=seed % 4 == 0, limited=limited)
    virtual_time(schedule.run, horizon=500)  # far more than the jobs and the idle time take
    return schedule.verdict()
