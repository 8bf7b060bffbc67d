"""Start at most one job per interval, across any number of processes and machines."""

from intervalq._inspect import QueueState
from intervalq._job import Job
from intervalq._queue import IntervalQueue
from intervalq._slot import Slot
from intervalq.errors import (
    ConfigMismatch,
    IntervalqError,
    JobCancelled,
    QueueClosed,
    QueueNotFound,
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
    "QueueClosed",
    "QueueNotFound",
    "QueueState",
    "Slot",
    "SlotTimeout",
    "StoreError",
    "StoreUnavailable",
]
