"""The client of a service without its driver, which is imported at the first command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from intervalq.errors import BackendUnsupported, MissingExtra, StoreError
from intervalq.store import shown_url
from intervalq_stores.remote._url import where

if TYPE_CHECKING:
    from intervalq_stores.remote._connection import Connection, Trip

PATIENCE: Final = 5.0
"""Seconds that a step may take, including connecting."""
LOOKING: Final = 60.0
"""Seconds that a look at many tasks may take."""
_PROCESSES: Final = set[int]()
"""The processes that have used gRPC: this one, and those from which it was forked, which have its threads."""


class Client:
    """Makes a `Connection` for the running event loop at the first command, and passes commands on to it."""

    def __init__(self, url: str, what: str) -> None:
        if any(find_spec(name) is None for name in ("grpc", "google.protobuf")):
            raise MissingExtra(what, "client")
        self.where = where(url)
        self.url = shown_url(url)
        self.where.warn(self.url)
        self._what = what
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def apply(
        self,
        kind: str,
        name: str,
        command: bytes,
        now: int | None,
        *,
        known: bytes = b"",
        patience: float = PATIENCE,
    ) -> tuple[bytes, Trip]:
        """See `Connection.apply`."""
        return await (await self._opened()).apply(
            kind, name, command, known=known, now=now, patience=patience
        )

    async def listening(
        self, kind: str, name: str
    ) -> AbstractAsyncContextManager[Callable[[], Awaitable[bytes]]]:
        """See `Connection.listening`."""
        return (await self._opened()).listening(kind, name, PATIENCE)

    async def aclose(self) -> None:
        """Close all connections, unless they belong to an event loop that has ended."""
        connection, self._connection = self._connection, None
        if connection is not None and self._loop is asyncio.get_running_loop():
            await connection.aclose()

    async def _opened(self) -> Connection:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise BackendUnsupported(
                self.url,
                "the driver of a service needs asyncio: run this with asyncio; under trio, use sqlite:// or "
                "memory://",
            ) from None
        _PROCESSES.add(os.getpid())
        if len(_PROCESSES) > 1:
            raise StoreError(
                self.url,
                "the process that this one was forked from has used a service, so this one can't: start "
                "processes with 'spawn' or 'forkserver', or fork before the first use",
            )
        if self._loop is not loop:  # the connections ended with the other event loop
            self._loop, self._connection, self._turn = loop, None, asyncio.Lock()
        if self._connection is not None:
            return self._connection
        async with self._turn:
            connection = self._connection  # another caller may have created it in the meantime
            if connection is None:
                kind = await to_thread.run_sync(self._import, abandon_on_cancel=True)
                connection = self._connection = kind(self.where, self.url)
            return connection

    def _import(self) -> type[Connection]:
        try:
            from intervalq_stores.remote._connection import Connection  # noqa: PLC0415 - needs the extra
        except ImportError as missing:
            raise MissingExtra(self._what, "client") from missing
        return Connection
