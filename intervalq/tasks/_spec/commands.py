"""The commands of a task store: values, each one atomic step, typed by their answers.

Inserts and deletes are tuples, which are created several times as fast, because there are very many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from intervalq.tasks._spec.outcome import Kept
from intervalq.tasks._spec.row import OutcomeRow, QueueStats, Row, Session

A_co = TypeVar("A_co", covariant=True)


class Command(Generic[A_co]):
    """One atomic step, whose answer is an `A_co`."""

    __slots__ = ()


# --- parts of a change -------------------------------------------------------------------------------


class Insert(NamedTuple):
    """A new task. The store refuses an existing id."""

    queue: str
    json: str
    id: str
    key: str | None = None
    at: int | None = None
    """Not before this time, in microseconds since 1970; None: see `delay`."""
    delay: int = 0
    """Not before this many microseconds from now, if `at` is None."""
    attempt: int = 0
    error: str = ""
    skip: bool = False
    """If the id exists, leave this insert out instead of refusing the whole command."""
    dedupe: str | None = None
    dedupe_for: int = 0
    inbox: int | None = None
    """With a key: refuse the insert if this many tasks of the key already wait; None: no limit."""
    replace: bool = False
    """With a key: replace all tasks of the key that nobody has claimed."""
    priority: int = 0
    keep_for: int = 0
    """See `Row.keep_for`."""
    per_key: int = 1
    """With a key: how many of its tasks may be claimed at a time. See `Row.per_key`."""
    follow_up: str = ""
    """See `Row.follow_up`."""
    awaits: int = 0
    """See `Row.awaits`."""


@dataclass(frozen=True, slots=True)
class Change:
    """New values for fields of a task; None leaves a field as it is. The change ends the claim of the task.

    `keep` keeps the caller's claim, for `lease` microseconds more (None: as long as the session).
    """

    id: str
    version: int
    queue: str | None = None
    json: str | None = None
    at: int | None = None
    delay: int | None = None
    """Not before this many microseconds from now, instead of `at`."""
    attempt: int | None = None
    error: str | None = None
    keep: bool = False
    lease: int | None = None
    progress: str | None = None
    """See `Row.progress`."""
    priority: int | None = None
    kept: Kept | None = None
    """What the outcome says if this change ends the task, which gets this `keep_for` unless it has one."""


class Delete(NamedTuple):
    """Remove a task, which is how it is acknowledged."""

    id: str
    version: int
    kept: Kept | None = None
    """What its outcome says, if it leaves one; None: only what the store knows."""


@dataclass(frozen=True, slots=True)
class Depend:
    """Require that a task exists at this version; it is not changed."""

    id: str
    version: int


# --- commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Modified:
    """What a `Modify` did, in the order of its parts."""

    inserted: tuple[Row, ...] = ()
    changed: tuple[Row, ...] = ()
    existing: tuple[tuple[str, str], ...] = ()
    """For inserts that were left out: their id, and the id of the existing task."""


@dataclass(frozen=True, slots=True)
class Modify(Command[Modified]):
    """Inserts, changes, deletes and depends: all or nothing.

    Raises:
        DependencyError: a part can't be done; nothing was done.
        InboxFull: the inbox of a key is full; nothing was done.
    """

    session: str = ""
    """The caller's session: tasks claimed by others can't be changed. Empty: a caller without claims."""
    inserts: tuple[Insert, ...] = ()
    changes: tuple[Change, ...] = ()
    deletes: tuple[Delete, ...] = ()
    depends: tuple[Depend, ...] = ()
    force: bool = False
    """Ignore versions and the claims of others: for manual intervention."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a `Cancel` did, as ids. Tasks that are in neither didn't exist."""

    removed: tuple[str, ...] = ()
    stopping: tuple[str, ...] = ()
    """Running tasks, whose sessions are notified to end the work on them: see `Row.cancelled`."""


@dataclass(frozen=True, slots=True)
class Cancel(Command[Cancelled]):
    """Cancel tasks, claimed or not: none of them is committed any more.

    Those that nobody has claimed are removed, and so are those whose claims have a lease, which says how long
    the claimant may be silent. Others keep their claims, and so their keys, until their sessions have ended
    the work on them; a session learns of them by `Beat`, and at once where the store sends wake-ups.
    """

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Consecutive plain tasks that one session has claimed: those with numbers from `low` to `high`."""

    queue: str
    part: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A plain task that was not done: it becomes an ordinary one."""

    number: int
    insert: Insert


