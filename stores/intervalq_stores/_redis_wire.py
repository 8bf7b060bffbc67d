"""Connections to a Redis or Valkey, or to the nodes of a cluster: every command is sent once and bounded.

One connection a server, for one command at a time. It is taken out of its place for each command and put back
only when the whole answer has come: a cancelled or failed call leaves nothing that another could read. The
driver's own retries are off, because they send a command again whose answer was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import anyio
from redis import exceptions as driver
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot

from intervalq.errors import (
    BackendUnsupported,
    CorruptState,
    InvalidOption,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    VersionMismatch,
)
from intervalq.store import shown_url, stopwatch

# Answers are `Any`: whatever the server says, which only the sender of the command knows.

Trip: TypeAlias = tuple[int, int]
"""When a command left, and when its answer had come: see `Answer.trip`."""

Address: TypeAlias = tuple[str, int] | None
"""Host and port of a node; None: the one of the URL."""

WITHIN: Final = 5.0
"""Seconds that a call may take, connecting included. Jobs wait for it: longer is an outage."""

_REDIRECTS: Final = 5  # in a row; more are nodes that disagree with each other

_OPTIONS: Final = re.compile("host|port|path|username|password|db|client_name|ssl_.+")
"""What a URL may say; the driver's other options would undo what this module takes care of."""

# What the server's error codes mean. The driver cuts off those that it has classes for.
_ERRORS: Final[list[tuple[tuple[str, ...], tuple[type[Exception], ...], type[StoreError], str]]] = [
    (("CORRUPT",), (), CorruptState, "the record isn't one of intervalq and was left as it is: {}"),
    (("NEWER",), (), VersionMismatch, "{}: install a newer intervalq here, too"),
    (("RANGE",), (), StoreError, "{}"),
    (
        ("NOAUTH", "WRONGPASS", "NOPERM"),
        (driver.AuthenticationError, driver.NoPermissionError, driver.AuthenticationWrongNumberOfArgsError),
        Unauthorized,
        "the server refuses the user or password, or its ACL lacks ~intervalq:* &intervalq:* or a command",
    ),
    (
        ("READONLY", "NOREPLICAS"),
        (driver.ReadOnlyError,),
        StoreReadOnly,
        "the server takes no writes: it is a replica, or has too few replicas itself",
    ),
    (
        ("OOM", "MISCONF"),
        (driver.OutOfMemoryError,),
        StoreFull,
        "the server can't store more: it is at maxmemory, or can't write its disk",
    ),
    (
        ("MOVED", "ASK"),
        (driver.AskError,),
        StoreError,
        "the server is part of a cluster: use a URL that begins with redis+cluster:// or rediss+cluster://",
    ),
    (
        ("BUSY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"),
        (driver.BusyLoadingError, driver.ClusterDownError, driver.TryAgainError),
        StoreUnavailable,
        "the server can't answer just now: {}",
    ),
    ((), (driver.TimeoutError, TimeoutError), StoreTimeout, f"no answer within {WITHIN:g} s"),
]


def told(store: str, error: Exception) -> StoreError:
    """What an error of the driver or the server means. An unknown one says nothing about what was done."""
    text = str(error)
    code, _, rest = text.partition(" ")
    if "ACL failure in script" in text or "can't run this command" in text:  # in a script it has no code
        code = "NOPERM"
    for codes, kinds, kind, why in _ERRORS:
        if code in codes or isinstance(error, kinds):
            return kind(store, why.format(rest if code in codes else text))
    return StoreUnavailable(
        store, f"the server can't be reached or did not answer: {text or type(error).__name__}"
    )


