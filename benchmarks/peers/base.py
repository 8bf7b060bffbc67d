"""The interface of adapters, and the job of one worker process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Work:
    """The work of every process of a run."""

    task: str
    """`pace`, `flood`, `latency`, `lone` or `keyed`."""
    place: str
    url: str
    interval: float
    processes: int
    index: int
    callers: int
    settle: float
    """Seconds after the start that aren't measured."""
    seconds: float
    """Seconds that are measured."""
    arrivals: tuple[float, ...] = ()
    """When callers arrive, in seconds after the start; empty: a steady backlog."""
    calls: int = 0
    """For `latency`: how many calls; for `keyed`: how many queues."""
    pause: float = 0.0
    """For `lone`: the pause in seconds before each call."""
    floor: str = ""
    floor_url: str = ""


@dataclass
class Recorder:
    """The jobs of one process. A job does nothing but record that it began."""

    starts: list[tuple[int, int, int | None, int | None, int | None]] = field(default_factory=list)

    def job(self, asked: int) -> Job:
        """A job whose caller begins to wait now."""
        append = self.starts.append

        def begin(
            ticket: int | None = None,
            due: float | None = None,
            checked: int | None = None,
            at: int | None = None,  # None: now; otherwise its slot is only known some time after it began
        ) -> None:
            now = time.monotonic_ns()
            late = None if due is None else time.time_ns() - round(due * 1e9) - (now - (at or now))
            append((at or now, asked, ticket, late, checked))

        return begin


@dataclass
class Tally:
    """The number of jobs, where there are too many to record each of them."""

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
        """Connect and load scripts: whatever a long-lived process does once."""

    @abstractmethod
    async def call(self, job: Job) -> None:
        """Wait for a start, and call `job`, with the ticket and the slot where they are known."""

    async def flood(self, tally: Tally) -> None:
        """One caller that calls again at once, without a pause."""
        while tally.going:
            await self.call(nothing)
            tally.jobs += 1

    @property
    def in_batches(self) -> bool:
        """Whether `flood` is called once, on behalf of all callers."""
        return False

    async def step(self) -> bool:
        """One round trip of the library to its store, on another queue; False: it can't be measured."""
        return False

    async def figures(self) -> dict[str, Any]:
        """The figures that the library itself counts."""
        return {}


def nothing(*_: object) -> None:
    """A job without effect."""
