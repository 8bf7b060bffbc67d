"""What a store of tasks is: one atomic verb, what some can do beyond it, and how a URL finds it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from intervalq._backends import TASKS, backend
from intervalq.store import sound_url
from intervalq.tasks._spec.commands import Command, Work, Worked
from intervalq.tasks._spec.row import Row

A = TypeVar("A")

Isolation = Literal["read committed", "repeatable read", "serializable"]

MAX_ROWS: Final = 1000
"""How many parts a command has at most, and how many tasks a claim."""


class TaskStore(Protocol):
    """Holds tasks and sessions. A store belongs to the event loop that first used it, and connects then."""

    @property
    def url(self) -> str:
        """Where it is, as it may be shown: without secrets."""
        ...

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """Do `intervalq.tasks.rules.apply`: all of it or nothing.

        Args:
            command: what to do.
            now: the store's clock in microseconds. None, outside of tests: the store reads its own.

        Raises:
            DependencyError, InboxFull: by the rules; nothing was done.
            StoreUnavailable: the store can't be reached, or can't write; asking again may help.
            StoreTimeout: no answer came in time; the command may have been done. A store never sends one
                twice by itself.
            StoreError: one of the others; asking again won't help.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections. The store opens again when it is used again."""
        ...


class Transaction(Protocol):
    """A transaction of the store's database in which its user works, too."""

    connection: Any
    """What the user's statements go through: psycopg's AsyncConnection, or sqlite3's Connection."""

    async def apply(self, command: Command[A]) -> A:
        """Do a command within this transaction."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store in whose transactions its user can work."""

    def transaction(self, isolation: Isolation) -> AbstractAsyncContextManager[Transaction]:
        """Begin one, which is committed at the end of the context, and rolled back by an error.

        Raises:
            TransactionConflict: it could not be serialized, or there was a deadlock; nothing was done.
        """
        ...

    async def apply_on(self, connection: Any, command: Command[A]) -> A:  # noqa: ANN401 - its driver's
        """Do a command within a transaction that the user has begun on a connection of their own."""
        ...


@runtime_checkable
class Waking(Protocol):
    """A store that can tell an idle session that there is something to claim."""

    def wakeups(self, session: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[Worked | None]]]:
        """Listen for as long as the context is open.

        Gives a function that returns at the next wake-up since the context was entered or the function last
        returned. Wake-ups are hints: one may be lost or come for nothing. It returns what the store has
        claimed for the idle session, on the terms of its last `Work`, in the same step as others made it
        ready; None: nothing. What was claimed so and got lost on its way is the session's all the same.

        Raises:
            UnsupportedOperation: there are none here; a session that says that it is idle would be given
                tasks and not hear of them.
        """
        ...


class Watched(NamedTuple):
    """What a look at other sessions has found."""

    removed: bool
    """Some were dead."""
    is_idle: bool
    """The one that is watched has claimed nothing: it needn't be looked at that often."""


@runtime_checkable
class Guarding(Protocol):
    """A store that sees at once when the process of a session has died."""

    def guard(self, session: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[Watched]]]:
        """Stand for a session for as long as the context is open, and watch over the others.

        While it does, the session is alive, whether or not it beats; but not for longer than some minutes.

        Gives a function to be called again and again, which removes sessions whose processes are dead: after
        so many seconds, or as soon as a beat of the session has looked at them.
        """
        ...


@runtime_checkable
class Ranging(Protocol):
    """A store that hands out plain tasks (no id, key, or time of their own) in ranges, which is faster."""

    async def put(self, queue: str, jsons: Sequence[str]) -> None:
        """Insert plain tasks, all or none."""
        ...


class Position(NamedTuple):
    """A place in a stream and in what one of its consumers was given."""

    consumer_seq: int
    stream_seq: int


class Pulled(NamedTuple):
    """How the pull consumer of a queue stands, over all processes that use it, in the server's words."""

    delivered: Position
    """What it handed out last."""
    ack_floor: Position
    """Up to here everything is settled."""
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    config: Mapping[str, Any]
    """Its configuration, with the names of the server's API; durations are nanoseconds."""


@runtime_checkable
class Pulling(Protocol):
    """A store that has pull consumers itself: who waits for tasks waits there."""

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        """Claim what `work` asks for: tasks that are there; else what comes first within `seconds`."""
        ...

    async def pulled(self, queues: tuple[str, ...]) -> dict[str, Pulled]:
        """How the consumers of these queues stand; those that were never used are left out."""
        ...


@runtime_checkable
class Forgetting(Protocol):
    """A store that may forget claims when its server is killed, so that others get their tasks at once."""

    def holds(self, session: str, row: Row) -> bool:
        """Whether a claim is the session's at this moment, as far as is known without asking.

        Work doesn't begin on one that isn't: it is given back.
        """
        ...


class Lock(Protocol):
    """An exclusive lock of a store. It expires unless it is refreshed."""

    expires: int
    """When it does, on `intervalq.store.stopwatch`, if it is held."""

    async def acquire(self) -> bool:
        """Try to get it; whether that was done."""
        ...

    async def refresh(self) -> bool:
        """Have it for its whole time from now; False: it is lost."""
        ...

    async def release(self) -> None:
        """Let go of it, if one has it, and tell those who wait."""
        ...

    def waiting(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Gives a function that returns when the lock may be free; what was told in between counts."""
        ...


@runtime_checkable
class Locking(Protocol):
    """A store that has exclusive locks."""

    def lock(self, name: str, expiry: int) -> Lock:
        """The lock of this name, which expires after `expiry` microseconds."""
        ...


def open_task_store(url: str | None = None) -> TaskStore:
    """The store of tasks at a URL or plain path, not yet connected.

    Args:
        url: `memory://`, `sqlite:///path/app.db` or a plain path, `postgresql://`, `redis://`, `rediss://`,
            `unix://`, `redis+cluster://`, `rediss+cluster://`, `nats://`, or any scheme that an installed
            package brings by an entry point in the group `intervalq.task_stores`. None: the environment's
            `INTERVALQ_STORE`, else a SQLite database in the user's state folder.

    Raises:
        UnknownStore, MissingExtra, InvalidOption, StoreError: as `intervalq.store.open_store`.
    """
    scheme, url = sound_url(url or os.environ.get("INTERVALQ_STORE") or default_url(), otherwise="sqlite")
    store: TaskStore = backend(TASKS, scheme)(url)
    return store


def default_url() -> str:
    """The SQLite database in the user's state folder."""
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed without any other store

    return f"sqlite{(user_state_path('intervalq') / 'tasks.db').as_uri().removeprefix('file')}"
