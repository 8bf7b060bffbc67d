"""Proxies in front of real servers that change one of their answers."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar
from urllib.parse import urlsplit


class Proxy:
    """Passes everything on, but replaces a part of the answer with the number `at` by `new`."""

    def __init__(self, url: str) -> None:
        self._there = urlsplit(url)
        self.at = -1
        self.seen = 0
        self.new = b""
        self._open: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The URL of the proxy, while it is running."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            yield self._there._replace(
                netloc=self._there.netloc.replace(str(self._there.port), str(port))
            ).geturl()
            server.close()
            for task in self._open:
                task.cancel()
            if self._open:
                await asyncio.wait(self._open)

    def _is_next(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.at

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._open.add(me)
        there, out = await asyncio.open_connection(self._there.hostname, self._there.port)
        passing = asyncio.ensure_future(self._pass(reader, out))
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(there, writer)
        finally:
            self._open.discard(me)
            passing.cancel()
            writer.transport.abort()
            out.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                out.write(data)
                await out.drain()
        out.transport.abort()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class NatsProxy(Proxy):
    """Changes the body of a message that has one, or otherwise its headers."""

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await there.readuntil(b"\r\n"):
            words = line.split()
            if words[0] in {b"MSG", b"HMSG"}:
                data = (await there.readexactly(int(words[-1]) + 2))[:-2]
                sizes = 1 + (words[0] == b"HMSG")
                size = int(words[-sizes]) if sizes == 2 else 0
                headers, body = data[:size], data[size:]
                headers, body = self._changed(headers, body)
                numbers = [len(headers), len(headers) + len(body)][-sizes:]
                head = b" ".join([*words[:-sizes], *(b"%d" % number for number in numbers)])
                writer.write(head + b"\r\n" + headers + body + b"\r\n")
            else:
                writer.write(line)
            await writer.drain()

    def _changed(self, headers: bytes, body: bytes) -> tuple[bytes, bytes]:
        if not self._is_next():
            return headers, body
        if body:
            return headers, self.new
        return headers.replace(b"\r\n", b"\r\nNats-Sequence: x\r\n", 1), body


class EndlessNats(NatsProxy):
    """Each page of a list has another name in it, and the last one is far away."""

    def _changed(self, headers: bytes, body: bytes) -> tuple[bytes, bytes]:
        if b"stream_info_response" not in body and b"consumer_list_response" not in body:
            return headers, body
        page = json.loads(body)
        self.seen += 1
        page |= {"total": 1 << 50, "consumers": [{"name": f"n{self.seen}"}]}
        page["state"] = page.get("state", {}) | {"subjects": {f"n{self.seen}": 1}}
        return headers, json.dumps(page).encode()


class PostgresProxy(Proxy):
    """Changes the first value of a row."""

    _ROW: ClassVar = b"D"

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await there.readexactly(1))  # whether it has TLS
        while kind := await there.readexactly(1):
            (size,) = struct.unpack(">I", await there.readexactly(4))
            body = await there.readexactly(size - 4)
            if kind == self._ROW and self._is_next():
                count, first = struct.unpack(">Hi", body[:6])
                body = struct.pack(">Hi", count, len(self.new)) + self.new + body[6 + max(0, first) :]
            writer.write(kind + struct.pack(">I", len(body) + 4) + body)
            await writer.drain()
