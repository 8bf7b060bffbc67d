"""What a task store holds: tasks, the sessions that claim them, and the marks that stop doubles."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from intervalq._spec.shape import Shape
from intervalq.tasks._spec.ids import PLAIN

SECOND: Final = 1_000_000

COUNTED: Final = 10_000
"""A store may estimate how many tasks of a state a queue has, where these are more."""


class Row(NamedTuple):
    """A task as a store has it. Times are whole microseconds since 1970, on the store's clock."""

    id: str
    version: int
    queue: str
    at: int
    """Not before this."""
    json: str
    """The value, as JSON text."""
    key: str | None = None
    place: int = 0
    """Its place among the tasks of its key, from 1; 0: it has no key."""
    waiting: bool = False
    """It is in the inbox of its key, behind another task."""
    session: str | None = None
    """Who has claimed it."""
    until: int | None = None
    """When the claim ends; None: with its session, or there is none."""
    claims: int = 0
    """How often it was claimed."""
    attempt: int = 0
    """How often a worker began with it and didn't give it back unused. See `Work.begun`."""
    error: str = ""
    """Why the last attempt failed."""
    created: int = 0
    modified: int = 0
    dedupe: str | None = None
    dedupe_for: int = 0
    """How long `dedupe` goes on after the task, in microseconds."""
    begun: bool = False
    """Whether the session that has claimed it has said that it began; then `attempt` counts that."""
    alone: bool = False
    """It was lost with a session, which it may have ended: nothing else is to run beside it."""

    @property
    def ready(self) -> int | None:
        """When it can be claimed; None: somebody or something else has to end first."""
        if self.waiting:
            return None
        return self.at if self.session is None else self.until

    @property
    def is_plain(self) -> bool:
        """Whether it is a plain task, of a range: these have no times."""
        return not self.created and self.id.startswith(PLAIN)

    def held(self, now: int) -> bool:
        """Whether somebody has a claim on it that has not ended by itself."""
        return self.session is not None and (self.until is None or self.until > now)


class Session(NamedTuple):
    """A worker process, as a store has it."""

    id: str
    host: str = ""
    pid: int = 0
    consumer: str = ""
    """The pull consumer that it belongs to; empty: none."""
    expiry: int = 5 * SECOND
    """It has lapsed when nothing was heard of it for so long."""
    started: int = 0
    beaten: int = 0
    """When it was last heard of."""


class Mark(NamedTuple):
    """A `dedupe_key` that is taken in a queue."""

    queue: str
    key: str
    id: str
    """The task that took it."""
    until: int | None
    """Free again from then on; None: the task is there."""


class QueueStats(NamedTuple):
    """How many tasks of which state a queue has.

    Of each state up to 10,000 are counted. Postgres and SQLite estimate what is more, by a sample of their
    tables: within a few percent, if the queue has a large part of these. `exact` says whether they did.
    """

    name: str
    size: int = 0
    """All of them."""
    claimed: int = 0
    ready: int = 0
    future: int = 0
    """Those whose time has not come."""
    inbox: int = 0
    """Those behind another of their key."""
    most_claims: int = 0
    """The highest number of claims of one task: where it grows, a task may be killing its workers."""
    exact: bool = True
    """False: those of the numbers that are above 10,000 are estimates, and so is `size`."""


T = TypeVar("T", Row, Session, Mark, QueueStats)

_SHAPES: Final[dict[type, Shape[Any]]] = {
    Row: Shape(Row, "task"),
    Session: Shape(Session, "session"),
    Mark: Shape(Mark, "the dedupe key of queue"),
    QueueStats: Shape(QueueStats, "queue"),
}


def sound(made: T) -> T:
    """What a store has read, unchanged.

    Raises:
        BadRecord: its fields aren't what they should be.
    """
    found: T = _SHAPES[type(made)].check(made)
    return found
