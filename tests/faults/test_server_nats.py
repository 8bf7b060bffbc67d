"""What a NATS may do to an active queue, and what the queue's callers see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from faults.proxy import Fault, proxied
from faults.work import INTERVAL, stands_still, working
from intervalq._shard import listener
from intervalq.errors import StoreFull
from intervalq.rules import Advance, Hold, Settings
from intervalq.store import Store
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats import queues as nats_queues
from intervalq_stores.nats._queue import stream as nats_queue_stream
from intervalq_stores.nats._queue.step import Full, Plain, entries
from intervalq_stores.nats._queue.stream import History
from intervalq_stores.nats.queues import NATSStore
from servers import Server

OwnServer = Callable[..., Server]
LOG = "intervalq.log."


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """A function that sends requests to JetStream's API."""
    connection = nats_server.Server(url)
    try:
        yield connection.ask
    finally:
        await connection.close()


# --- what a queue works through ---------------------------------------------------------------------


async def test_the_server_is_killed_and_comes_back(own_nats: OwnServer) -> None:
    server = own_nats()
    async with working([server.url] * 3) as work:
        for _ in range(3):
            server.stop()
            await stands_still(work)
            server.start()
            await work.more(2)
        await work.stop()
        work.check()
        assert [handle._shard().regressions for handle in work.handles] == [0, 0, 0], "files outlive a crash"


Ask = Callable[..., Awaitable[Any]]


async def purge(ask: Ask, name: str) -> None:
    await ask("STREAM.PURGE.intervalq-log")


async def purge_all(ask: Ask, name: str) -> None:
    await ask("STREAM.PURGE.intervalq-state")
    await ask("STREAM.PURGE.intervalq-log", {"filter": LOG + name})


async def delete(ask: Ask, name: str) -> None:
    await ask("STREAM.DELETE.intervalq-log")


async def remake(ask: Ask, name: str) -> None:
    made = await ask("STREAM.INFO.intervalq-log")
    await ask("STREAM.DELETE.intervalq-log")
    await ask("STREAM.CREATE.intervalq-log", made["config"])


async def memory(ask: Ask, name: str) -> None:
    made = await ask("STREAM.INFO.intervalq-log")
    await ask("STREAM.DELETE.intervalq-log")
    with suppress(nats_server.Refused):  # a shard was faster, and its log is a file again
        await ask("STREAM.CREATE.intervalq-log", made["config"] | {"storage": "memory"})


