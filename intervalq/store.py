"""What a store is: one atomic verb on one record, the easy way to write one, and how a URL finds it."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

from intervalq import rules
from intervalq._backends import QUEUES, backend
from intervalq._timing.clock import CLOCK
from intervalq.errors import InvalidOption, short
from intervalq.rules import Answer, Command, State

T = TypeVar("T")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SLIP: Final = re.compile(r"(?://)?[^/]*(?::|//).*@", re.DOTALL)

_NO_PATH: Final = re.compile(
    r"(?:memory|file|sqlite|rediss?(?:\+cluster)?|unix|postgres(?:ql)?|nats|tls)(?::|//)|[\w.-]+:[0-9]+/?$",
    re.IGNORECASE,
)
"""What begins as a URL does, or is a host and a port: a slip, unless it has ./ before it."""

_DATABASES: Final = frozenset({".db", ".sqlite", ".sqlite3"})
"""How the names of files end that are SQLite databases."""

Step = Callable[[State | None, int], tuple[State | None, T]]
"""Given the record (None: there is none) and the store's clock: the record to keep, and an answer."""


class Store(Protocol):
    """Holds the records of queues. A class of this shape, made from a URL, is all that a store is.

    A store belongs to the event loop that first used it. It connects when it is first used, and holds no
    connection that it doesn't need.
    """

    @property
    def url(self) -> str:
        """Where it is, as it may be shown: without secrets."""
        ...

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """Do `intervalq.rules.apply` on the record of `queue`: all of it or nothing, one at a time.

        Args:
            queue: a name, or `name:key`; safe in any store's keys.
            command: what to do.
            now: the store's clock in microseconds. None, outside of tests: the store reads its own.

        Raises:
            StoreUnavailable: the store can't be reached, or can't write; asking again may help.
            StoreTimeout: no answer came in time; the step may have been done. The caller decides whether
                to ask again: a store never sends a command twice by itself.
            StoreError: one of the others; asking again won't help.
        """
        ...

    async def names(self) -> list[str]:
        """The queues that have a record, sorted."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. The store opens again when it is used again."""
        ...


@runtime_checkable
class Waking(Protocol):
    """A store that can tell a waiting shard when a hold ended, which saves it from asking now and then."""

    def wakeups(self, queue: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """Listen for ends of holds of one queue for as long as the context is open.

        Gives a function that returns at the next wake-up since the context was entered or the function last
        returned. Wake-ups are hints: one may be lost or come for nothing. Errors are those of `apply`.
        """
        ...


class DocumentStore(ABC):
    """All the verbs for a store that can read a record, apply a pure step, and write it back, atomically."""

    url: str

    @abstractmethod
    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """Read the record of `queue`, take `step`, keep the record that it returns, and return its answer.

        Atomic, and one at a time for each queue. A returned record that *is* the one given needs no write;
        None removes it. `now` of None: the store's own clock.
        """

    @abstractmethod
    async def names(self) -> list[str]:
        """The queues that have a record, sorted."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        return await self.update(queue, lambda state, at: rules.apply(state, command, at), now)

    async def aclose(self) -> None:  # noqa: B027 - most have nothing to let go of
        """See `Store.aclose`."""


def wall_clock() -> int:
    """Microseconds since 1970: the clock of the stores that have no server."""
    return time.time_ns() // 1_000


def stopwatch() -> int:
    """Microseconds on the clock that shards measure by: what `Answer.trip` is of."""
    return CLOCK.get().now()


def open_store(url: str | None = None) -> Store:
    """The store at a URL or plain path, not yet connected.

    Args:
        url: `memory://`, `file:///path/state.json`, `sqlite:///path/state.db`, `redis://`, `rediss://`,
            `unix://`, `postgresql://`, `nats://` (`tls://` with TLS), or any scheme that an installed package
            brings by an entry point in the group `intervalq.stores`. A plain path is SQLite if it ends with
            `.db`, `.sqlite` or `.sqlite3`, else a JSON file. None: the environment's `INTERVALQ_STORE`, else
            a SQLite database in the user's state folder, which works across the processes of one machine
            with no server.

    Raises:
        UnknownStore: no such scheme.
        MissingExtra: its driver isn't installed.
        InvalidOption: the store can't make sense of the URL.
        StoreError: it can't work on this platform, or with this Python.
    """
    scheme, url = sound_url(url or os.environ.get("INTERVALQ_STORE") or default_url(), otherwise="file")
    store: Store = backend(QUEUES, scheme)(url)
    return store


def sound_url(url: str, *, otherwise: str) -> tuple[str, str]:
    """The scheme of a URL, in small letters, and the URL; a path becomes one.

    Args:
        url: a URL or plain path.
        otherwise: the scheme of paths that don't end as those of SQLite databases do.

    Raises:
        InvalidOption: it is neither.
    """
    scheme, separator, _ = url.partition("://")
    # What may be a URL with a slip in it isn't taken for a path: that would show, and keep, its password.
    sound = _SCHEME.fullmatch(scheme) if separator else url.strip() and not _SLIP.match(url)
    if "\0" in url or not sound:
        raise InvalidOption(
            "a store is a URL such as redis://host:6379/0, or a path (with ./ before one that has : and @)"
        )
    if not separator and _NO_PATH.match(url):  # not quoted: it may hold a secret
        raise InvalidOption(
            "a URL of a store has :// as in nats://host:4222; a path that begins like one needs ./ before it"
        )
    if not separator:
        try:
            path = Path(url).expanduser().absolute()
            scheme = "sqlite" if path.suffix.lower() in _DATABASES else otherwise
            url = f"{scheme}{path.as_uri().removeprefix('file')}"
        except (RuntimeError, ValueError):  # there is no such user; or half of a surrogate pair, no text
            raise InvalidOption(f"{short(url)} can't be the path of a store") from None
    return scheme.lower(), url


def default_url() -> str:
    """The SQLite database in the user's state folder.

    Not a JSON file: a step there writes all the records again, so it takes five times as long with one queue,
    and hundreds of times with thousands of keyed ones (`benchmarks/embedded.py`).
    """
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed without any other store

    return f"sqlite{(user_state_path('intervalq') / 'state.db').as_uri().removeprefix('file')}"


def shown_url(url: str) -> str:
    """A URL as it may be shown: without user, password, and query, any of which may hold a secret."""
    scheme, separator, _ = url.partition("://")
    if not separator:  # a path, if it has no place for a password
        return "..." if "@" in url else url
    if not _SCHEME.fullmatch(scheme):
        return "..."
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # a broken port or address, of which no part can be shown; or several
        address, _, query = url.partition("://")[2].partition("?")
        hosts = address.rstrip("/").rpartition("@")[2]
        several = "," in hosts and "@" not in query and all(map(_HOST.fullmatch, hosts.split(",")))
        return f"{scheme}://{hosts if several else '...'}"
    if "@" in parts.path + parts.query + parts.fragment:  # where a password that is not escaped ends up
        return f"{parts.scheme}://..."
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}{parts.path}"
