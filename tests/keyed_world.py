"""Keys under one rate in virtual time: a store behind a simulated network, processes, and their starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import anyio

from intervalq import IntervalQueue
from intervalq.keyed import Common, KeyedAnswer
from intervalq.rules import Command, Inspect
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import FarStore


class FarPairs(FarStore):
    """A store with keys under one rate, reached through a simulated connection."""

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        self.calls.append(command)
        await anyio.sleep(self._random.uniform(0.5, 1) * self.delay)
        answer = await self.behind.apply_keyed(queue, command, known, now)
        await anyio.sleep(self._random.uniform(0.5, 1) * self.delay)
        return answer


class Unsteady(FarPairs):
    """Some answers take much longer than the tolerance."""

    again = 0
    """How many slots were granted again."""

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        self.delay = self._random.choice((0.001, 0.001, 0.04))
        before = (await self.behind.apply(queue, Inspect())).state
        made = await super().apply_keyed(queue, command, known, now)
        current = 0 if before is None else before.current
        self.again += sum([ticket <= current for ticket in made.answer.granted])
        return made


class Log:
    """The starts of jobs, with their times in microseconds."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, str]] = []
        self.calls = 0
        """How many requests were sent, if that is counted."""

    def began(self, key: str) -> None:
        self.starts.append((virtual_micros(), key))

    def spacing(self, key: str | None = None) -> int:
        instants = [at for at, whose in self.starts if key in (None, whose)]
        return min([b - a for a, b in pairwise(instants)])

    def first(self, count: int) -> Counter[str]:
        return Counter([key for _, key in self.starts[:count]])


async def jobs(queue: IntervalQueue, key: str, count: int, log: Log, weight: int = 1) -> None:
    """Run this number of jobs of one key in a simulated process."""
    mine = queue.key(key, weight=weight)

    async def job() -> None:
        async with mine.slot():
            log.began(key)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(job)


def handle(store: FarPairs, **options: Any) -> IntervalQueue:
    return IntervalQueue("api", store=FarPairs(store.behind, delay=store.delay), **options)


def run(main: Callable[[FarPairs, Log], Coroutine[Any, Any, None]], delay: float = 0.0005) -> Log:
    log = Log()

    async def runs() -> None:
        await main(FarPairs(MemoryStore(clock=virtual_micros), delay=delay), log)

    virtual_time(runs)
    return log
