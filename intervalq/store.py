"""The protocol of a store (one atomic verb on a record), a base class for simple stores, and store URLs."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from intervalq import rules
from intervalq._backends import QUEUES, backend
from intervalq._spec.commands import Common, KeyedAnswer
from intervalq._timing.clock import CLOCK
from intervalq.errors import InvalidOption, UnsupportedOperation, short
from intervalq.rules import Answer, Command, State

T = TypeVar("T")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SLIP: Final = re.compile(r"(?://)?[^/]*(?::|//).*@", re.DOTALL)

_NO_PATH: Final = re.compile(
    r"(?:memory|file|sqlite|rediss?(?:\+cluster)?|unix|postgres(?:ql)?|nats|tls|intervalqs?)(?::|//)|"
    r"[\w.-]+:[0-9]+/?$",
    re.IGNORECASE,
)
"""Text that begins like a URL, or is a host and a port: probably a mistyped URL, unless ./ precedes it."""

_DATABASES: Final = frozenset({".db", ".sqlite", ".sqlite3"})
"""Suffixes of files that are SQLite databases."""

Step = Callable[[State | None, int], tuple[State | None, T]]
"""Takes the record (None: there is none) and the store's clock; returns the record to keep, and an answer."""

PairStep = Callable[[State | None, State | None, int], tuple[State | None, State | None, T]]
"""Like `Step`, on the record of a key and the common record of all keys."""


class Store(Protocol):
    """Holds the records of queues. Any class with these methods that is created from a URL can be a store.

    A store belongs to the event loop that first used it. It connects at its first use, and keeps no
    connection that it doesn't need.
    """

    @property
    def url(self) -> str:
        """Its URL, without secrets."""
        ...

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """Do `intervalq.rules.apply` on the record of `queue`: all or nothing, one command at a time.

        Args:
            queue: a name, or `name:key`; its characters are safe in the keys of any store.
            command: what to do.
            now: the store's clock in microseconds. None, outside of tests: the store reads its own.

        Raises:
            StoreUnavailable: the store can't be reached, or can't write; a retry may help.
            StoreTimeout: no answer came in time; the step may have been done. The caller decides whether
                to retry: a store never sends a command twice on its own.
            StoreError: any other; a retry won't help.
        """
        ...

    async def names(self) -> list[str]:
        """The queues that have a record, sorted."""
        ...

    async def aclose(self) -> None:
        """Close all connections. The store connects again when it is used again."""
        ...


def checked_store(store: Store) -> Store:
    """An object that was given as a store of queues.

    Raises:
        InvalidOption: it is not a store of queues, but for example one of durable tasks.
    """
    if not hasattr(store, "apply") or not hasattr(store, "names"):
        raise InvalidOption(
            f"store={short(store)} holds no queues: give a URL, a path or a store of queues like MemoryStore"
        )
    return store


@runtime_checkable
class Pairing(Protocol):
    """A store that can do one step on two records, which keys under one rate need (`each`)."""

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """Do `intervalq.keyed.apply_keyed` on the records of a key and of its queue: all or nothing.

        Args:
            queue: the key's queue, `name:key`.
            command: what to do.
            known: what the sender knows of the common record, and its name.
            now: as for `Store.apply`, as are the errors.

        Raises:
            UnsupportedOperation: this server can't do it.
        """
        ...


def pairing(store: Store) -> Pairing:
    """The store, if it can do one step on two records.

    Raises:
        UnsupportedOperation: it can't.
    """
    if not isinstance(store, Pairing):
        raise UnsupportedOperation(store.url, NO_PAIRS)
    return store


def keyed_step(command: Command, known: Common) -> PairStep[KeyedAnswer]:
    """`intervalq.keyed.apply_keyed` as a step on two records."""
    from intervalq.keyed import apply_keyed  # noqa: PLC0415 - few queues have keys under one rate

    return lambda state, common, at: apply_keyed(state, common, command, known, at)


NO_PAIRS: Final = (
    "this store can't change two records in one step, which keys under one rate (each=) need: "
    "use Redis, Valkey, PostgreSQL, SQLite, a JSON file or memory"
)
"""Why a store refuses keys under one rate."""