class Wire:
    """All connections of one store. Nothing is bound to an event loop before the first call."""

    def __init__(self, url: str) -> None:
        self.url = shown_url(url)
        scheme, _, rest = url.partition("://")
        self._cluster = scheme.lower().endswith("+cluster")
        try:
            options: dict[str, Any] = {**parse_url(f"{scheme.lower().removesuffix('+cluster')}://{rest}")}
            path = urlsplit(url).path
        except ValueError:  # its text may have a part of the password, if that holds a / or a #
            path, options = "?", {}
        self._class: type[AbstractConnection] = options.pop("connection_class", Connection)
        unknown = [name for name in options if not _OPTIONS.fullmatch(name)]
        fits = (
            "path" in options if self._class is UnixDomainSocketConnection else re.fullmatch(r"/?\d*", path)
        )
        if unknown or not fits or (self._cluster and options.get("db")):
            raise InvalidOption(
                "this isn't a URL of a Redis: redis://[user:password@]host[:port][/db] (rediss:// for TLS), "
                "unix:///path, or redis+cluster://host[:port]; the query may have "
                "db, client_name, and ssl_... options; a password with : / ? # @ or % must be percent-encoded"
            )
        self._options = options | {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,  # calls are bounded as a whole
            "socket_connect_timeout": WITHIN,
        }
        self._links: dict[Address, Link] = {}
        self._homes: list[Address] = [None]  # nodes that may be asked about the cluster, the best first
        self._slots: list[Address] = []  # the node of each of a cluster's slots

    async def run(self, key: str, script: Script, *arguments: str | bytes) -> tuple[Any, Trip]:
        """Run a script where `key` is: by its digest, and with its text if the server doesn't know it yet."""
        async with self._bounded():
            try:
                return await self._send(key, "EVALSHA", script.digest, *arguments)
            except driver.NoScriptError:  # so it did not run
                return await self._send(key, "EVAL", script.text, *arguments)

    async def call(self, *command: str, node: Address = None) -> Any:  # noqa: ANN401
        """Do a command that isn't about one queue, on the given node or any."""
        async with self._bounded():
            return await self._link(node).call(*command)

    async def nodes(self) -> list[Address]:
        """All nodes that hold records."""
        if not self._cluster:
            return [None]
        async with self._bounded():
            await self._look()
        return list(dict.fromkeys(self._slots))

    async def close(self) -> None:
        """Close all connections."""
        links, self._links, self._slots = self._links, {}, []
        for link in links.values():
            await link.close()

    @asynccontextmanager
    async def subscribed(self, channel: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Listen to a channel, on a connection of its own. See `Waking.wakeups`."""
        async with self._bounded():
            connection = await self._subscribe(channel)
        heard = asyncio.Event()
        reading = asyncio.create_task(_read_on(connection, heard))

        async def next_message() -> None:
            await heard.wait()
            if reading.done():
                raise told(self.url, reading.result()) from reading.result()
            heard.clear()

        try:
            yield next_message
        finally:
            reading.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([reading])
                await _drop(connection)

    async def _subscribe(self, channel: str) -> AbstractConnection:
        if self._cluster and not self._slots:
            await self._look()
        connection = self._connection(self._homes[0])  # every node of a cluster hears of all messages
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SUBSCRIBE", channel)
            await connection.read_response()
        except BaseException:
            self._slots = []
            await _drop(connection)
            raise
        return connection

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Errors in our words, and no call that takes for ever."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise BackendUnsupported(
                self.url, "the driver of Redis needs asyncio: run this with asyncio, not with trio"
            ) from None
        try:
            async with asyncio.timeout(WITHIN):
                yield
        except StoreError:
            raise
        except Exception as error:
            raise told(self.url, error) from error

    async def _send(self, key: str, *command: str | bytes) -> tuple[Any, Trip]:
        """Send a command to the node that has `key`; one that sends us elsewhere has not done it."""
        if not self._cluster:
            link = self._link(None)
            return await link.call(*command), link.trip
        if not self._slots:
            await self._look()
        slot = key_slot(key.encode())
        node, asking = self._slots[slot], False
        for _ in range(_REDIRECTS):
            link = self._link(node)
            try:
                return await link.call(*command, asking=asking), link.trip
            except driver.MovedError as moved:
                node, asking = (moved.host or self._host(node), moved.port), False
                self._slots[slot] = node
            except driver.AskError as ask:
                node, asking = (ask.host or self._host(node), ask.port), True
            except driver.ResponseError:
                raise
            except BaseException:
                self._slots = []  # that node is in trouble: ask for the one that took its place
                raise
        raise driver.ClusterDownError("the nodes of the cluster don't agree about who has this queue")

    async def _look(self) -> None:
        """Learn which node has which slots, from the first node that answers."""
        problem: Exception = driver.ConnectionError()
        for home in list(self._homes):
            self._homes.remove(home)
            self._homes.append(home)  # should it stall, the next call begins with another
            try:
                ranges = await self._link(home).call("CLUSTER", "SLOTS")
            except (driver.ConnectionError, OSError) as error:
                problem = error
            except driver.ResponseError as error:
                if "cluster support disabled" not in str(error):
                    raise
                raise StoreError(self.url, "the server isn't a cluster: use redis:// or rediss://") from None
            else:
                break
        else:
            raise problem
        slots: list[Address] = [home] * 16_384
        nodes: list[Address] = []
        for first, last, *members in ranges:
            found = [(host.decode() or self._host(home), port) for host, port, *_ in members]
            slots[first : last + 1] = found[:1] * (last + 1 - first)
            nodes += found
        self._slots, self._homes = slots, list(dict.fromkeys([home, *nodes, None]))

    def _host(self, node: Address) -> str:
        """The host of a node, for a node that says only a port: it means the host where it was asked."""
        return str(self._options.get("host", "localhost")) if node is None else node[0]

    def _link(self, node: Address) -> Link:
        if node not in self._links:
            self._links[node] = Link(lambda: self._connection(node))
        return self._links[node]

    def _connection(self, node: Address) -> AbstractConnection:
        there = {} if node is None else {"host": node[0], "port": node[1]}
        return self._class(**self._options | there)


class Script:
    """A script and the digest by which a server finds it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """One connection to one server, opened when it is needed."""

    def __init__(self, make: Callable[[], AbstractConnection]) -> None:
        self._make = make
        self._connection: AbstractConnection | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self.trip: Trip = (0, 0)
        """Of the last call."""

    async def call(self, *command: str | bytes, asking: bool = False) -> Any:  # noqa: ANN401
        """Send a command and wait for its answer; `asking`: about a slot that is on its way to this node."""
        async with self._turn:
            connection, self._connection = self._connection, None
            whole = False
            try:
                if connection is not None and _ended(connection):
                    await _drop(connection)
                    connection = None
                if connection is None:
                    connection = self._make()
                    await connection.connect()  # type: ignore[no-untyped-call]
                if asking:
                    await connection.send_command("ASKING")
                    await connection.read_response()
                sent = stopwatch()
                await connection.send_command(*command)
                answer = await connection.read_response()
                self.trip = sent, stopwatch()
                whole = True
            except driver.ResponseError:
                whole = True
                raise
            finally:
                if whole and not self._closed:
                    self._connection = connection
                elif connection is not None:
                    await _drop(connection)
            return answer

    async def close(self) -> None:
        """Close the connection; that of a call under way, when its answer has come."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await _drop(connection)


def _ended(connection: AbstractConnection) -> bool:
    """Whether the server has closed it in the meantime. Then nothing was sent yet, and a new one does it."""
    reader: asyncio.StreamReader | None = getattr(connection, "_reader", None)
    return not connection.is_connected or (reader is not None and reader.at_eof())


async def _drop(connection: AbstractConnection) -> None:
    with contextlib.suppress(Exception):  # it is of no use any more, whatever is wrong with it
        await connection.disconnect(nowait=True)


async def _read_on(connection: AbstractConnection, heard: asyncio.Event) -> Exception:
    """Set `heard` at every message, until something goes wrong; returns what."""
    while True:
        try:
            await connection.read_response()
        except Exception as error:  # noqa: BLE001 - told to the one who waits
            heard.set()
            return error
        heard.set()
