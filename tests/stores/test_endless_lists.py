"""A list of a server that never ends is an error, before it fills the memory."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from intervalq.errors import CorruptState
from intervalq.ledger import Ledger, _ledger
from intervalq.ledger.rules import Answer, Claim, Command, Look
from intervalq.ledger.store import open_ledger_store
from intervalq.store import open_store, scheduling
from intervalq.tasks.rules import Count
from intervalq.tasks.store import open_task_store
from intervalq_stores.memory.ledgers import MemoryLedgerStore
from intervalq_stores.nats import _lists as nats_lists
from intervalq_stores.redis import _client as redis_client
from stores.odd_answers import EndlessNats
from stores.test_redis_answers import fine, impostor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def names(url: str) -> None:
    store = open_store(url)
    try:
        await store.names()
    finally:
        await store.aclose()


async def ledger_names(url: str) -> None:
    store = open_ledger_store(url)
    try:
        await store.names()
    finally:
        await store.aclose()


async def schedules(url: str) -> None:
    store = open_store(url)
    try:
        await scheduling(store).read_schedules()
    finally:
        await store.aclose()


async def queues_of_tasks(url: str) -> None:
    store = open_task_store(url)
    try:
        await store.apply(Count())
    finally:
        await store.aclose()


@pytest.mark.parametrize("look", [names, schedules, queues_of_tasks])
async def test_nats(
    look: Callable[[str], Awaitable[None]], nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_lists, "MAX_LISTED", 20)
    proxy = EndlessNats(nats_url)
    async with proxy.running() as url:
        with anyio.fail_after(20), pytest.raises(CorruptState, match="no end"):
            await look(url)
    assert proxy.seen < 100


@pytest.mark.parametrize("look", [names, ledger_names])
@pytest.mark.parametrize("page", [b"*0\r\n", b"*1\r\n$3\r\nkey\r\n"])
async def test_redis(
    look: Callable[[str], Awaitable[None]], page: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "MAX_LISTED", 20)
    endless = b"*2\r\n$1\r\n5\r\n" + page
    async with impostor(lambda request: [endless if b"SCAN" in request else fine(request)]) as place:
        with anyio.fail_after(20), pytest.raises(CorruptState, match="without an end"):
            await look(f"redis://{place}")


class Endless(MemoryLedgerStore):
    """A store whose pages of a ledger never end: always the same one, or empty ones."""

    def __init__(self, *, empty: bool) -> None:
        super().__init__(f"memory://{secrets.token_hex(4)}")
        self._empty = empty
        self._pages = 0

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        await anyio.lowlevel.checkpoint()
        answer = await super().apply(ledger, command, now)
        if not isinstance(command, Look):
            return answer
        self._pages += 1
        return (
            answer._replace(rows=(), cursor=f"{self._pages}")
            if self._empty
            else answer._replace(cursor="here")
        )


@pytest.mark.parametrize("empty", [False, True])
async def test_pages_of_a_ledger(empty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ledger, "_MAX_EMPTY", 20)
    store = Endless(empty=empty)
    await store.apply("run", Claim("s", 60_000_000, ("a",)))
    async with Ledger("run", store=store) as ledger:
        with anyio.fail_after(20), pytest.raises(CorruptState, match="no end"):
            [row async for row in ledger.rows()]
