"""The real memory store behind a network with delay, loss and outages in virtual time; and what began."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._shard.shard import Shard
from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.rules import Answer, Command, Settings
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore

EACH_SECOND = Settings(interval=1_000_000)


class FarStore:
    """A store reached through a simulated connection. Each handle may have its own, to the same store."""

    def __init__(self, behind: MemoryStore | None = None, *, delay: float = 0.0, seed: int = 0) -> None:
        self.behind = behind or MemoryStore(clock=virtual_micros)
        self.url = self.behind.url
        self.delay = delay
        self.loses_answers = 0.0
        self.is_down = False
        self.calls: list[Command] = []
        self.wakeups = self.behind.wakeups
        self._random = random.Random(seed)

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        self.calls.append(command)
        await anyio.sleep(self._random.uniform(0.5, 1) * self.delay)
        if self.is_down:
            raise StoreUnavailable(self.url, "it is down: bring it up")
        answer = await self.behind.apply(queue, command, now)
        await anyio.sleep(self._random.uniform(0.5, 1) * self.delay)
        if self._random.random() < self.loses_answers:
            raise StoreTimeout(self.url, "the answer was lost")
        return answer

    async def names(self) -> list[str]:
        return await self.behind.names()

    async def aclose(self) -> None:
        await self.behind.aclose()


def shard_on(store: FarStore, settings: Settings = EACH_SECOND, lookahead: int | None = 16) -> Shard:
    return Shard("q", store, settings, lookahead=lookahead)


async def gather(*functions: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(function)


BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in virtual time, for eleven days at most, on its argument `backend` if it has one."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        backend = arguments.get("backend", "asyncio")
        virtual_time(functools.partial(test, **arguments), backend=backend, horizon=1e6)

    return run


class Starts:
    """What began, and when in true time."""

    def __init__(self) -> None:
        self.log: list[tuple[float, object]] = []

    async def job(self, what: object, takes: float = 0.0) -> object:
        self.log.append((anyio.current_time(), what))
        await anyio.sleep(takes)
        return what

    @property
    def order(self) -> list[object]:
        return [what for _, what in self.log]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.log)]


def queue_on(store: FarStore, **options: Any) -> IntervalQueue:
    settings: dict[str, Any] = {"interval": 1, "store": store} | options
    return IntervalQueue("q", **settings)


def granted(shard: Shard) -> list[int]:
    """The tickets that were granted, and whose jobs have not begun."""
    return [slot.ticket for run in shard.grants.granted for slot in run]
