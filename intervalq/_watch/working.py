"""Worker processes and what they report of their tasks, in words."""

from __future__ import annotations

from intervalq._show import escaped
from intervalq.tasks import Task, UnreadableValue, WorkerSession
from intervalq.tasks._claim.progress import Report, read


def reported(task: Task) -> Report:
    """The last report on the work on a task; empty if it is damaged."""
    try:
        return read(task._row.progress, f"task {task.id}")
    except UnreadableValue:
        return Report()


def report(task: Task) -> str:
    """The progress of a task, and its worker's note; empty: nothing was reported."""
    done, note, _ = reported(task)
    return ": ".join(part for part in ("" if done is None else f"{done:.0%}", note) if part)


def process(session: WorkerSession) -> str:
    """The process of a session."""
    return f"{escaped(session.host)}:{session.pid}"
