"""The plan of a simulated run: its processes, their jobs and their faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from intervalq import Limit


@dataclass(slots=True, kw_only=True)
class Route:
    """The network route between a process and the store: one-way latencies in seconds."""

    up: tuple[float, float]
    down: tuple[float, float]
    deadline: float
    """After how many seconds a request without an answer is given up."""


@dataclass(slots=True, kw_only=True)
class PlannedJob:
    """One job: when and how it is added, and how it ends."""

    at: float
    way: str
    priority: int = 0
    cost: int = 1
    takes: float = 0.0
    fails: int = 0
    """How many of its attempts raise."""
    retries: int = 0
    units: dict[str, int] = field(default_factory=dict)
    """What it is estimated to take of limits, by unit."""
    took: dict[str, int] = field(default_factory=dict)
    """What it really takes, by unit, if it settles that at its end."""
    plain: bool = False
    """Whether it has no options of its own."""
    lags: float = 0.0
    """How late its thread wakes whenever it waits, in seconds."""
    slow: float = 0.0
    """How long it takes until its thread runs, in seconds."""
    timeout: float | None = None
    cancelled_after: float | None = None


@dataclass(slots=True, kw_only=True)
class PlannedProcess:
    """One process with a handle of the queue."""

    name: str
    options: dict[str, Any]
    route: Route
    base: int
    ppm: float
    lateness: float
    at: float = 0.0
    """When it joins."""
    jobs: list[PlannedJob] = field(default_factory=list)
    callers: list[tuple[list[PlannedJob], list[float]]] = field(default_factory=list)
    """The jobs of each caller in order, and its pauses between them, in seconds."""
    starts: float | None = None
    """When a handle that keeps its jobs is started; infinity: it is only closed. None: it keeps none."""
    close: tuple[float, bool] | None = None
    """When its handle is closed, and whether that drains."""
    latecomers: list[PlannedJob] = field(default_factory=list)
    """Jobs that come as others begin, once its handle is being closed."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    stalls: list[tuple[float, int, float]] = field(default_factory=list)
    """Stalls as (instant, n, seconds): each begins before the n-th step after an instant."""
    busy: float = 0.0
    """For how long it is stopped after each answer, in seconds."""
    turn: float | None = None
    """The period, in seconds, in which the processor is taken away once; None: never."""
    crash: tuple[float, int] | None = None


@dataclass(slots=True, kw_only=True)
class Plan:
    """Everything that is decided before a run begins."""

    interval: float
    burst: int
    max_running: int | None
    tolerance: float | None
    limits: tuple[Limit, ...]
    """Limits in addition to the interval."""
    waking: bool
    """Whether the store can wake held shards."""
    store_base: int
    store_ppm: float
    processes: list[PlannedProcess]
    keyed: bool
    """Whether the queue is that of a key, whose record is ephemeral."""
    verbs: list[tuple[float, str | None, str, float]]
    """Operations on the queue: instant, process (None: that of the operator), verb and argument."""
    steps: list[tuple[float, float]]
    losses: list[tuple[float, float | None]]
    """When the store loses writes, and how old the copy is to which it falls back; None: all are lost."""
    ends: float
    """When the faults end."""
    night: tuple[float, float] | None = None
    """When the hours of the queue end, and when they begin again; None: it has none."""

    def waits_for_windows(self) -> float:
        """How long all jobs may wait for limits, in seconds: a half empty window may delay a job."""
        jobs, total = [job for each in self.processes for job in each.jobs], 0.0
        for limit in self.limits:
            units = sum(
                (1 + job.retries) * max(job.cost, job.units.get(limit.unit, 0), job.took.get(limit.unit, 0))
                for job in jobs
            )
            total += (3 * units / limit.most + 5) * (limit.rule().window + limit.rule().jitter) / 9e5
        return total
