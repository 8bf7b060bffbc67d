"""The real memory store, with a network before it: delay, loss and outages in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.rules import Answer, Command
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory import MemoryStore


class FarStore:
    """A store at the end of a line. Each handle may have a line of its own to the same store."""

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


async def gather(*functions: Callable[[], Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(function)
