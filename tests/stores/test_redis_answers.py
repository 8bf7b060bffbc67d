"""A server, or an impostor, that sends more answers than it may: the connection is closed."""

from __future__ import annotations

import asyncio

import pytest

from intervalq.errors import StoreUnavailable
from intervalq.rules import Inspect
from intervalq.store import open_store
from intervalq_stores.redis import _tls as redis_tls


@pytest.mark.anyio
async def test_an_answer_without_an_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_tls, "MAX_BYTES", 1 << 20)
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while request := await reader.read(65_536):
            if b"EVAL" not in request:
                writer.write(b"+OK\r\n" * request.count(b"*"))
                continue
            writer.write(b"$4294967296\r\n")
            try:
                while True:
                    writer.write(b"x" * 65_536)
                    sent += 65_536
                    await writer.drain()
            except OSError:
                break
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        store = open_store(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(StoreUnavailable, match="more than 1048576 bytes"):
            await store.apply("q", Inspect())
        await store.aclose()
    assert sent < 64 << 20
