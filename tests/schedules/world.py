"""Processes that run schedules on one store, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio

from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.schedules import Occurrence, Schedules
from intervalq.store import StoredSchedules, Swapped
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore

MINUTE, HOUR, DAY = 60, 3_600, 86_400


Declare = Callable[[Schedules, Callable[..., Awaitable[None]]], object]
"""Declares schedules with a function that notes occurrences."""


class Line(MemoryStore):
    """A process's line to the store that `shared` has, which can be cut."""

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__(clock=shared._clock)
        self._records = shared._records
        self.calls: Counter[str] = Counter()
        self.is_cut = False
        self.slow_looks = self.slow_repeats = 0.0
        """Seconds by which answers come late: to reads, and to swaps that change nothing."""
        self.replica: dict[str, str] | None = None
        """What reads find instead of what is stored, as from a replica that lags."""
        self.failing_swaps = 0
        """How many of the next swaps don't reach the store."""
        self.lost_answers = 0
        """How many of the next answers to swaps get lost."""
        self.slow_swaps = 0.0
        """Seconds by which answers to swaps come late."""
        self.silence: anyio.Event | None = None
        """Until it is set, nothing reaches the store, and nobody says so."""

    async def read_schedules(self, names: object = None, now: int | None = None) -> StoredSchedules:
        await self._count("read")
        found = await super().read_schedules(names, now)  # type: ignore[arg-type] # passed on
        if self.slow_looks:
            await anyio.sleep(self.slow_looks)
        return found if self.replica is None else found._replace(texts=dict(self.replica))

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        await self._count("swap")
        if self.failing_swaps:
            self.failing_swaps -= 1
            raise StoreUnavailable(self.url, "away")
        answer = await super().swap_schedule(name, known, text, earliest=earliest, now=now)
        await anyio.sleep(self.slow_swaps)
        if self.slow_repeats and known == text:
            await anyio.sleep(self.slow_repeats)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreTimeout(self.url, "no answer")
        return answer

    async def _count(self, what: str) -> None:
        self.calls[what] += 1
        if self.silence is not None:
            await self.silence.wait()
            raise StoreTimeout(self.url, "no answer")
        if self.is_cut:
            raise StoreUnavailable(self.url, "cut")


class Silent:
    """A store that tells nobody of changes, as files and servers don't."""

    def __init__(self, line: Line) -> None:
        self.url = line.url
        self.apply, self.names, self.aclose = line.apply, line.names, line.aclose
        self.read_schedules, self.swap_schedule = line.read_schedules, line.swap_schedule


class World:
    """A store and its processes. Each occurrence that fires is in `fired`, with the number of its process."""

    def __init__(self) -> None:
        self.stepped = 0
        """By how many microseconds the store's clock was set forward."""
        self.store = MemoryStore(clock=lambda: virtual_micros() + self.stepped)
        self.lines: list[Line] = []
        self.fired: list[tuple[int, Occurrence]] = []

    @asynccontextmanager
    async def process(self, declare: Declare, *, silent: bool = False) -> AsyncIterator[Line]:
        """A process while the context is open; `silent`: nobody tells it of changes."""
        line, number = Line(self.store), len(self.lines)
        self.lines.append(line)
        schedules = Schedules(Silent(line) if silent else line)

        async def note(occurrence: Occurrence) -> None:
            self.fired.append((number, occurrence))

        declare(schedules, note)
        async with anyio.create_task_group() as group:
            group.start_soon(schedules.run)
            yield line
            group.cancel_scope.cancel()

    @property
    def times(self) -> list[datetime]:
        """The scheduled times of the occurrences that fired, in order."""
        return [occurrence.scheduled for _, occurrence in self.fired]

    @property
    def hours(self) -> list[int]:
        """The same as hours of the first day. Virtual time begins at 01:46:40."""
        return [round((time - BEGIN).total_seconds() // HOUR) for time in self.times]


BEGIN = datetime(2001, 9, 9, tzinfo=UTC)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""
    virtual_time(test, horizon=1e9)


def hourly(schedules: Schedules, function: Callable[..., object], **options: object) -> None:
    schedules.every("1h", name="hourly", **options)(function)  # type: ignore[arg-type] # of a list
