"""Durable tasks: claimed by one worker at a time, committed once, and started at the pace of a queue."""

from intervalq._spec.codec import Codec
from intervalq.errors import ClaimLost, DependencyError, InboxFull, TransactionConflict, UnreadableValue
from intervalq.tasks._claim.task import Claim, Task
from intervalq.tasks._handle.outcome import FailedAttempt, NoOutcome, Outcome, TaskCancelled, TaskFailed
from intervalq.tasks._handle.pull import Pull, PullInfo
from intervalq.tasks._handle.tasks import Modified, Tasks
from intervalq.tasks._handle.worker_session import WorkerSession
from intervalq.tasks._schedule.changes import TaskSchedules
from intervalq.tasks._worker.policy import Reject, Retry, Snooze
from intervalq.tasks.rules import Cancelled, QueueStats

__all__ = [
    "Cancelled",
    "Claim",
    "ClaimLost",
    "Codec",
    "DependencyError",
    "FailedAttempt",
    "InboxFull",
    "Modified",
    "NoOutcome",
    "Outcome",
    "Pull",
    "PullInfo",
    "QueueStats",
    "Reject",
    "Retry",
    "Snooze",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskSchedules",
    "Tasks",
    "TransactionConflict",
    "UnreadableValue",
    "WorkerSession",
]
