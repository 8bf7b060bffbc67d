"""A TCP proxy in a process of its own that delays everything by a fixed time, in each direction."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from _helper import helper


class _Side(asyncio.Protocol):
    """One side of a connection.

    What it receives is written to the other side after the delay, in the same order.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._coming: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._coming.append(data)
        asyncio.get_running_loop().call_later(self._delay, self._pass_on)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - see `asyncio.Protocol`
        """See `asyncio.Protocol`: the other side ends too, after all that was received."""
        asyncio.get_running_loop().call_later(self._delay, self._end)

    def write(self, data: bytes) -> None:
        """Send to the peer of this side."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection to the peer of this side."""
        if self._transport is not None:
            self._transport.close()

    def _pass_on(self) -> None:
        if self.other is not None:
            self.other.write(self._coming.popleft())

    def _end(self) -> None:
        if self.other is not None:
            self.other.close()


class _Near(_Side):
    """The client's side, which opens the connection to the server when a client connects."""

    def __init__(self, delay: float, host: str, port: int) -> None:
        super().__init__(delay)
        self._address = host, port
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        assert self._transport is not None
        self._transport.pause_reading()
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        far = _Side(self._delay)
        far.other = self
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, *self._address)
        except OSError:
            self.close()
            return
        assert self._transport is not None
        if self._transport.is_closing():
            far.close()
            return
        self.other = far
        self._transport.resume_reading()


@contextlib.contextmanager
def farther(url: str, delay: float) -> Iterator[str]:
    """The URL of a proxy in front of the server of a URL, which adds this many seconds in each direction."""
    there = urlsplit(url)
    script = str(Path(__file__))
    with helper(sys.executable, script, f"{there.hostname}", f"{there.port}", f"{delay}", ready=True) as port:
        user, at, _ = there.netloc.rpartition("@")
        yield urlunsplit(there._replace(netloc=f"{user}{at}127.0.0.1:{port}"))


async def _main(host: str, port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Near(delay, host, port), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _watch() -> None:
    sys.stdin.read()  # until the process that started this one ends
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
