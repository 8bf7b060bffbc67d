"""The interface of adapters, and the job of one worker process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Work:
    """What every process of a run does."""

    task: str
    """`pace`, `flood`, `latency`, `lone` or `keyed`."""
    place: str
    url: str
    interval: float
    processes: int
    index: int
    callers: int
    settle: float
    """Seconds after the beginning that don't count."""
    seconds: float
    """How long it counts."""
    arrivals: tuple[float, ...] = ()
    """When callers come, in seconds after the beginning; none: a steady backlog."""
    calls: int = 0
    """Of `latency`: how many; of `keyed`: queues."""
    pause: float = 0.0
    """Of `lone`: seconds before each call."""
    floor: str = ""
    floor_url: str = ""


@dataclass
class Recorder:
    """The jobs of one process. A job does nothing but write down that it began."""

    starts: list[tuple[int, int, int | None, int | None, int | None]] = field(default_factory=list)

    def job(self, asked: int) -> Job:
        """A job whose caller begins to wait now."""
        append = self.starts.append

        def begin(
            ticket: int | None = None,
            due: float | None = None,
            checked: int | None = None,
            at: int | None = None,  # None: now; else its slot is only known some time after it began
        ) -> None:
            now = time.monotonic_ns()
            late = None if due is None else time.time_ns() - round(due * 1e9) - (now - (at or now))
            append((at or now, asked, ticket, late, checked))

        return begin


@dataclass
class Tally:
    """How many jobs there were, where there are too many to write each down."""

    jobs: int = 0
    going: bool = True


Job = Callable[..., None]

CONNECTIONS = 10_000
"""redis-py stops at 100 by default, and most peers take a connection for each caller."""


class Adapter(ABC):
    """One contender. Its one duty is to wait until a job may start."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def open(self) -> None:  # noqa: B027 - some have nothing to connect
        """Connect, load scripts: all that a long-lived process does once."""

    @abstractmethod
    async def call(self, job: Job) -> None:
        """Wait for a start, and call `job`, with the ticket and the slot where they are known."""

    async def flood(self, tally: Tally) -> None:
        """One caller that asks again at once, as fast as it goes."""
        while tally.going:
            await self.call(nothing)
            tally.jobs += 1

    @property
    def in_batches(self) -> bool:
        """Whether `flood` is called once, and stands for all callers."""
        return False

    async def step(self) -> bool:
        """One round trip of the library itself to its store, on another queue; False: it has none to be timed."""
        return False

    async def figures(self) -> dict[str, Any]:
        """What the library itself counted."""
        return {}


def nothing(*_: object) -> None:
    """A job without effect."""
