"""Start at most one job per interval, across any number of processes and machines."""

from intervalq import sync as sync  # plain functions that a queue decorates need it
from intervalq._queue.inspect import QueueState
from intervalq._queue.job import Job
from intervalq._queue.map import Mapped
from intervalq._queue.queue import IntervalQueue
from intervalq._queue.slot import Slot
from intervalq._spec.limits import Limit
from intervalq.errors import (
    ConfigMismatch,
    IntervalqError,
    JobCancelled,
    QueueClosed,
    QueueNotFound,
    SelfDeadlock,
    SlotTimeout,
    StoreError,
    StoreUnavailable,
)

__all__ = [
    "ConfigMismatch",
    "IntervalQueue",
    "IntervalqError",
    "Job",
    "JobCancelled",
    "Limit",
    "Mapped",
    "QueueClosed",
    "QueueNotFound",
    "QueueState",
    "SelfDeadlock",
    "Slot",
    "SlotTimeout",
    "StoreError",
    "StoreUnavailable",
]
