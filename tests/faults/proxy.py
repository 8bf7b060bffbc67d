"""A TCP proxy between a client and its server, with faults that a test switches on and off."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum, auto
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import anyio
import pytest

from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.redis import _pipeline as redis_pipeline

DRIP: Final = 10
"""Bytes per second of an answer that is sent slowly."""


class Fault(Enum):
    """The faults. One read is taken for one request or answer."""

    NONE = auto()
    REFUSE = auto()  # nothing listens, and open connections are reset
    RESET_REQUEST = auto()  # a request is answered by a reset, and not passed on
    RESET_ANSWER = auto()  # a reset replaces the answer
    END_ANSWER = auto()  # the connection is closed instead of an answer
    CUT_ANSWER = auto()  # the connection is closed in the middle of the answer
    SWALLOW = auto()  # answers are lost
    BLACK_HOLE = auto()  # nothing gets through, in either direction
    HOLD_REQUESTS = auto()  # requests are held until the fault ends, and then arrive
    HOLD_ANSWERS = auto()  # so are answers
    DRIP = auto()  # an answer comes byte by byte
    LATE = auto()  # everything comes a little later


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """A context in which clients wait for answers only so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_pipeline, "WITHIN", seconds)
        patch.setattr(postgres_queues, "_PATIENCE", seconds)
        yield


_OF_ANSWERS: Final = {
    Fault.RESET_ANSWER,
    Fault.END_ANSWER,
    Fault.CUT_ANSWER,
    Fault.SWALLOW,
    Fault.HOLD_ANSWERS,
    Fault.DRIP,
}
"""The faults that let requests through."""


class _Way:
    """A client's connection, and the proxy's connection to the server."""

    def __init__(self, number: int, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.lost = False
        """Something was lost on it, so nothing can ever get through any more."""
        self.scope = anyio.CancelScope()

    def end(self, *, reset: bool = False) -> None:
        """Close both sides; the client sees the end of the stream, or a reset."""
        if reset:
            now = struct.pack("ii", 1, 0)
            with suppress(OSError):  # it is closed already
                self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
            self.client.transport.abort()
        self.client.close()
        self.server.close()
        self.scope.cancel()


class Proxy:
    """Passes on data as the fault allows, and counts. Created by `proxied`, for asyncio."""

    def __init__(self, url: str) -> None:
        self._there = urlsplit(url)
        self._port = 0
        self._after = 0
        self._once = False
        self._of = b""
        self._fault = Fault.NONE
        self._listener: asyncio.Server | None = None
        self._ways: set[_Way] = set()
        self._news = anyio.Event()
        self.delay = 0.01
        """The delay of each request and each answer under LATE, in seconds."""
        self.connections = 0
        self.hits = 0
        """How often the present fault, or the last one, affected a request, an answer, or a connection."""
        self.asked: list[tuple[int, bytes]] = []
        """The requests, each with the number of its connection."""
        self.passed: list[tuple[int, bytes]] = []
        """The requests that were passed on to the server."""
        self.answers = 0
        """How often the server sent something."""

    @property
    def url(self) -> str:
        """The URL of the server, through this proxy."""
        user, at, _ = self._there.netloc.rpartition("@")
        return urlunsplit(self._there._replace(netloc=f"{user}{at}127.0.0.1:{self._port}"))

    @property
    def fault(self) -> Fault:
        """The present fault."""
        return Fault.NONE if self._after else self._fault

    async def begin(self, fault: Fault, *, after: int = 0, once: bool = False, of: bytes = b"") -> None:
        """Let a fault begin after this many more requests; it lasts until `heal`, or affects one.

        With `of`, answers without these bytes are passed on.
        """
        self._fault, self._after, self._once, self._of, self.hits = fault, after, once, of, 0
        if fault is Fault.REFUSE and not after:
            self._refuse()
        self._changed()

    async def heal(self) -> None:
        """End the fault. Lost data stays lost; held data is passed on."""
        self._fault, self._after = Fault.NONE, 0
        if self._listener is None:
            await self.listen()
        self._changed()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for a condition on the figures."""
        while not happened():
            await self._news.wait()

    async def listen(self) -> None:
        """Accept connections."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections."""
        self._refuse()
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until all connections have ended, and the server has processed all their requests."""
        await self.until(lambda: not self._ways)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for way in self._ways:
            way.end(reset=True)

    def _changed(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _hit(self) -> None:
        self.hits += 1
        if self._once:
            self._fault = Fault.NONE
        self._changed()

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(self._there.hostname, self._there.port)
        except OSError:  # the server itself doesn't answer
            client.transport.abort()
            return
        way = _Way(self.connections, client, server)
        self.connections += 1
        self._ways.add(way)
        try:
            if self._listener is None:  # refused since
                way.end(reset=True)
            with way.scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pass, self._request, way, requests, server.write_eof)
                    # A server processes a request before it checks whether the client is still there.
                    group.start_soon(self._pass, self._answer, way, answers, way.end)
        finally:
            way.end()
            for side in (client, server):
                with suppress(OSError):
                    await side.wait_closed()
            self._ways.remove(way)
            self._changed()

    async def _pass(
        self,
        piece: Callable[[_Way, bytes], Awaitable[None]],
        way: _Way,
        reader: asyncio.StreamReader,
        end: Callable[[], None],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(262_144):
                await piece(way, data)
        with suppress(OSError):
            end()

    async def _request(self, way: _Way, data: bytes) -> None:
        self.asked.append((way.number, data))
        fault = self.fault
        if self._after:
            self._after -= 1
            if self._fault is Fault.REFUSE and not self._after:
                self._refuse()
                return
        if fault is not Fault.NONE and fault not in _OF_ANSWERS:
            self._hit()
        if fault is Fault.RESET_REQUEST:
            way.end(reset=True)
            return
        if fault is Fault.HOLD_REQUESTS:
            await self.until(lambda: self.fault is not Fault.HOLD_REQUESTS)
        if fault is Fault.LATE:
            await anyio.sleep(self.delay)
        way.lost = way.lost or fault is Fault.BLACK_HOLE
        if not way.lost:
            self.passed.append((way.number, data))
            way.server.write(data)
        self._changed()

    async def _answer(self, way: _Way, data: bytes) -> None:
        self.answers += 1
        fault = self.fault if self._of in data else Fault.NONE
        if fault in _OF_ANSWERS or fault is Fault.BLACK_HOLE:
            self._hit()
        way.lost = way.lost or fault in {Fault.SWALLOW, Fault.BLACK_HOLE}
        if fault is Fault.CUT_ANSWER:
            way.client.write(data[: len(data) // 2])
        if fault in {Fault.RESET_ANSWER, Fault.END_ANSWER, Fault.CUT_ANSWER}:
            way.end(reset=fault is Fault.RESET_ANSWER)
            return
        if fault is Fault.HOLD_ANSWERS:
            await self.until(lambda: self.fault is not Fault.HOLD_ANSWERS)
        while self.fault is Fault.DRIP and len(data) > 1 and not way.lost:
            way.client.write(data[:1])
            data = data[1:]
            with anyio.move_on_after(1 / DRIP):
                await self.until(lambda: self.fault is not Fault.DRIP)
        if fault is Fault.LATE:
            await anyio.sleep(self.delay)
        if not way.lost:
            way.client.write(data)
        self._changed()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy to the server of a URL while the context is open."""
    proxy = Proxy(url)
    await proxy.listen()
    try:
        yield proxy
    finally:
        with anyio.CancelScope(shield=True):
            await proxy.close()
