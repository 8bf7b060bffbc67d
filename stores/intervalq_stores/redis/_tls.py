"""Connects to a Redis with TLS, or explains why that failed; and limits the size of answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from redis import exceptions as driver
from redis.asyncio.connection import AbstractConnection, SSLConnection

from intervalq_stores._transport import clear_text, fault_of

_SLOW: Final = 1.0
"""Seconds after which to check whether the server has TLS at all."""

MAX_BYTES: Final = 512 << 20
"""The largest answer: twice the size of a thousand task values of the default maximum size."""

_PLAIN: Final = "write redis:// for clear text"


async def secured(connection: AbstractConnection) -> None:
    """Connect it.

    Raises:
        TLSFault: TLS was required and failed.
    """
    connecting = asyncio.ensure_future(connection.connect())  # type: ignore[no-untyped-call]
    try:
        if isinstance(connection, SSLConnection):
            await asyncio.wait([connecting], timeout=_SLOW)
            if not connecting.done() and await _speaks_clear_text(connection):
                raise clear_text(_PLAIN)
        await connecting
        bound(connection)
    except driver.ConnectionError as error:
        fault = fault_of(error, "ssl_ca_certs=PATH", _PLAIN)
        if fault is None:
            raise
        raise fault from error
    finally:
        if not connecting.done():
            connecting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await connecting


class _Bounded:
    """A stream that ends the connection if an answer is larger than any can be."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.left = MAX_BYTES

    async def read(self, size: int = -1) -> bytes:
        """As the driver calls it."""
        data = await self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise driver.ConnectionError(f"an answer has more than {MAX_BYTES} bytes")
        return data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else the driver uses
        return getattr(self._stream, name)


def bound(connection: AbstractConnection) -> None:
    """Limit the size of the next answer, whatever size the server announces."""
    parser = getattr(connection, "_parser", None)
    stream = getattr(parser, "_stream", None)
    if isinstance(stream, _Bounded):
        stream.left = MAX_BYTES
    elif stream is not None and parser is not None:
        parser._stream = _Bounded(stream)  # noqa: SLF001 - there is no other place for it


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
