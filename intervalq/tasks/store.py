"""The protocol of a store of tasks (one atomic verb), its optional abilities, and URLs of stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from intervalq._backends import TASKS, backend
from intervalq._timing.clock import CLOCK
from intervalq._timing.joined import Joined as Joined  # noqa: PLC0414 - stores may use it, too
from intervalq.errors import InvalidOption, UnsupportedOperation, short
from intervalq.store import given_url, sound_url
from intervalq.tasks._spec.commands import Change, Command, Delete, Insert, Modify, Outcomes, Work, Worked
from intervalq.tasks._spec.row import Row

A = TypeVar("A")

Isolation = Literal["read committed", "repeatable read", "serializable"]

MAX_ROWS: Final = 1000
"""The maximum number of parts of a command, and of tasks that one command claims."""


class TaskStore(Protocol):
    """Holds tasks and sessions. A store belongs to the event loop of its first use, and connects then."""

    @property
    def url(self) -> str:
        """Its URL, without secrets."""
        ...

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """Do `intervalq.tasks.rules.apply`: all or nothing.

        Args:
            command: what to do.
            now: the store's clock in microseconds. None, outside of tests: the store reads its own.

        Raises:
            DependencyError, InboxFull: raised by the rules; nothing was done.
            StoreUnavailable: the store can't be reached, or can't write; a retry may help.
            StoreTimeout: no answer came in time; the command may have been done. A store never sends one
                twice on its own.
            StoreError: any other; a retry won't help.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. The store connects again when it is used again."""
        ...


def checked_task_store(store: TaskStore) -> TaskStore:
    """An object that was given as a store of tasks.

    Raises:
        InvalidOption: it is not such a store, for example one for queues.
    """
    if hasattr(store, "names") or not hasattr(store, "apply"):
        kind = "holds queues or ledgers, not tasks" if hasattr(store, "names") else "is not a store"
        raise InvalidOption(
            f"store={short(store)} {kind}: give Tasks a URL, a path or a store of tasks like MemoryTaskStore"
        )
    return store


class Transaction(Protocol):
    """A transaction of the store's database that the user's statements share."""

    connection: Any
    """The connection for the user's statements: psycopg's AsyncConnection, or sqlite3's Connection."""

    async def apply(self, command: Command[A]) -> A:
        """Do a command within this transaction."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store whose transactions the user's statements can share."""

    def transaction(self, isolation: Isolation) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction, which is committed at the end of the context, or rolled back by an error.

        Raises:
            TransactionConflict: it could not be serialized, or there was a deadlock; nothing was done.
        """
        ...

    async def apply_on(self, connection: Any, command: Command[A]) -> A:  # noqa: ANN401 - of the driver
        """Do a command in a transaction that the user has begun on their own connection."""
        ...


@runtime_checkable
class Waking(Protocol):
    """A store that can wake an idle session when there is something to claim."""

    def wakeups(self, session: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[Worked | None]]]:
        """Listen while the context is open.

        The context gives a function that returns at the first wake-up since the context was entered or since
        the function last returned. Wake-ups are hints: one may be lost or spurious. The function returns what
        the store has claimed for the idle session, as its last `Work` asked, in the very step that made it
        ready; None: nothing. Tasks that were claimed in this way belong to the session even if the wake-up is
        lost.

        Raises:
            UnsupportedOperation: this server can't send wake-ups; a session that declares itself idle would
                be given tasks without learning of them.
        """
        ...


class Watched(NamedTuple):
    """The result of a check of other sessions."""

    removed: bool
    """Whether some were dead."""
    is_idle: bool
    """Whether the watched session has no claims, so that it needn't be checked as often."""


@runtime_checkable
class Guarding(Protocol):
    """A store that notices at once when the process of a session dies."""

    def guard(self, session: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[Watched]]]:
        """Keep a session alive while the context is open, and watch the others.

        Meanwhile the session stays alive even without heartbeats, but only for some minutes.

        The context gives a function to be called repeatedly. It removes sessions whose processes are dead:
        after the given number of seconds, or as soon as a heartbeat of the session has checked them.
        """
        ...


@runtime_checkable
class Ranging(Protocol):
    """A store that hands out plain tasks (no id, key, or time of their own) in ranges, which is faster."""

    async def put(self, queue: str, jsons: Sequence[str]) -> None:
        """Insert plain tasks, all or none."""
        ...


@runtime_checkable
class Keeping(Protocol):
    """A store that keeps outcomes: it has what `Outcomes` asks for, and heeds `keep_for`."""

    keeps_outcomes: bool
    """True."""


