"""A worker process as people see it who look at a store of tasks."""

from __future__ import annotations

from typing import NamedTuple

from intervalq.tasks.rules import Session


class WorkerSession(NamedTuple):
    """A process that works on tasks, as the store knows it. Times are seconds, on the store's clock."""

    id: str
    """What `Task.claimant` says of the tasks that it has claimed."""
    host: str
    pid: int
    consumer: str | None
    """The pull consumer that it belongs to; None: none."""
    started: float
    """When it began, in seconds since 1970."""
    beaten: float
    """When it was last heard of."""
    expiry: float
    """It lapses when nothing was heard of it for so many seconds."""


def session_of(session: Session) -> WorkerSession:
    """What the store has, in seconds."""
    return WorkerSession(
        id=session.id,
        host=session.host,
        pid=session.pid,
        consumer=session.consumer or None,
        started=session.started / 1e6,
        beaten=session.beaten / 1e6,
        expiry=session.expiry / 1e6,
    )
