"""A server, or an impostor, that sends more answers than it may: the connection is closed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from intervalq.errors import IntervalqError, StoreUnavailable
from intervalq.ledger.rules import Look
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Inspect
from intervalq.store import open_store
from intervalq.tasks.rules import Cancel, Modify, Sessions
from intervalq.tasks.store import open_task_store
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


SHAPES = [
    b":5",
    b"_",
    b"+OK",
    b"$-1",
    b"*0",
    b"*1\r\n:1",
    b"*2\r\n:1\r\n*0",
    b"*2\r\n$1\r\n\xff\r\n*1\r\n*0",
    b"*2\r\n:3\r\n*0",
]


@pytest.mark.anyio
@pytest.mark.parametrize("shape", SHAPES)
async def test_answers_of_another_form_are_documented_errors(shape: bytes) -> None:
    open_: set[object] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        with suppress(OSError):
            while request := await reader.read(65_536):
                writer.write((shape + b"\r\n") * len(re.findall(rb"\*\d+\r\n\$", request)))
        writer.transport.abort()
        open_.discard(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stores: list[Any] = [open_store(url), open_task_store(url), open_ledger_store(url)]
        queues, tasks, ledgers = stores
        looks: list[Callable[[], Awaitable[object]]] = [
            *(queues.names, queues.advice, queues.read_schedules, tasks.advice, ledgers.names),
            *(partial(queues.apply, "q", Inspect()), partial(queues.swap_schedule, "s", None, "{}")),
            *(partial(tasks.apply, each) for each in (Modify(), Sessions(), Cancel(("a" * 32,)))),
            partial(ledgers.apply, "l", Look("", 10)),
        ]
        for look in looks:
            with suppress(IntervalqError):  # some forms are what some requests expect
                await look()
        for store in stores:
            await store.aclose()
        while open_:
            await anyio.lowlevel.checkpoint()