@pytest.mark.parametrize("lose", [purge, purge_all, delete, remake, memory])
async def test_a_lost_log_is_begun_anew_after_a_quiet_interval(
    own_nats: OwnServer, lose: Callable[[Ask, str], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Every call still ends, and each handle reports the loss."""
    server = own_nats()
    async with asking(server.url) as ask, working([server.url] * 2) as work:
        for times in range(1, 4):
            await lose(ask, work.name)
            while not all(handle._shard().regressions == times for handle in work.handles):
                await work.more(1)
        await work.stop()
        work.check(losses=3)
    assert caplog.text.count("was lost or dropped") == 6


async def test_a_log_that_is_removed_in_part(own_nats: OwnServer) -> None:
    """A shard that knows the record continues; a newcomer gets the checkpoint, or starts over."""
    server = own_nats()
    async with asking(server.url) as ask, working([server.url] * 2) as work:
        await work.more(25)
        newcomer = NATSStore(server.url)
        for _ in range(5):
            while (kept := await newcomer._history.checkpoint(work.name)) is None:
                await work.more(1)
            keeps = kept.position.sequence
            await ask("STREAM.PURGE.intervalq-log", {"filter": LOG + work.name, "seq": keeps})
            await work.more(3)
        await work.stop()
        work.check()
        assert [handle._shard().regressions for handle in work.handles] == [0, 0]
        await newcomer.aclose()


def known_by(store: Store, queue: str) -> int:
    """The entry of a queue's log from which a handle's store continues; it needs no earlier one."""
    assert isinstance(store, NATSStore)
    base = store._known(queue).base
    assert base is not None
    return base.sequence


async def test_a_newcomer_to_a_log_without_its_beginning(
    own_nats: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer can't know the old record; it starts over with a quiet interval, and the others follow."""
    monkeypatch.setattr(nats_queues, "_CHECKPOINT", 1 << 40)  # one written meanwhile would do as a beginning
    server = own_nats()
    async with asking(server.url) as ask, working([server.url] * 2) as work:
        # Keep the entries that a handle needs to continue; otherwise it would be a newcomer itself. It needs
        # more than the latest ones: it continues from the last entry up to which it knows everything.
        needed = 0
        while needed < 2:  # the first one would do as a beginning
            await work.more(1)
            needed = min(known_by(handle._shard().connection.store, work.name) for handle in work.handles)
        await ask("STREAM.PURGE.intervalq-log", {"filter": LOG + work.name, "seq": needed})
        newcomer = NATSStore(server.url)
        _, answer = await asyncio.gather(
            work.handles[0].resume(),  # for which its handle reads the log from there
            newcomer.apply(work.name, Advance(settings=Settings(INTERVAL), nonce="theirs", take=1)),
        )
        assert answer.first is not None
        assert answer.first.ticket == 1
        assert answer.first.due >= answer.now + INTERVAL - answer.blur
        await newcomer.aclose()
        while not all(handle._shard().regressions for handle in work.handles):
            await work.more(1)
        await work.stop()
        work.check(losses=1)
        assert {handle._shard().state.generation for handle in work.handles} == {"theirs"}  # type: ignore[union-attr]  # they have one
        assert [handle._shard().regressions for handle in work.handles] == [1, 1]


async def test_acknowledgements_get_lost(own_nats: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has the command: it repeats the result when asked again, and has the command once.

    Entries are counted, not unused slots, of which a busy machine may leave any number. Only
    acknowledgements of entries are lost, because other answers would be awaited for seconds. The client's
    patience is short only until then, because on such a machine most answers would come too late for it.
    """
    sent, append = 0, History.append

    async def counted(history: History, token: str, step: Plain | Full, increment: int) -> Any:
        nonlocal sent
        sent += 1
        return await append(history, token, step, increment)

    monkeypatch.setattr(History, "append", counted)
    server = own_nats()
    async with proxied(server.url) as bad, working([bad.url, server.url]) as work:
        for _ in range(10):
            with monkeypatch.context() as patch:
                patch.setattr(nats_server, "_AGAIN", 0.05)
                await bad.begin(Fault.SWALLOW, once=True, of=b'"val":')
                await bad.until(lambda: bad.hits > 0)
            await work.more(2)
        await work.stop()
        work.check()
        assert [handle._shard().regressions for handle in work.handles] == [0, 0]
        store = NATSStore(server.url)
        last = await store._history.last(work.name)
        assert last is not None
        assert entries(last.value) <= sent
        await store.aclose()


async def test_checkpoints_fail_for_as_long_as_they_are_not_needed(own_nats: OwnServer) -> None:
    """Without the stream for them, the queue goes on; the stream is created again when it is missed."""
    server = own_nats()
    async with asking(server.url) as ask, working([server.url] * 2) as work:
        await ask("STREAM.DELETE.intervalq-state")
        await work.more(40)
        await work.stop()
        work.check()


async def test_the_server_has_no_room_left(own_nats: OwnServer, tmp_path: Any) -> None:
    """Calls wait until there is some again."""
    settings = tmp_path / "nats.conf"
    settings.write_text("jetstream { max_file_store: 2MB }\n")
    server = own_nats("-c", str(settings))
    async with asking(server.url) as ask, working([server.url] * 2) as work:
        connection = nats_server.Server(server.url)
        await ask("STREAM.CREATE.filler", {"name": "filler", "subjects": ["filler"], "storage": "file"})

        async def fill(size: int) -> None:
            while True:
                await connection.publish("filler", {}, b"x" * size)

        for size in (20_000, 1):
            with pytest.raises(StoreFull):
                await fill(size)
        await stands_still(work)
        store = NATSStore(server.url)
        with pytest.raises(StoreFull):
            await store.apply(work.name, Hold(length=0))
        await ask("STREAM.DELETE.filler")
        await work.more(2)
        await work.stop()
        work.check()
        await store.aclose()
        await connection.close()


@pytest.mark.parametrize("fault", [Fault.SWALLOW, Fault.REFUSE])
async def test_a_wake_up_that_gets_lost_costs_a_question(
    nats_url: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_PATIENCE", {True: 200_000, False: 100_000})
    monkeypatch.setattr(nats_server, "_AGAIN", 0.1)
    async with proxied(nats_url) as bad, working([bad.url, nats_url]) as work:
        await work.handles[1].pause()
        while not all(handle._shard().conversation._parked.is_on for handle in work.handles):
            await checkpoint()
        await bad.begin(fault)
        await work.handles[1].resume()
        await work.more(2, handle=1)
        await bad.heal()
        await work.more(2)
        await work.stop()
        work.check()
        await work.handles[1].drop()


async def test_a_pause_is_heard_of_and_its_end_wakes(nats_url: str) -> None:
    async with working([nats_url] * 3) as work:
        for _ in range(3):
            await work.handles[0].pause()
            while not all(handle._shard().conversation._parked.is_on for handle in work.handles):
                await checkpoint()
            begun = len(work.starts)
            with anyio.fail_after(20):
                await work.handles[1].resume()
                assert len(work.starts) == begun
                await work.more(1)
        await work.stop()
        work.check()
        await work.handles[0].drop()


def test_what_is_kept_is_more_than_is_needed() -> None:
    """Several consecutive checkpoints may fail, because their writers may have been killed."""
    assert nats_queue_stream.KEPT >= 8 * nats_queues._CHECKPOINT
