"""Durable tasks: claimed, renewed and committed exactly once, started at the paced rate."""

from intervalq._spec.codec import Codec
from intervalq.errors import ClaimLost, DependencyError, InboxFull, TransactionConflict, UnreadableValue
from intervalq.tasks._policy import Reject, Retry
from intervalq.tasks._pull import Pull, PullInfo
from intervalq.tasks._task import Claim, Task
from intervalq.tasks._tasks import Modified, Tasks
from intervalq.tasks._worker_session import WorkerSession
from intervalq.tasks.rules import QueueStats

__all__ = [
    "Claim",
    "ClaimLost",
    "Codec",
    "DependencyError",
    "InboxFull",
    "Modified",
    "Pull",
    "PullInfo",
    "QueueStats",
    "Reject",
    "Retry",
    "Task",
    "Tasks",
    "TransactionConflict",
    "UnreadableValue",
    "WorkerSession",
]
