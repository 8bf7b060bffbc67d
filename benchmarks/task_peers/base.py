"""The interface of adapters of durable tasks, and the job of one process."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from _tasks_board import Board

QUEUE = "bench"
BATCH = 1000
"""How many tasks all contenders insert at a time, where it is many."""


@dataclass(frozen=True)
class Work:
    """What one process does in a run."""

    role: str
    """`install`, `fill`, `filled`, `work` or `insert`; see worker.py."""
    place: str
    url: str
    board: str
    index: int = 0
    count: int = 0
    every: float = 0.0
    """Of `insert`: the mean of the seconds between two."""
    records: bool = False
    """Whether each start is written down, or only counted."""
    uvloop: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """The adapter's own."""


class Seen:
    """What the function of a task does: nothing, but that it is seen."""

    def __init__(self, work: Work, board: Board) -> None:
        self.starts: list[tuple[int, int]] = []
        """The task's number and CLOCK_MONOTONIC, of each start."""
        self.records = work.records
        self._index = work.index
        self._count = board.count
        self._begun = 0

    def task(self) -> None:
        """One more was begun with."""
        self._begun += 1
        self._count(self._index, self._begun)

    def start(self, at: int, number: int) -> None:
        """One more was begun with at that time: this one."""
        self.starts.append((number, at))
        self.task()


class Adapter(ABC):
    """One contender, in one process. Its tasks carry their number."""

    def __init__(self, work: Work, seen: Seen) -> None:
        self.given = work
        self.seen = seen

    async def install(self) -> None:  # noqa: B027 - some have nothing to install
        """Make what a new database needs, once."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, as far as it can be done before the work."""

    @abstractmethod
    async def fill(self, count: int) -> None:
        """Insert many tasks, the fastest way there is."""

    @abstractmethod
    async def insert(self, number: int) -> None:
        """Insert one task, which an idle worker should learn of."""

    @abstractmethod
    async def work(self) -> None:
        """Run tasks, for ever."""

    def job(self) -> Callable[[Any], None]:
        """What is called with that which a task carries: it only counts, or it writes down."""
        task, start, clock = self.seen.task, self.seen.start, time.monotonic_ns
        if not self.seen.records:
            return lambda _: task()
        return lambda carried: start(clock(), self.number(carried))

    def number(self, carried: Any) -> int:  # noqa: ANN401 - each contender's own
        """A task's number, from what it carries."""
        return int(json.loads(carried)["n"])


def batches(count: int) -> Iterator[range]:
    """So many numbers, some at a time."""
    for low in range(0, count, BATCH):
        yield range(low, min(low + BATCH, count))


def carried(numbers: Iterable[int]) -> list[str]:
    """What tasks carry, as JSON."""
    return [json.dumps({"n": number}) for number in numbers]
