"""Connects to a Redis with TLS, or explains why that failed; and limits the size of answers."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from typing import Any, Final

from redis import exceptions as driver
from redis.asyncio.connection import AbstractConnection, Connection, DefaultParser, SSLConnection

from intervalq.errors import InvalidOption
from intervalq_stores._transport import Remedies, clear_text, fault_of, look_again

_SLOW: Final = 0.5
"""Seconds after which to check whether the server has TLS at all."""

MAX_BYTES: Final = 512 << 20
"""The largest answer: twice the size of a thousand task values of the default maximum size."""

_MAX_LINES: Final = 10_000_000
"""The largest number of values in an answer: more than half a million tasks, or keys of a thousand looks."""

_HUGE: Final = re.compile(rb"\n[*%~>|][0-9]{8,}\r")
"""The beginning of a list of more values than that. The parser would reserve memory for all of them and clear
it, which blocks the event loop for as long as a server likes."""

_BEGINNING: Final = 24
"""More bytes than such a beginning has, unless it is refused for its length."""

_REMEDIES: Final = Remedies(
    authority="ssl_ca_certs=PATH",
    own="ssl_certfile=PATH and ssl_keyfile=PATH",
    plain="write redis:// for clear text",
    tls="begin it with rediss://, or rediss+cluster:// for a cluster",
)


async def secured(connection: AbstractConnection) -> None:
    """Connect it.

    Raises:
        TLSFault: server and client don't agree on TLS.
        OSError, ValueError: the file of a certificate can't be used: somebody may be replacing it.
    """
    context = connection.ssl_context.get() if isinstance(connection, SSLConnection) else None
    connecting = asyncio.ensure_future(connection.connect())  # type: ignore[no-untyped-call]
    try:
        if isinstance(connection, SSLConnection):
            await asyncio.wait([connecting], timeout=_SLOW)
            if not connecting.done() and await _speaks_clear_text(connection):
                raise clear_text(_REMEDIES)
        await connecting
    except driver.ConnectionError as error:
        fault = fault_of(error, _REMEDIES)
        if fault is None and _was_cut(error) and isinstance(connection, Connection):
            fault = await look_again(connection.host, int(connection.port), context, _REMEDIES)
        if fault is None:
            raise
        raise fault from error
    finally:
        if not connecting.done():
            connecting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await connecting


def check_files(connection: AbstractConnection) -> None:
    """Read the files of TLS for this connection.

    Raises:
        InvalidOption: options of TLS can't be used, such as the file of a certificate.
    """
    try:
        if isinstance(connection, SSLConnection):
            connection.ssl_context.get()
    except (OSError, ValueError) as error:  # the driver would report it as a server that can't be reached
        raise InvalidOption(f"the options ssl_... of the URL can't be used: {error}") from error


def _was_cut(error: Exception) -> bool:
    """Whether the server took the connection and then ended it; other errors have classes of their own."""
    return type(error) is driver.ConnectionError and not isinstance(
        error.__context__, ConnectionRefusedError | socket.gaierror
    )


class _Bounded:
    """A stream that ends the connection if an answer is larger than any can be."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._before = b"\n"
        self.begin()

    def begin(self) -> None:
        """Expect the next answer."""
        self._left, self._lines = MAX_BYTES, _MAX_LINES

    async def read(self, size: int = -1) -> bytes:
        """As the driver calls it."""
        return self._checked(await self._stream.read(size))

    async def readexactly(self, size: int) -> bytes:
        """As the driver calls it without hiredis."""
        self._left -= size
        return self._checked(b"") + await self._stream.readexactly(size)

    async def readline(self) -> bytes:
        """As the driver calls it without hiredis."""
        return self._checked(await self._stream.readline())

    def _checked(self, data: bytes) -> bytes:
        self._left -= len(data)
        self._lines -= data.count(b"\n")
        if self._left < 0:
            raise driver.ConnectionError(f"an answer has more than {MAX_BYTES} bytes")
        if self._lines < 0 or _HUGE.search(data) or _HUGE.search(self._before + data[:_BEGINNING]):
            raise driver.ConnectionError(f"an answer has more than {_MAX_LINES} values")
        self._before = (self._before + data[-_BEGINNING:])[-_BEGINNING:]
        return data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the driver uses
        return getattr(self._stream, name)


class Parser(DefaultParser):  # type: ignore[misc,valid-type] # one of two classes
    """The driver's parser, which believes no length that a server announces, from the first answer on."""

    def on_connect(self, connection: AbstractConnection) -> None:
        """As the driver calls it."""
        super().on_connect(connection)
        stream: Any = self._stream
        self._stream: Any = _Bounded(stream)


def bound(connection: AbstractConnection) -> None:
    """Limit the size of the next answer, whatever size the server announces."""
    stream = getattr(getattr(connection, "_parser", None), "_stream", None)
    if isinstance(stream, _Bounded):
        stream.begin()


async def _speaks_clear_text(connection: SSLConnection) -> bool:
    """Whether the server answers a clear-text PING; it ignores TLS, waiting for the end of a line."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SLOW):
            reader, writer = await asyncio.open_connection(connection.host, connection.port)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in {b"+", b"-"}
            finally:
                writer.transport.abort()
    return False
