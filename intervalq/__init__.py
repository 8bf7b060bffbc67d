"""Start at most one job per interval, across any number of processes and machines."""

from typing import TYPE_CHECKING, Final

from intervalq._lazy import lazy_names, provide

if TYPE_CHECKING:
    from intervalq import errors as errors
    from intervalq import rules as rules
    from intervalq import store as store
    from intervalq import sync as sync
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

_WHERE: Final = {
    **dict.fromkeys(__all__, "errors"),
    "IntervalQueue": "_queue.queue",
    "Job": "_queue.job",
    "Limit": "_spec.limits",
    "Mapped": "_queue.map",
    "QueueState": "_queue.inspect",
    "Slot": "_queue.slot",
    **{name: name for name in ("errors", "rules", "store", "sync")},
}

provide("queue for blocking code", "intervalq.sync:IntervalQueue.of")

if not TYPE_CHECKING:  # for type checkers, any other name is a mistake
    __getattr__ = lazy_names(__name__, _WHERE)


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]
