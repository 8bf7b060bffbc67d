"""A worker process, as shown to users."""

from __future__ import annotations

from typing import NamedTuple

from intervalq.tasks.rules import Session


class WorkerSession(NamedTuple):
    """A process that works on tasks, as the store knows it. Times are seconds, on the store's clock."""

    id: str
    """The value of `Task.claimant` for the tasks that it has claimed."""
    host: str
    pid: int
    consumer: str | None
    """The pull consumer that it belongs to; None: none."""
    started: float
    """When it began, in seconds since 1970."""
    beaten: float
    """The time of its last sign of life."""
    expiry: float
    """How many seconds it may be silent before it expires."""


def session_of(session: Session) -> WorkerSession:
    """A stored session, with times in seconds."""
    return WorkerSession(
        id=session.id,
        host=session.host,
        pid=session.pid,
        consumer=session.consumer or None,
        started=session.started / 1e6,
        beaten=session.beaten / 1e6,
        expiry=session.expiry / 1e6,
    )
