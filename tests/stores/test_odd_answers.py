"""One odd answer of a server, whichever it is, causes a documented error and nothing else."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

import anyio
import pytest

from intervalq.errors import IntervalqError, StoreUnavailable
from intervalq.ledger.rules import Claim, Look
from intervalq.ledger.rules import Count as CountRows
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Advance, Drop, Hold, Inspect, Resume, Settings
from intervalq.store import open_store, scheduling
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Count, Outcomes, Select, Sessions
from intervalq.tasks.store import open_task_store
from stores.odd_answers import NatsProxy, PostgresProxy, Proxy

pytestmark = pytest.mark.anyio

EVIL = b'{"error": {"err_code": "x", "description": "\\u001b[2J\xc2\x9b"}}'
JSONS = [
    b"[]",
    b"5",
    b'{"error": []}',
    b"[" * 100_000,
    EVIL,
    b"\xff",
    b'{"seq": "x", "config": 5, "state": 5}',
]
_RUNS = 6
CELLS = [b"x", b"", b"\xff\xfe", b"[" * 100_000, b'{"state": 5, "now": 1}', b"9" * 5_000]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def pace(url: str) -> None:
    store, queue = open_store(url), secrets.token_hex(8)
    settings = Settings(1_000)
    try:
        for _ in range(2):
            await store.apply(queue, Advance(settings=settings, nonce="n", take=1))
        await store.apply(queue, Inspect())
        await store.names()
        await store.apply(queue, Hold(settings=settings))
        await store.apply(queue, Resume(settings=settings))
        await store.apply(queue, Drop())
    finally:
        await store.aclose()


async def schedule(url: str) -> None:
    store, name = open_store(url), secrets.token_hex(8)
    try:
        await scheduling(store).swap_schedule(name, None, "1")
        await scheduling(store).read_schedules()
        await scheduling(store).swap_schedule(name, "1", None)
        await store.advice()  # type: ignore[attr-defined]
    finally:
        await store.aclose()


async def do_tasks(url: str) -> None:
    queue = secrets.token_hex(8)
    async with Tasks(url) as tasks:
        await tasks.insert(queue, 1, key="k")
        await tasks.insert(queue, 2, key="k")
        claim = await tasks.try_claim(queue)
        if claim is not None:
            claim.value  # noqa: B018 - it is read
            await claim.ack()
        await tasks.tasks(queue)
        async with tasks.lock(queue):
            pass


async def look_at_tasks(url: str) -> None:
    store = open_task_store(url)
    try:
        for command in (Select(), Count(), Sessions(), Outcomes()):
            if url.startswith("postgresql") or not isinstance(command, Outcomes):
                await store.apply(command)
        await store.advice()  # type: ignore[attr-defined]
    finally:
        await store.aclose()


async def keep(url: str) -> None:
    store, name = open_ledger_store(url), secrets.token_hex(8)
    try:
        await store.apply(name, Claim("s", 60_000_000, ("a", "b")))
        await store.apply(name, Look("", 10))
        await store.apply(name, CountRows())
        await store.names()
    finally:
        await store.aclose()


async def is_refused(proxy: Proxy, odd: list[bytes], use: Callable[[str], Awaitable[None]]) -> None:
    """Use a store again and again, each time with another one of its answers changed."""
    async with proxy.running() as url:
        await use(url)
        answers = proxy.seen
        assert answers > 3
        for number in range(0, answers, -(-answers // _RUNS)):
            proxy.seen, proxy.at, proxy.new = 0, number, odd[number % len(odd)]
            try:
                with anyio.fail_after(30):
                    await use(url)
            except IntervalqError as error:
                assert str(error).isprintable()
            proxy.at = -1


def no_tracebacks(records: list[logging.LogRecord]) -> None:
    assert [
        record.getMessage() for record in records if record.exc_info and "intervalq" not in record.name
    ] == []


@pytest.mark.parametrize(("use", "first"), [(schedule, 0), (schedule, 3), (look_at_tasks, 0)])
async def test_nats(
    use: Callable[[str], Awaitable[None]], first: int, nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await is_refused(NatsProxy(nats_url), JSONS[first:] + JSONS[:first], use)
    no_tracebacks(caplog.records)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("use", [pace, schedule, do_tasks, look_at_tasks, keep])
async def test_postgres(
    use: Callable[[str], Awaitable[None]], first: int, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await is_refused(PostgresProxy(postgres_url), CELLS[first:] + CELLS[:first], use)
    no_tracebacks(caplog.records)


INFO = b'INFO {"server_id": "x", "version": "2.15.0", "max_payload": 1048576, "headers": true}\r\n'
WIRE = {
    "a message of 2**50 bytes": b"MSG x 1 1125899906842624\r\n",
    "a size of 4,000 digits": b"MSG x 1 " + b"9" * 4_000 + b"\r\n",
    "an endless line": b"MSG " + b"x" * (2 << 20),
    "a list as INFO": b"INFO 5\r\n",
    "a deep INFO": b"INFO " + b"[" * 100_000 + b"\r\n",
    "no INFO at all": b"INFO \x1b[2J\xff\r\n",
    "an error without a text": b"-ERR \r\n",
    "an error that is not text": b"-ERR '\xff\x1b[2J'\r\n",
}


@pytest.mark.parametrize("what", WIRE)
async def test_what_no_nats_sends_ends_the_connection(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The driver would keep it for ever, or stop reading without saying so: each call would wait for 5 s."""
    over: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(asyncio.Event())
        writer.write(INFO)
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        try:
            await reader.readuntil(b"PUB")
            writer.write(WIRE[what])
            while await reader.read(65_536):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.transport.abort()
        over[-1].set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        store = open_store(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(StoreUnavailable) as raised:
            await store.names()
        await store.aclose()
        for one in over:
            await one.wait()
    assert "no answer within" not in str(raised.value)
    assert str(raised.value).isprintable()
    no_tracebacks(caplog.records)