@runtime_checkable
class Waking(Protocol):
    """A store that can wake a waiting shard when a hold ends, so that the shard need not poll."""

    def wakeups(self, queue: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Listen for ends of one queue's holds while the context is open.

        The context yields a function that returns at the first wake-up since the context was entered or since
        the function last returned. Wake-ups are hints: one may be lost or spurious. Errors are those of
        `apply`.
        """
        ...


class StoredSchedules(NamedTuple):
    """What `Scheduling.read_schedules` found."""

    now: int
    """The store's clock, in microseconds since 1970."""
    texts: dict[str, str]
    """The text of each schedule that exists."""


class Swapped(NamedTuple):
    """What `Scheduling.swap_schedule` did."""

    done: bool
    now: int
    """The store's clock, in microseconds since 1970."""
    text: str | None
    """The stored text after the step; None: there is none."""


@runtime_checkable
class Scheduling(Protocol):
    """A store that keeps schedules: for each a short text, which is replaced by compare-and-swap.

    `intervalq.schedules.rules` says what the text means; a store only compares it.
    """

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """Read some schedules, each as it was at some instant during the call.

        Args:
            names: which ones. None: all of them.
            now: as for `Store.apply`, as are the errors.
        """
        ...

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """Replace the text of a schedule in one atomic step, if it is `known` and the time has come.

        Args:
            name: its name.
            known: the text that must be stored. None: there must be none.
            text: what replaces it. None: remove it.
            earliest: nothing is done before this instant on the store's clock.
            now: as for `Store.apply`, as are the errors.
        """
        ...


def swapped(  # what memory and files do; servers do the same themselves
    stored: str | None, known: str | None, text: str | None, earliest: int, now: int
) -> Swapped:
    """The answer of `Scheduling.swap_schedule` when this text is stored and the clock reads `now`."""
    done = stored == known and now >= earliest
    return Swapped(done, now, text if done else stored)


def scheduling(store: Store) -> Scheduling:
    """The store, if it keeps schedules.

    Raises:
        UnsupportedOperation: it doesn't.
    """
    if not isinstance(store, Scheduling):
        raise UnsupportedOperation(
            store.url,
            "this store keeps no schedules: use Redis, Valkey, PostgreSQL, NATS, SQLite, a JSON file "
            "or memory",
        )
    return store


@runtime_checkable
class SchedulesWaking(Protocol):
    """A store that can tell when a schedule has changed, so that processes need not look."""

    def schedule_changes(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Listen for changes of schedules, as `Waking.wakeups` listens for ends of holds."""
        ...


class DocumentStore(ABC):
    """Base class for a store that can atomically read a record, apply a pure step, and write it back."""

    url: str

    @abstractmethod
    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """Read the record of `queue`, apply `step`, keep the record that it returns, and return its answer.

        This is atomic; updates of one queue don't overlap. If `step` returns the very record that it was
        given, nothing needs to be written; None removes the record. If `now` is None, the store reads its own
        clock.
        """

    async def update_pair(self, queue: str, common: str, step: PairStep[T], now: int | None) -> T:
        """`update` of two records by one atomic step.

        Raises:
            UnsupportedOperation: unless a subclass overrides this.
        """
        del queue, common, step, now
        raise UnsupportedOperation(self.url, NO_PAIRS)

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        return await self.update_pair(queue, known.record, keyed_step(command, known), now)

    @abstractmethod
    async def names(self) -> list[str]:
        """The queues that have a record, sorted."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        return await self.update(queue, lambda state, at: rules.apply(state, command, at), now)

    async def aclose(self) -> None:  # noqa: B027 - most have nothing to close
        """See `Store.aclose`."""


def wall_clock() -> int:
    """Microseconds since 1970: the clock of stores without a server."""
    return time.time_ns() // 1_000


def stopwatch() -> int:
    """Microseconds on the clock that shards measure with; both instants in `Answer.trip` are on it."""
    return CLOCK.get().now()


def open_store(url: str | None = None) -> Store:
    """The store at a URL or plain path, not yet connected.

    Args:
        url: `memory://`, `file:///path/state.json`, `sqlite:///path/state.db`, `redis://`, `rediss://`,
            `unix://`, `postgresql://`, `nats://` (`tls://` with TLS), `intervalq://` (`intervalqs://` with
            TLS) for the store of a service, or any scheme that an installed package registers by an entry
            point in the group `intervalq.stores`. A plain path is SQLite if it ends with `.db`, `.sqlite` or
            `.sqlite3`, else a JSON file. None: the environment variable `INTERVALQ_STORE`, else a SQLite
            database in the user's state folder, which all processes of one machine can share without a
            server.

    Raises:
        UnknownStore: the scheme is unknown.
        MissingExtra: the store's driver isn't installed.
        InvalidOption: the store doesn't understand the URL.
        StoreError: the store can't work on this platform, or with this Python.
    """
    scheme, url = sound_url(given_url(url) or default_url(), otherwise="file")
    store: Store = CLOCK.get().store(QUEUES, url) or backend(QUEUES, scheme)(url)
    return store


def given_url(url: str | None) -> str | None:
    """The URL that is meant: this one, else that of `INTERVALQ_STORE`; None: there is neither.

    Raises:
        InvalidOption: `url` is empty. For a missing setting, each machine would use a default of its own.
    """
    if url is None:
        return os.environ.get("INTERVALQ_STORE") or None
    if not url.strip():
        raise InvalidOption("the store is empty: give a URL or a path, or leave it out for the default")
    return url


def sound_url(url: str, *, otherwise: str) -> tuple[str, str]:
    """The scheme of a URL, in lower case, and the URL itself; a path is turned into a URL.

    Args:
        url: a URL or plain path.
        otherwise: the scheme for paths without a suffix of SQLite databases.

    Raises:
        InvalidOption: `url` is neither.
    """
    scheme, separator, _ = url.partition("://")
    # A mistyped URL must not be taken for a path: that would show its password, and store it as a file name.
    sound = _SCHEME.fullmatch(scheme) if separator else url.strip() and not _SLIP.match(url)
    if "\0" in url or not sound:
        raise InvalidOption(
            "a store is a URL such as redis://host:6379/0, or a path (prefix it with ./ if it has : and @)"
        )
    if not separator and _NO_PATH.match(url):  # not quoted: it may hold a secret
        raise InvalidOption(
            "this looks like the address of a server, but a URL of a store has ://, as in "
            "redis://localhost:6379; prefix the path of a file of this name with ./"
        )
    if not separator:
        from pathlib import Path  # noqa: PLC0415 - a program begins sooner without it

        try:
            path = Path(url).expanduser().absolute()
            scheme = "sqlite" if path.suffix.lower() in _DATABASES else otherwise
            url = f"{scheme}{path.as_uri().removeprefix('file')}"
        except (RuntimeError, ValueError):  # ~user is unknown; or a lone surrogate, which can't be encoded
            raise InvalidOption(f"{short(url)} can't be the path of a store") from None
    return scheme.lower(), url


def default_url() -> str:
    """The SQLite database in the user's state folder.

    It is not a JSON file, because a step there rewrites all records: that takes four times as long with one
    queue, and hundreds of times as long with thousands of keyed ones (`benchmarks/embedded.py`).
    """
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed without any other store

    return f"sqlite{(user_state_path('intervalq') / 'state.db').as_uri().removeprefix('file')}"


def shown_url(url: str) -> str:
    """A URL for display: without user, password and query, any of which may contain a secret."""
    scheme, separator, _ = url.partition("://")
    if not separator:  # a path, unless it could contain a password
        return "..." if "@" in url else url
    if not _SCHEME.fullmatch(scheme):
        return "..."
    from urllib.parse import urlsplit  # noqa: PLC0415 - a program begins sooner without it

    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # a malformed port or address, of which no part can be shown; or several hosts
        address, _, query = url.partition("://")[2].partition("?")
        hosts = address.rstrip("/").rpartition("@")[2]
        several = "," in hosts and "@" not in query and all(map(_HOST.fullmatch, hosts.split(",")))
        return f"{scheme}://{hosts if several else '...'}"
    if "@" in parts.path + parts.query + parts.fragment:  # a password that is not escaped ends up there
        return f"{parts.scheme}://..."
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}{parts.path}"