@dataclass(frozen=True, slots=True)
class Finished:
    """A range whose tasks were done, except for some that failed; or the first part of one that goes on."""

    range: Range
    failed: tuple[Failed, ...] = ()
    until: int | None = None
    """Only tasks up to this number were done; the range then begins after it. None: all were done."""
    count: int = 0
    """The number of tasks that were done."""
    begun: tuple[int, ...] = ()
    """The numbers of tasks after `until` that have begun. See `Work.begun`."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What a `Work` did."""

    alive: bool = True
    """Whether the store still knows the session. If not, all of its claims are lost."""
    lost: tuple[str, ...] = ()
    """Ids of tasks that were not settled, because the caller had lost its claims on them."""
    claimed: tuple[Row, ...] = ()
    wait: int | None = None
    """If fewer tasks were ready than wanted: microseconds until the next one becomes ready by itself, or
    None."""
    ranges: tuple[tuple[Range, tuple[tuple[int, str], ...]], ...] = ()
    """Plain tasks that were claimed: their numbers, and their values as JSON text."""
    lost_ranges: tuple[Range, ...] = ()
    cancelled: tuple[Delete, ...] = ()
    """Only by a wake-up: see `Beaten.cancelled`."""


@dataclass(frozen=True, slots=True)
class Work(Command[Worked]):
    """Settle claims, each independently, and claim the next tasks, in one step."""

    session: str
    settled: tuple[Delete | Change, ...] = ()
    finished: tuple[Finished, ...] = ()
    queues: tuple[str, ...] = ()
    limit: int = 0
    """The maximum number of tasks to claim, from all queues together."""
    lease: int | None = None
    """Claims expire by themselves after this many microseconds; None: with the session.

    With a lease, plain tasks are claimed as ordinary ones, not in ranges.
    """
    most: int | None = None
    """The most claims that all sessions of the same consumer may hold together; None: no limit."""
    idle: bool = False
    """If nothing could be claimed: wake this session when there is something, if the store can do that.

    This includes what becomes ready within 5 seconds: the session polls no more often than that.
    """
    begins: int = 0
    """Which of the claimed tasks begin at once: 0: none; 1: all but those that run alone; 2: all."""
    begun: tuple[str, ...] = ()
    """Ids of claims that have begun since the last call; wrong or repeated ids have no effect.

    If a session expires, a claim that the store doesn't know to have begun is not charged an attempt. Tasks
    that are done at once needn't be reported as begun: their end is sent with the same call.
    """


@dataclass(frozen=True, slots=True)
class Begin(Command[None]):
    """Begin a session."""

    session: Session


@dataclass(frozen=True, slots=True)
class Beaten:
    """The result of a `Beat`."""

    alive: bool
    """Whether the store knew the session. If not, all of its claims are lost."""
    claim_count: int = 0
    """The number of its claims."""
    lapsed: tuple[str, ...] = ()
    """Expired sessions that were removed, so that their claims are free."""
    cancelled: tuple[Delete, ...] = ()
    """Its claims whose tasks were cancelled: what to settle once the work on them has ended."""


@dataclass(frozen=True, slots=True)
class Beat(Command[Beaten]):
    """A heartbeat of a session. It also removes expired sessions, which frees their claims."""

    session: str


@dataclass(frozen=True, slots=True)
class End(Command[None]):
    """End a session cleanly: its claims are free at once, and don't count as attempts."""

    session: str


# --- locks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquired:
    """Whether a lock was acquired or refreshed."""

    fence: int
    """Its fencing number; 0: somebody else holds it, or, for a refresh, it is lost."""
    wait: int = 0
    """If somebody else holds it: microseconds until it expires, unless it is refreshed."""


@dataclass(frozen=True, slots=True)
class Acquire(Command[Acquired]):
    """Acquire an exclusive lock, or refresh it. If its holder repeats it, the lock is only extended."""

    name: str
    owner: str
    """A unique text, which identifies the holder."""
    expiry: int
    """The lock is free after this many microseconds unless it is refreshed."""
    refresh: bool = False
    """Only extend a lock that the owner holds, or held last."""


@dataclass(frozen=True, slots=True)
class Release(Command[bool]):
    """Release a lock, if the owner holds it or held it last, and wake those who wait for it."""

    name: str
    owner: str

    @property
    def waiters(self) -> str:
        """The name under which those who wait for the lock listen for wake-ups, as sessions do."""
        return waiters_of(self.name)


def waiters_of(lock: str) -> str:
    """See `Release.waiters`."""
    return f"lock-{lock}"


# --- queries: snapshots that block nobody --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Select(Command[tuple[Row, ...]]):
    """Tasks of a queue or session, sorted by `at`; or those with these ids, in the order of the ids."""

    queue: str | None = None
    ids: tuple[str, ...] = ()
    session: str | None = None
    limit: int | None = None
    values: bool = True
    """False: omit the values (`null`)."""


@dataclass(frozen=True, slots=True)
class Count(Command[tuple[QueueStats, ...]]):
    """The queues that have tasks, sorted by name: with one of these names or prefixes; none given: all."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Outcomes(Command[tuple[OutcomeRow, ...]]):
    """Outcomes that are still kept: those of these ids, in the order of their ends; or the latest.

    That is the order in which they were written, also if the clock was set back meanwhile.
    """

    ids: tuple[str, ...] = ()
    queue: str | None = None
    state: str | None = None
    limit: int | None = None
    """Without ids: the maximum number of outcomes. The latest comes first."""


@dataclass(frozen=True, slots=True)
class Sessions(Command[tuple[Session, ...]]):
    """All sessions, sorted by start."""
