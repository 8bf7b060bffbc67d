"""The contents of a task store: tasks, sessions that claim them, marks of dedupe keys, locks, outcomes."""

from __future__ import annotations

from typing import Final, NamedTuple

from intervalq._spec.shape import shaped
from intervalq.tasks._spec.ids import PLAIN

SECOND: Final = 1_000_000

COUNTED: Final = 10_000
"""The number of tasks of one state in a queue above which a store may estimate."""


@shaped("task")
class Row(NamedTuple):
    """A task as a store keeps it. Times are whole microseconds since 1970, on the store's clock."""

    id: str
    version: int
    queue: str
    at: int
    """The time before which it can't be claimed."""
    json: str
    """The value, as JSON text."""
    key: str | None = None
    place: int = 0
    """Its place among the tasks of its key, from 1; 0: it has no key."""
    waiting: bool = False
    """Whether it is in the inbox of its key, behind another task; or waits for others to end (`awaits`)."""
    session: str | None = None
    """The session that has claimed it."""
    until: int | None = None
    """When the claim ends; None: with its session, or there is none."""
    claims: int = 0
    """How many times it was claimed."""
    attempt: int = 0
    """How many times a worker began it and didn't give it back unused. See `Work.begun`."""
    error: str = ""
    """Why the last attempt failed."""
    created: int = 0
    modified: int = 0
    dedupe: str | None = None
    dedupe_for: int = 0
    """How long `dedupe` stays taken after the task has ended, in microseconds."""
    begun: bool = False
    """Whether the session that has claimed it has reported that it began; `attempt` then includes that."""
    alone: bool = False
    """Whether it must run alone: it was lost with a session that it may have killed."""
    cancelled: bool = False
    """Whether it was cancelled during the work on it: its session removes it once that work has ended."""
    progress: str = ""
    """What was reported of the work on it, as JSON text; empty: nothing. See `_claim.progress`."""
    priority: int = 0
    """Tasks of higher priorities are claimed first. See `_spec.order`."""
    keep_for: int = 0
    """How long its outcome is kept after its end, in microseconds; 0: the session that ends it decides."""
    errors: str = ""
    """The errors of its attempts since `keep_for` was set. See `_spec.outcome.with_error`."""
    per_key: int = 1
    """How many tasks of its key may be claimed at a time, as long as it is the last one of the key."""
    follow_up: str = ""
    """Its follow-up: the id of the task that waits for the end of this one and others; empty: none does."""
    awaits: int = 0
    """How many tasks that name it as their follow-up have yet to end. Such a task has no key."""

    @property
    def ready(self) -> int | None:
        """When it can be claimed; None: another claim or task has to end first."""
        if self.waiting:
            return None
        return self.at if self.session is None else self.until

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain task of a range, which has no times."""
        return not self.created and self.id.startswith(PLAIN)

    def is_held(self, now: int) -> bool:
        """Whether there is a claim on it that has not expired."""
        return self.session is not None and (self.until is None or self.until > now)


@shaped("session")
class Session(NamedTuple):
    """A worker process, as a store knows it."""

    id: str
    host: str = ""
    pid: int = 0
    consumer: str = ""
    """The pull consumer that it belongs to; empty: none."""
    expiry: int = 5 * SECOND
    """How long it may be silent before it expires."""
    started: int = 0
    beaten: int = 0
    """The time of its last sign of life."""


@shaped("the dedupe key of queue")
class Mark(NamedTuple):
    """A `dedupe_key` that is taken in a queue."""

    queue: str
    key: str
    id: str
    """The task that took it."""
    until: int | None
    """When it is free again; None: its task still exists."""


@shaped("lock")
class LockRow(NamedTuple):
    """An exclusive lock that somebody holds, has let expire, or has released."""

    name: str
    owner: str
    """The holder, a random text; empty: it was released."""
    fence: int
    """Its fencing number: each later holder has a higher one."""
    until: int
    """When it expires, in microseconds since 1970."""
    expiry: int
    """After how many microseconds it expires unless it is refreshed."""


@shaped("outcome")
class OutcomeRow(NamedTuple):
    """An outcome as a store keeps it. Times are whole microseconds since 1970, on the store's clock."""

    id: str
    queue: str
    """The queue in which it ended; for a failed task, the one that it left for the dead-letter queue."""
    key: str | None
    state: str
    """One of `outcome.STATES`."""
    json: str
    """The task's last value, as JSON text."""
    result: str
    """See `outcome.Kept.result`."""
    attempts: int
    errors: str
    """See `Row.errors`."""
    created: int
    started: int
    """When the last attempt began; 0: unknown."""
    ended: int
    host: str
    """The machine of the session that ended it; empty: no session did."""
    pid: int
    until: int
    """Until when it is kept."""


@shaped("queue")
class QueueStats(NamedTuple):
    """The numbers of a queue's tasks by state.

    Up to 10,000 of each state are counted. Postgres and SQLite estimate larger numbers from a sample of their
    tables: to within a few percent, if the queue has a large part of the tasks. `exact` says whether all
    numbers are exact.
    """

    name: str
    size: int = 0
    """The number of all tasks."""
    claimed: int = 0
    ready: int = 0
    future: int = 0
    """Tasks whose time has not come."""
    inbox: int = 0
    """Tasks that wait behind another one of their key."""
    most_claims: int = 0
    """The highest number of claims of one task: if it grows, a task may be killing its workers."""
    exact: bool = True
    """False: the numbers above 10,000 are estimates, and so is `size`."""
