"""HTTP connections that can't block the service: clients that send nothing or take nothing are cut off."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 10_000
"""The maximum number of connections of each server; further ones are closed at once."""
_LOOK: Final = 10.0
"""Seconds between two checks of a connection."""
_PATIENCE: Final = 3
"""How many consecutive checks may find an incomplete request, or that the client has not read on."""
_SILENCE: Final = 15
"""Seconds of silence after which the system asks whether a client is there. For as long it asks again."""
_AHEAD: Final = 65_536
"""How much of further requests is read while one waits, in bytes. With more, the wait is cut off, too."""


class Connection(H11Protocol):
    """One connection, which is checked from time to time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._left = 0  # bytes of answers that the client had not read at the last check
        self._late = 0  # consecutive checks at which it was late
        self._seen = self.cycle  # the request at the last check
        self._next = self.loop.call_later(_LOOK, self._look)
        _watch(transport.get_extra_info("socket"))
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`: read on while a request waits, so that the end of its client is seen."""
        super().data_received(data)
        is_waiting = self.flow.read_paused and not self.cycle.more_body
        if is_waiting and len(self.conn.trailing_data[0]) <= _AHEAD:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._next.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`: the client has taken something."""
        self._late = 0
        super().resume_writing()

    def _look(self) -> None:
        left, before = self.transport.get_write_buffer_size(), self._left
        self._left = left
        cycle, seen = self.cycle, self._seen
        self._seen = cycle
        # A check may find a busy client between two requests, but then its last request has changed.
        is_incomplete = cycle is seen and (
            cycle is None or cycle.response_complete or cycle.more_body or self.flow.read_paused
        )
        self._late = self._late + 1 if (0 < left >= before) or (not left and is_incomplete) else 0
        if self._late > _PATIENCE:
            self.transport.abort()
        else:
            self._next = self.loop.call_later(_LOOK, self._look)


def _watch(client: socket.socket) -> None:
    """Let the system end a connection whose client has disappeared: while a request waits, nobody writes."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _SILENCE), ("TCP_KEEPINTVL", _SILENCE // 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # otherwise the system's own times apply
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
