"""Keyword arguments of a queue, for handles that pass them on. A test compares them with the signatures."""

from __future__ import annotations

import os
from typing import TypedDict

from intervalq._queue.options import Cost, Duration, Each, Rate
from intervalq._spec.limits import Limits
from intervalq._spec.mismatch import OnMismatch
from intervalq._timing.retry_after import RetryAfter
from intervalq.store import Store


class QueueOptions(TypedDict, total=False):
    """Options of `IntervalQueue`."""

    interval: Duration | None
    rate: Rate | None
    floor: Rate | None
    ceiling: Rate | None
    store: str | os.PathLike[str] | Store | None
    burst: int
    lookahead: int | None
    tolerance: Duration | None
    max_running: int | None
    timeout: Duration | None
    retries: int
    backoff: Duration
    retry_after: RetryAfter
    strict: bool
    precision: float | None
    limits: Limits | None
    on_mismatch: OnMismatch
    new: bool
    start: bool
    each: Each | None
    log: str | os.PathLike[str] | None
    window: str | None
    timezone: str


class SlotOptions(TypedDict, total=False):
    """Options of `IntervalQueue.slot`."""

    priority: int
    cost: Cost
    timeout: Duration | None


class TryOptions(TypedDict, total=False):
    """Options of `IntervalQueue.try_slot`."""

    within: Duration
    priority: int
    cost: Cost


class JobOptions(SlotOptions, total=False):
    """Options of `IntervalQueue.run` and `IntervalQueue.add`."""

    retries: int | None


class MapOptions(TypedDict, total=False):
    """Options of `IntervalQueue.map` and `IntervalQueue.map_all`."""

    ordered: bool
    window: int
    cost: Cost


class Settings(TypedDict, total=False):
    """Options of `IntervalQueue.configure`."""

    interval: Duration | None
    rate: Rate | None
    floor: Rate | None
    ceiling: Rate | None
    burst: int | None
    max_running: int | None
    limits: Limits | None
    weight: int | None
