"""Keyword arguments of `Tasks`, for handles that pass them on. A test compares them with the signatures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import EllipsisType
from typing import TypedDict

from intervalq._queue.options import Duration
from intervalq._spec.codec import Codec
from intervalq.schedules._choice import Misfire


class TasksOptions(TypedDict, total=False):
    """Options of `Tasks`."""

    expiry: Duration
    max_bytes: int
    codec: Codec | None


class NewOptions(TypedDict, total=False):
    """Options of `Tasks.new`, and of `Tasks.insert` except `connection`."""

    id: str | None
    key: str | None
    at: float | datetime | None
    delay: Duration | None
    dedupe_key: str | None
    dedupe_for: Duration
    inbox: int | None
    replace: bool
    skip: bool
    priority: int
    keep: Duration | None
    concurrency_per_key: int


class ScheduleOptions(TypedDict, total=False):
    """Options of `Tasks.schedule`."""

    every: Duration | None
    cron: str | None
    timezone: str
    start: datetime | None
    end: datetime | None
    window: str | None
    jitter: Duration
    misfire: Misfire
    grace: Duration
    key: str | None
    replace: bool
    priority: int
    keep: Duration | None


class TasksLook(TypedDict, total=False):
    """Options of `Tasks.tasks`."""

    ids: Sequence[str] | None
    limit: int | EllipsisType | None
    values: bool


class OutcomesLook(TypedDict, total=False):
    """Options of `Tasks.outcomes`."""

    ids: Sequence[str] | None
    state: str | None
    limit: int | None


class QueuesLook(TypedDict, total=False):
    """Options of `Tasks.queues`."""

    prefix: str
    limit: int | None