@runtime_checkable
class Telling(Protocol):
    """A store that tells those who wait for outcomes when these are there."""

    tells_of_others: bool
    """Whether it tells also of what other processes end."""

    def awaited(self, ids: Sequence[str]) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Listen for the outcomes of up to `MAX_ROWS` tasks while the context is open.

        The context gives a function that returns once each of these tasks has left one since the context was
        entered. That is a hint: it may return too early, and miss what ends while the context is entered, or
        with a transaction that goes on meanwhile.

        Raises:
            UnsupportedOperation: this server can't tell.
        """
        ...


@runtime_checkable
class SharingKeys(Protocol):
    """A store that lets several tasks of a key run at a time: it heeds `per_key`."""

    shares_keys: bool
    """True."""


@runtime_checkable
class Following(Protocol):
    """A store in which a task may wait for others to end: it heeds `follow_up` and `awaits`."""

    follows_up: bool
    """True."""


def refuse_inserts(store: TaskStore, inserts: Sequence[Insert]) -> None:
    """Refuse tasks with options that the store doesn't have.

    Raises:
        UnsupportedOperation: the outcome of one is to be kept, or several of a key are to run at a time.
    """
    if any(insert.keep_for for insert in inserts):
        check_keeps(store, "nothing was done: omit keep=, or use another store")
    if any(insert.per_key != 1 for insert in inserts) and not isinstance(store, SharingKeys):
        raise UnsupportedOperation(
            store.url,
            "this store runs the tasks of a key one after the other; nothing was done: omit "
            "concurrency_per_key=, or use another store",
        )
    if any(insert.follow_up or insert.awaits for insert in inserts) and not isinstance(store, Following):
        raise UnsupportedOperation(
            store.url, "this store has no batches with a follow-up; nothing was done: use another store"
        )


def refuse_command(store: TaskStore, command: Command[Any]) -> None:
    """Refuse what a store doesn't have: for the store itself, which must ignore no part of a command.

    Raises:
        UnsupportedOperation: the command asks for that, see `refuse_inserts`, or is about outcomes.
    """
    if _asks_to_keep(command):
        check_keeps(store, "nothing was done: omit keep=, or use another store")
    if isinstance(command, Modify):
        refuse_inserts(store, command.inserts)


def _asks_to_keep(command: Command[Any]) -> bool:
    if isinstance(command, Modify):
        ends: Iterable[Delete | Change] = (*command.deletes, *command.changes)
        return any(insert.keep_for for insert in command.inserts) or _keep(ends)
    return isinstance(command, Outcomes) or (isinstance(command, Work) and _keep(command.settled))


def _keep(ends: Iterable[Delete | Change]) -> bool:
    return any(end.kept is not None and end.kept.keep_for for end in ends)


def check_keeps(store: TaskStore, remedy: str = "use another store, and insert tasks with keep=") -> None:
    """Refuse a store that keeps no outcomes, and say what to do instead.

    Raises:
        UnsupportedOperation: it is such a store.
    """
    if not isinstance(store, Keeping):
        raise UnsupportedOperation(store.url, f"this store keeps no outcomes of tasks: {remedy}")


class Position(NamedTuple):
    """A position in a stream, and in the sequence of one consumer's deliveries."""

    consumer_seq: int
    stream_seq: int


class Pulled(NamedTuple):
    """The state of a queue's pull consumer, over all processes that use it, in the server's terms."""

    delivered: Position
    """The last delivery."""
    ack_floor: Position
    """The position up to which everything is settled."""
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    config: Mapping[str, Any]
    """Its configuration, with the names of the server's API; durations are nanoseconds."""


@runtime_checkable
class Pulling(Protocol):
    """A store with pull consumers at its server: callers that wait for tasks wait there.

    A claim is a delivery of the server: a task can't be changed, or reported on, and keep it.
    """

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        """Claim what `work` asks for: ready tasks, or else the first ones that come within `seconds`."""
        ...

    async def pulled(self, queues: tuple[str, ...]) -> dict[str, Pulled]:
        """The state of the consumers of these queues; those that were never used are omitted."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """A store whose server, if killed, may forget claims and give their tasks to others at once."""

    def holds(self, session: str, row: Row) -> bool:
        """Whether the session still holds a claim, as far as is known without asking the server.

        Work doesn't begin on a claim that is in doubt: it is given back.
        """
        ...


class Lock(Protocol):
    """An exclusive lock of a store. It expires unless it is refreshed."""

    expires: int
    """When it expires, on `intervalq.store.stopwatch`, if it is held."""
    fence: int
    """Its fencing number, if it is held: each later holder has a higher one."""

    async def acquire(self) -> bool:
        """Try to get the lock; returns whether it was acquired."""
        ...

    async def refresh(self) -> bool:
        """Extend the lock to its whole time from now; False: it is lost."""
        ...

    async def release(self) -> None:
        """Release the lock, if it is held, and wake those who wait for it."""
        ...

    def waiting(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """A context with a function that returns when the lock may be free; wake-ups in between count."""
        ...


@runtime_checkable
class Locking(Protocol):
    """A store with exclusive locks of its own kind; it refuses the commands `Acquire` and `Release`."""

    def lock(self, name: str, expiry: int) -> Lock:
        """The lock of this name, which expires after `expiry` microseconds."""
        ...


def open_task_store(url: str | None = None) -> TaskStore:
    """The store of tasks at a URL or plain path, not yet connected.

    Args:
        url: `memory://`, `sqlite:///path/app.db` or a plain path, `postgresql://`, `redis://`, `rediss://`,
            `unix://`, `redis+cluster://`, `rediss+cluster://`, `nats://`, `intervalq://`, or any scheme that
            an installed package registers by an entry point in the group `intervalq.task_stores`. None: the
            environment variable `INTERVALQ_STORE`, else a SQLite database in the user's state folder.

    Raises:
        UnknownStore, MissingExtra, InvalidOption, StoreError: as for `intervalq.store.open_store`.
    """
    scheme, url = sound_url(given_url(url) or default_url(), otherwise="sqlite")
    store: TaskStore = CLOCK.get().store(TASKS, url) or backend(TASKS, scheme)(url)
    return store


def default_url() -> str:
    """The SQLite database in the user's state folder."""
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed without any other store

    return f"sqlite{(user_state_path('intervalq') / 'tasks.db').as_uri().removeprefix('file')}"
