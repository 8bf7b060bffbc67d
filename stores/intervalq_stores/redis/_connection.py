"""Connections to a Redis or Valkey, or to the nodes of a cluster, and the translation of their errors.

There is one connection per server, and one more for each channel with a listener. The driver's own retries
are off, because they would repeat commands whose answers were lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
from redis import exceptions as driver
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot

from intervalq.errors import (
    CorruptState,
    InsecureTransport,
    IntervalqError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    VersionMismatch,
)
from intervalq.store import shown_url
from intervalq_stores._transport import TLSFault
from intervalq_stores.redis._pipeline import WITHIN, PipelinedConnection, connect, drop, limit
from intervalq_stores.redis._ports import Address, Trip
from intervalq_stores.redis._scripts import Script
from intervalq_stores.redis._tls import Parser, bound, check_files

_REDIRECTS: Final = 5  # in a row; after more, the nodes disagree with each other

# The meanings of the server's error codes. The driver removes codes for which it has exception classes.
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
        "the server accepts no writes: it is a replica, or has too few replicas itself",
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


def translate_error(store: str, error: Exception) -> StoreError:
    """The store's error for one of the driver or server; unknown ones don't tell whether a step was done."""
    if isinstance(error, TLSFault):
        return InsecureTransport(store, str(error))
    text = str(error)
    code, _, rest = text.partition(" ")
    if "ACL failure in script" in text or "can't run this command" in text:  # in a script it has no code
        code = "NOPERM"
    for codes, kinds, kind, why in _ERRORS:
        if code in codes or isinstance(error, kinds):
            return kind(store, why.format(rest if code in codes else text))
    return StoreUnavailable(
        store,
        "the server can't be reached or did not answer (does it run, at this address?): "
        f"{text or type(error).__name__}",
    )


class Server:
    """All connections of one store in one event loop."""

    def __init__(self, url: str) -> None:
        """Connect nothing yet. The URL must be one that `Client` accepts."""
        self.url = shown_url(url)
        scheme, _, rest = url.partition("://")
        self._cluster = scheme.lower().endswith("+cluster")
        options: dict[str, Any] = {**parse_url(f"{scheme.lower().removesuffix('+cluster')}://{rest}")}
        self._class: type[AbstractConnection] = options.pop("connection_class", Connection)
        self._options = options | {
            "protocol": 2,
            "parser_class": Parser,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,  # each command has its own
            "socket_connect_timeout": WITHIN,
        }
        self._has_files = False
        self._connections: dict[Address, PipelinedConnection] = {}
        self._homes: list[Address] = [None]  # nodes to ask about the cluster, the best first
        self._slots: list[Address] = []  # the node of each of a cluster's slots
        self._looking: asyncio.Task[None] | None = None

    async def run(self, key: str, script: Script, *arguments: str | bytes) -> tuple[Any, Trip]:
        """Run a script on the node that has `key`; a node that redirects the client has not run it."""
        with self._translated():
            if not self._cluster:
                return await self._to(None).run(script, *arguments)
            if not self._slots:
                await self._look()
            slot = key_slot(key.encode())
            node, asking = self._slots[slot], False
            for _ in range(_REDIRECTS):
                try:
                    return await self._to(node).run(script, *arguments, asking=asking)
                except driver.MovedError as moved:
                    node, asking = (moved.host or self._host(node), moved.port), False
                    if self._slots:
                        self._slots[slot] = node
                except driver.AskError as ask:
                    node, asking = (ask.host or self._host(node), ask.port), True
                except driver.ResponseError:
                    raise
                except Exception:
                    self._slots = []  # that node is in trouble: ask which one has replaced it
                    raise
            raise driver.ClusterDownError("the nodes of the cluster don't agree on which one has this queue")

    async def call(self, *command: str, node: Address = None) -> Any:  # noqa: ANN401
        """Do a command that isn't about one queue, on the given node or any."""
        with self._translated():
            answer, _ = await self._to(node).call(*command)
            return answer

    async def nodes(self) -> list[Address]:
        """All nodes that hold records."""
        if not self._cluster:
            return [None]
        with self._translated():
            await self._look()
        return list(dict.fromkeys(self._slots))

    async def close(self) -> None:
        """Close all connections."""
        connections, self._connections, self._slots = self._connections, {}, []
        for connection in connections.values():
            await connection.close()

    @asynccontextmanager
    async def messages(self, channel: str) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
        """Listen to a channel, on a connection of its own.

        The context gives a function that waits for the next messages, and returns those that aren't empty.
        """
        with self._translated():
            async with limit():
                connection = await self._subscribe(channel)
        heard = asyncio.Event()
        messages: list[bytes] = []
        reading = asyncio.create_task(_read_on(connection, heard, messages))

        async def next_message() -> list[bytes]:
            await heard.wait()
            if reading.done():
                raise translate_error(self.url, reading.result()) from reading.result()
            heard.clear()
            some = messages[:]
            messages.clear()
            return some

        try:
            yield next_message
        finally:
            reading.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([reading])
                await drop(connection)

    async def _subscribe(self, channel: str) -> AbstractConnection:
        if self._cluster and not self._slots:
            await self._look()
        connection = self._connection(self._homes[0])  # every node of a cluster gets all messages
        try:
            await connect(connection)
            await connection.send_command("SUBSCRIBE", channel)
            await connection.read_response()
        except BaseException:
            self._slots = []
            await drop(connection)
            raise
        return connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors into those of stores."""
        try:
            yield
        except IntervalqError:
            raise
        except Exception as error:
            raise translate_error(self.url, error) from error

    async def _look(self) -> None:
        """Learn which node has which slots. Concurrent callers share one request."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._learn())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, _: asyncio.Task[None]) -> None:
        self._looking = None

    async def _learn(self) -> None:
        """Ask one node after another, until one answers."""
        problem: Exception = driver.ConnectionError()
        for home in list(self._homes):
            self._homes.remove(home)
            self._homes.append(home)  # if it stalls, the next call begins with another one
            try:
                ranges, _ = await self._to(home).call("CLUSTER", "SLOTS")
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
            if not 0 <= first <= last < len(slots):  # otherwise the list grows as long as the server likes
                raise StoreError(
                    self.url, "the answer to CLUSTER SLOTS can't be read: is this a Redis cluster?"
                )
            found = [(host.decode() or self._host(home), port) for host, port, *_ in members]
            slots[first : last + 1] = found[:1] * (last + 1 - first)
            nodes += found
        self._slots, self._homes = slots, list(dict.fromkeys([home, *nodes, None]))

    def _host(self, node: Address) -> str:
        """The host of a node that gave only a port, which means the host that was asked."""
        return str(self._options.get("host", "localhost")) if node is None else node[0]

    def _to(self, node: Address) -> PipelinedConnection:
        if node not in self._connections:
            self._connections[node] = PipelinedConnection(lambda: self._connection(node))
        return self._connections[node]

    def _connection(self, node: Address) -> AbstractConnection:
        there = {} if node is None else {"host": node[0], "port": node[1]}
        connection = self._class(**self._options | there)
        if not self._has_files:  # later, one that can't be read may be just being replaced
            check_files(connection)
            self._has_files = True
        return connection


async def _read_on(connection: AbstractConnection, heard: asyncio.Event, messages: list[bytes]) -> Exception:
    """Set `heard` at every message, and keep those with a text, until something goes wrong; returns what."""
    while True:
        bound(connection)
        try:
            response = await connection.read_response()
        except Exception as error:  # noqa: BLE001 - it is raised in the waiter
            heard.set()
            return error
        if isinstance(response, list) and isinstance(response[-1], bytes) and response[-1]:
            messages.append(response[-1])
        heard.set()
