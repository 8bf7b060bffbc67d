"""What can be asked of a task store: values, each one atomic step, whose types say what comes back.

Of inserts and deletes there are very many: as tuples they are made several times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from intervalq.tasks._spec.row import QueueStats, Row, Session

A_co = TypeVar("A_co", covariant=True)


class Command(Generic[A_co]):
    """One atomic step, which is answered by an `A_co`."""

    __slots__ = ()


# --- parts of a change -------------------------------------------------------------------------------


class Insert(NamedTuple):
    """A new task. The store refuses an id that exists."""

    queue: str
    json: str
    id: str
    key: str | None = None
    at: int | None = None
    """Not before this time, in microseconds since 1970; None: see `delay`."""
    delay: int = 0
    """Not before so many microseconds from now, if there is no `at`."""
    attempt: int = 0
    error: str = ""
    skip: bool = False
    """If the id exists, this one is left out, instead of all being refused."""
    dedupe: str | None = None
    dedupe_for: int = 0
    inbox: int | None = None
    """With a key: refuse it when so many tasks of the key wait already; None: no limit."""
    replace: bool = False
    """With a key: take the place of all tasks of the key that nobody has claimed."""


@dataclass(frozen=True, slots=True)
class Change:
    """New values for fields of a task; None leaves a field as it is. The task is no longer claimed.

    `keep` keeps the caller's claim, for `lease` microseconds more (None: as long as the session).
    """

    id: str
    version: int
    queue: str | None = None
    json: str | None = None
    at: int | None = None
    delay: int | None = None
    """Not before so many microseconds from now, instead of `at`."""
    attempt: int | None = None
    error: str | None = None
    keep: bool = False
    lease: int | None = None


class Delete(NamedTuple):
    """Remove a task: what acknowledges it."""

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Depend:
    """Nothing changes about this task, but it must be there at this version."""

    id: str
    version: int


# --- commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Modified:
    """What a `Modify` did, in the order of what was asked."""

    inserted: tuple[Row, ...] = ()
    changed: tuple[Row, ...] = ()
    existing: tuple[tuple[str, str], ...] = ()
    """Of inserts that were left out: their id, and that of the task which was there before."""


@dataclass(frozen=True, slots=True)
class Modify(Command[Modified]):
    """Inserts, changes, deletes and depends: all or nothing.

    Raises:
        DependencyError: some of it can't be; nothing was done.
        InboxFull: the inbox of a key is; nothing was done.
    """

    session: str = ""
    """Who asks: tasks claimed by others can't be touched. Empty: somebody without claims."""
    inserts: tuple[Insert, ...] = ()
    changes: tuple[Change, ...] = ()
    deletes: tuple[Delete, ...] = ()
    depends: tuple[Depend, ...] = ()
    force: bool = False
    """Whatever the version is, and whoever has claimed it: for people who know what they do."""


@dataclass(frozen=True, slots=True)
class Range:
    """Plain tasks next to each other that one session has: those with numbers from `low` to `high`."""

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
    """A range all of whose tasks were done, but for some that failed; or its beginning, and it goes on."""

    range: Range
    failed: tuple[Failed, ...] = ()
    until: int | None = None
    """Only those up to this number were done: from here on the range begins behind it. None: all."""
    count: int = 0
    """How many tasks that are."""
    begun: tuple[int, ...] = ()
    """Of those behind it: the numbers of tasks that have begun. See `Work.begun`."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What a `Work` did."""

    alive: bool = True
    """Whether the store still knows the session. If not, all that it had claimed is lost."""
    lost: tuple[str, ...] = ()
    """Ids of the settled tasks that were no longer the caller's, so nothing was done about them."""
    claimed: tuple[Row, ...] = ()
    wait: int | None = None
    """Where fewer tasks were ready than wanted: microseconds until the next becomes so by itself, if any."""
    ranges: tuple[tuple[Range, tuple[tuple[int, str], ...]], ...] = ()
    """Plain tasks that were claimed: their number, and their value as JSON text."""
    lost_ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Work(Command[Worked]):
    """Settle claims, each by itself, and claim the next tasks, in one step."""

    session: str
    settled: tuple[Delete | Change, ...] = ()
    finished: tuple[Finished, ...] = ()
    queues: tuple[str, ...] = ()
    limit: int = 0
    """How many tasks to claim at most, of all queues together."""
    lease: int | None = None
    """Claims end by themselves after so many microseconds; None: with the session."""
    most: int | None = None
    """Don't claim more than that sessions of the same consumer hold so many; None: no limit."""
    idle: bool = False
    """If nothing could be claimed: wake this session when there is something, where the store can.

    Also when there will be something within 5 seconds: it looks by itself only then.
    """
    begins: int = 0
    """What of the claimed begins at once: 0: nothing; 1: all but those that run alone; 2: all."""
    begun: tuple[str, ...] = ()
    """Ids of claims with which the session has begun meanwhile; what isn't so, or was said, does nothing.

    A claim whose beginning the store doesn't know of costs no attempt when the session lapses. Tasks that are
    done at once needn't be told of at all: their end goes with the same call.
    """


@dataclass(frozen=True, slots=True)
class Begin(Command[None]):
    """A session begins."""

    session: Session


@dataclass(frozen=True, slots=True)
class Beaten:
    """What a `Beat` found."""

    alive: bool
    """Whether the store knew the session. If not, all that it had claimed is lost."""
    held: int = 0
    """How many tasks it has claimed."""
    lapsed: tuple[str, ...] = ()
    """Sessions that had lapsed and were removed, so that their claims are free."""


@dataclass(frozen=True, slots=True)
class Beat(Command[Beaten]):
    """The session lives. Sessions that have lapsed are removed, which frees their claims."""

    session: str


@dataclass(frozen=True, slots=True)
class End(Command[None]):
    """The session ends by itself: its claims are free at once, and don't count as attempts."""

    session: str


# --- looks: snapshots that hold nobody up --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Select(Command[tuple[Row, ...]]):
    """Tasks of a queue, of a session, or with these ids, in the order of the ids, else by `at`."""

    queue: str | None = None
    ids: tuple[str, ...] = ()
    session: str | None = None
    limit: int | None = None
    values: bool = True
    """False: leave the values out (`null`)."""


@dataclass(frozen=True, slots=True)
class Count(Command[tuple[QueueStats, ...]]):
    """The queues that have tasks, sorted by name: with one of these names or prefixes; none given: all."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Sessions(Command[tuple[Session, ...]]):
    """All sessions, sorted by start."""
