"""A server, or an impostor, that sends more answers than it may: the connection is closed."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
from redis._parsers import _AsyncRESP2Parser
from redis.asyncio.connection import Connection

from intervalq.errors import IntervalqError, StoreError, StoreUnavailable
from intervalq.ledger.rules import Count, Look
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Inspect
from intervalq.store import open_store
from intervalq.tasks.rules import Cancel, Modify, Sessions
from intervalq.tasks.store import open_task_store
from intervalq_stores.redis import _tls as redis_tls
from intervalq_stores.redis import ledgers as redis_ledgers
from intervalq_stores.redis._task_keys import WAKE
from intervalq_stores.redis.tasks import RedisTaskStore
from servers import redis_client


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


HUGE = [
    [b"*1000000000\r\n"],
    [b"*7\r\n:1\r\n*", b"10000000\r\n"],
    [b"%1000000000\r\n"],
    [b"*5\r\n", b":1\r\n" * 70],
]


@asynccontextmanager
async def impostor(answers: Callable[[bytes], list[bytes]]) -> AsyncIterator[str]:
    """The host and port of something that gives these pieces as the answer to what it receives."""
    open_: set[object] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        with suppress(OSError):
            while request := await reader.read(65_536):
                for piece in answers(request):
                    writer.write(piece)
                    await writer.drain()
                    await anyio.lowlevel.checkpoint()
        writer.transport.abort()
        open_.discard(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        while open_:
            await anyio.lowlevel.checkpoint()


def fine(request: bytes) -> bytes:
    return b"+OK\r\n" * len(re.findall(rb"\*\d+\r\n\$", request))


@pytest.mark.anyio
@pytest.mark.parametrize("first", [b"CLIENT", b"EVAL"])
@pytest.mark.parametrize("pieces", HUGE)
async def test_no_memory_is_reserved_for_a_list_that_a_server_only_announces(
    first: bytes, pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's parser would clear gigabytes of memory, during which the event loop stands still."""
    if len(pieces[-1]) > 100:
        monkeypatch.setattr(redis_tls, "_MAX_LINES", 50)
    async with impostor(lambda request: pieces if first in request else [fine(request)]) as place:
        store = open_store(f"redis://{place}")
        with pytest.raises(StoreUnavailable, match=f"more than {redis_tls._MAX_LINES} values"):
            await store.apply("q", Inspect())
        await store.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [b"$2000000\r\n", b"*100000000\r\n", b"*1\r\n$1048570\r\n"])
async def test_a_parser_without_hiredis_is_bounded_too(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_tls, "MAX_BYTES", 1 << 20)
    connection = Connection()
    connection._reader = asyncio.StreamReader()
    connection._reader.feed_data(answer)
    connection._reader.feed_eof()
    parser: Any = _AsyncRESP2Parser(socket_read_size=65_536)
    parser.on_connect(connection)
    parser._stream = redis_tls._Bounded(connection._reader)
    with pytest.raises(redis.ConnectionError, match="an answer has more than"):
        await parser.read_response()


@pytest.mark.anyio
async def test_a_cluster_has_no_more_slots_than_it_can() -> None:
    slots = b"*1\r\n*3\r\n:0\r\n:8589934592\r\n*2\r\n$1\r\nh\r\n:1\r\n"
    async with impostor(lambda request: [slots if b"SLOTS" in request else fine(request)]) as place:
        store = open_store(f"redis+cluster://{place}")
        with pytest.raises(StoreError, match="CLUSTER SLOTS can't be read"):
            await store.apply("q", Inspect())
        await store.aclose()


@pytest.mark.parametrize("place", [0, 3])
def test_numbers_of_ledgers_are_numbers(place: int) -> None:
    reply: list[Any] = [1, 1, 0, 0, [], [], b"", []]
    assert redis_ledgers._answer(Count(), reply).found
    reply[place] = b"x"
    with pytest.raises(TypeError):
        redis_ledgers._answer(Count(), reply)


@pytest.mark.anyio
async def test_wrong_notices_of_outcomes_are_ignored(redis_url: str) -> None:
    """Everybody who may publish can send them."""
    store = RedisTaskStore(redis_url)
    task = secrets.token_hex(16)
    with redis_client(redis_url) as client:
        async with store.awaited([task]) as ended:
            for message in ("{", "5", "[[]]", "[" * 100_000, json.dumps([task])):
                assert client.publish(f"{WAKE}{store._awaited._who}", message) == 1
            with anyio.fail_after(20):
                await ended()
            assert store._awaited._reading is not None
            assert not store._awaited._reading.done()
    await store.aclose()


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
    def answers(request: bytes) -> list[bytes]:
        return [(shape + b"\r\n") * (len(fine(request)) // 5)]

    async with impostor(answers) as place:
        url = f"redis://{place}"
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
