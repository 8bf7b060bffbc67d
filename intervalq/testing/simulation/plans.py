"""What is settled before a simulated run begins: its processes, their jobs and their faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from intervalq import Limit


@dataclass(slots=True, kw_only=True)
class Route:
    """The way between a process and the store, one way each, in seconds."""

    up: tuple[float, float]
    down: tuple[float, float]
    deadline: float
    """When an answer that has not come is given up."""


@dataclass(slots=True, kw_only=True)
class PlannedJob:
    """One job: when it is added, how, and what becomes of it."""

    at: float
    way: str
    priority: int = 0
    cost: int = 1
    takes: float = 0.0
    fails: int = 0
    """How many of its attempts raise."""
    retries: int = 0
    units: dict[str, int] = field(default_factory=dict)
    """What it takes of windows, as estimated when it is added."""
    took: dict[str, int] = field(default_factory=dict)
    """What it turns out to have taken, where that is said when it ends."""
    plain: bool = False
    """Without options of its own."""
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
    """The jobs of each, one after the other, and how long it takes in between, in seconds."""
    close: tuple[float, bool] | None = None
    """When its handle is closed, and whether that drains."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    stalls: list[tuple[float, int, float]] = field(default_factory=list)
    """From when on, before which step, for how long."""
    turn: float | None = None
    """The processor is taken away once in so many seconds; None: never."""
    crash: tuple[float, int] | None = None


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that is settled before a run begins."""

    interval: float
    burst: int
    max_running: int | None
    tolerance: float | None
    limits: tuple[Limit, ...]
    """Windows beside the interval."""
    waking: bool
    """Whether the store can wake held shards."""
    store_base: int
    store_ppm: float
    processes: list[PlannedProcess]
    keyed: bool
    """Whether it is the queue of one key, whose record may be forgotten."""
    verbs: list[tuple[float, str | None, str, float]]
    """When who (None: an operator, in a process of his own) pauses, resumes, and so on, and how."""
    steps: list[tuple[float, float]]
    losses: list[tuple[float, float | None]]
    """When the store loses writes, and how old the copy is that it falls back to; None: nothing is left."""
    ends: float
    """When the faults end."""
