"""Keyword arguments of a queue, for handles that pass them on. A test compares them with the signatures."""

from __future__ import annotations

import os
from typing import TypedDict

from intervalq._queue.options import Duration
from intervalq.store import Store


class QueueOptions(TypedDict, total=False):
    """Options of `IntervalQueue`."""

    interval: Duration | None
    rate: str | None
    store: str | os.PathLike[str] | Store | None
    burst: int
    lookahead: int | None
    tolerance: Duration | None
    max_running: int | None
    timeout: Duration | None
    retries: int
    backoff: Duration
    retry_after: bool
    strict: bool
    precision: float | None


class SlotOptions(TypedDict, total=False):
    """Options of `IntervalQueue.slot`."""

    priority: int
    cost: int
    timeout: Duration | None


class JobOptions(SlotOptions, total=False):
    """Options of `IntervalQueue.run` and `IntervalQueue.add`."""

    retries: int | None


class Settings(TypedDict, total=False):
    """Options of `IntervalQueue.configure`."""

    interval: Duration | None
    rate: str | None
    burst: int | None
    max_running: int | None
