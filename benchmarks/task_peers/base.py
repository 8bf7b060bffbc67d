"""The interface of adapters of durable tasks, and the job of one process."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from _tasks_board import Board

QUEUE = "bench"
SMALL, EACH = 9, 10
"""How many keys have few tasks, and how many each; another one has all the others."""
BATCH = 1000
"""How many tasks all contenders insert at a time, if there are many."""


@dataclass(frozen=True)
class Work:
    """The work of one process in a run."""

    role: str
    """`install`, `fill`, `filled`, `work`, `insert` or `cancel`; see worker.py."""
    place: str
    url: str
    board: str
    index: int = 0
    count: int = 0
    every: float = 0.0
    """For `insert`: the mean pause in seconds between two inserts."""
    records: bool = False
    """Whether each start is recorded, or only counted."""
    uvloop: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the adapter."""


class Seen:
    """The function of a task: it does nothing but record that it began."""

    def __init__(self, work: Work, board: Board) -> None:
        self.starts: list[tuple[int, int]] = []
        """The task's number and CLOCK_MONOTONIC at each start."""
        self.records = work.records
        self._index = work.index
        self._count = board.count
        self._begun = 0

    def task(self) -> None:
        """Count one more start."""
        self._begun += 1
        self._count(self._index, self._begun)

    def start(self, at: int, number: int) -> None:
        """Record one more start, with its time."""
        self.starts.append((number, at))
        self.task()


class Adapter(ABC):
    """One contender, in one process. Its tasks carry their number."""

    def __init__(self, work: Work, seen: Seen) -> None:
        self.given = work
        self.seen = seen

    async def install(self) -> None:  # noqa: B027 - some have nothing to install
        """Create the schema of a new database, once."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and do everything else that can be done before the work."""

    @abstractmethod
    async def fill(self, count: int) -> None:
        """Insert many tasks, in the fastest way there is."""

    @abstractmethod
    async def insert(self, number: int) -> Any:  # noqa: ANN401 - each contender's own
        """Insert one task, of which an idle worker should learn, and return what `cancel` takes."""

    async def cancel(self, task: Any) -> None:  # noqa: ANN401 - as above
        """Cancel a running task."""
        raise NotImplementedError

    @abstractmethod
    async def work(self) -> None:
        """Run tasks, without end."""

    async def held(self, carried: Any) -> None:  # noqa: ANN401 - as above
        """Work on a task until it is cancelled, and record when that was."""
        self.seen.task()
        try:
            await asyncio.sleep(600)  # noqa: TID251 - the function of any contender
        finally:
            self.seen.start(time.monotonic_ns(), self.number(carried))

    def job(self) -> Callable[[Any], None]:
        """The function to call with a task's payload: it only counts, or it records each start."""
        task, start, clock = self.seen.task, self.seen.start, time.monotonic_ns
        if not self.seen.records:
            return lambda _: task()
        return lambda carried: start(clock(), self.number(carried))

    def number(self, carried: Any) -> int:  # noqa: ANN401 - each contender's own
        """A task's number, from its payload."""
        return int(json.loads(carried)["n"])


def batches(count: int) -> Iterator[range]:
    """Yield the numbers below `count`, in batches."""
    for low in range(0, count, BATCH):
        yield range(low, min(low + BATCH, count))


def key_of(number: int, count: int) -> str:
    """The key of a task, of so many: the last ones are those of the small keys, in turns."""
    left = count - number
    return "large" if left > SMALL * EACH else f"small{left % SMALL}"


def carried(numbers: Iterable[int]) -> list[str]:
    """The payload of a task, as JSON."""
    return [json.dumps({"n": number}) for number in numbers]
