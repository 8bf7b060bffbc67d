"""Ended tasks stay ended: nothing is reported or begun before what it replaces is gone for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import anyio
import pytest

from intervalq.tasks import Tasks
from intervalq.tasks.rules import Change, Delete, Insert, Modify, Row, Work
from intervalq_stores.nats._task.message import PREFIX, token_of
from intervalq_stores.nats._task.stream import Stream
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server
from stores.nats_sessions import begun

EACH = 10
KINDS = [f"{PREFIX}.w.>", f"{PREFIX}.k.>"]


@pytest.fixture
async def stores(nats_url: str) -> AsyncIterator[tuple[NATSTaskStore, NATSTaskStore]]:
    """Stores as if in two processes."""
    async with aclosing(NATSTaskStore(nats_url)) as one, aclosing(NATSTaskStore(nats_url)) as two:
        yield one, two


async def test_what_was_settled_does_not_come_back_when_the_server_is_killed(
    own_nats: Callable[..., Server], queue: str
) -> None:
    """However it was settled, only the record of its removal is left, and the server's files say so, too."""
    server = own_nats()
    async with Tasks(server.url) as tasks:
        for number in range(EACH):
            await tasks.insert(queue, "key", key=f"k{number % 2}")
            await tasks.insert(queue, "dedupe", dedupe_key=f"d{number}", dedupe_for=1)
            await tasks.insert(queue, "plain")
        pull = tasks.pull(queue, name="p", max_ack_pending=None)
        done = 0
        while done < 3 * EACH:
            for claim in await pull.fetch(100):
                done += 1
                if done % 3 == 0:
                    await claim.nak()
                    done -= claim.attempt == 1
                elif claim.value == "plain":
                    await claim.ack(claim.change(queue=f"{queue}.next"))
                else:
                    await claim.ack()
        moved = await tasks.tasks(f"{queue}.next", limit=None)
        await tasks.modify(*(task.delete() for task in moved))
        await tasks.modify(*(task.delete() for task in await tasks.tasks(queue, limit=None)))
    async with aclosing(NATSTaskStore(server.url)) as store:
        with anyio.fail_after(30):  # the record of its removal also goes after a second
            while [name for kind in KINDS for name in await store._stream.subjects(kind)]:
                await anyio.sleep(0.05)
    await anyio.to_thread.run_sync(server.stop)
    await anyio.to_thread.run_sync(server.start)
    async with aclosing(NATSTaskStore(server.url)) as store:
        assert [name for kind in KINDS for name in await store._stream.subjects(kind)] == []


async def claimed(store: NATSTaskStore, session: str, queue: str) -> list[Row]:
    return list(await store.pull(Work(session, queues=(queue,), limit=1, begins=2), 20.0))


async def hold_back(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> tuple[anyio.Event, anyio.Event]:
    """Delay removals: returns a way to see that one waits, and a way to let them continue."""
    waits, goes = anyio.Event(), anyio.Event()
    remove = stream.remove

    async def late(sequence: int) -> bool:
        waits.set()
        await goes.wait()
        return await remove(sequence)

    monkeypatch.setattr(stream, "remove", late)
    return waits, goes


@pytest.mark.parametrize("verb", ["ack", "change"])
async def test_nobody_is_told_and_the_next_does_not_end_before_the_old_is_gone(
    stores: tuple[NATSTaskStore, NATSTaskStore], queue: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be killed in between: the one that ends the task, or the one that gets the token."""
    first, second = stores
    mine, theirs = await begun(first), await begun(second)
    await first.apply(Modify(inserts=tuple(Insert(queue, "1", id_, key="k") for id_ in ("a", "b"))))
    (row,) = await claimed(first, mine, queue)
    waits, goes = await hold_back(monkeypatch, first._stream)
    waits_too, goes_too = await hold_back(monkeypatch, second._stream)
    reported: list[str] = []

    async def settle(store: NATSTaskStore, session: str, row: Row) -> None:
        part = Delete(row.id, row.version) if verb == "ack" else Change(row.id, row.version, json="2")
        assert (await store.apply(Work(session, (part,)))).lost == ()
        reported.append(session)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(settle, first, mine, row)
            await waits.wait()
            (after,) = await claimed(second, theirs, queue)
            assert after.id == ("b" if verb == "ack" else "a")
            group.start_soon(settle, second, theirs, after)
            await waits_too.wait()
            for _ in range(5):  # round trips
                assert await first._stream.at(row.version) is not None
            assert reported == []
            assert (await first._stream.last(token_of(queue, "k")))[0] == after.version
            goes_too.set()
            while not reported:
                await anyio.lowlevel.checkpoint()
            assert reported == [theirs]
            goes.set()
    assert await first._stream.at(row.version) is None


async def test_what_nobody_waits_for_is_not_given_back_above_what_it_took_the_place_of(
    stores: tuple[NATSTaskStore, NATSTaskStore], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would exist again once its successor has ended, and be done again."""
    first, second = stores
    mine, theirs = await begun(first), await begun(second)
    await first.apply(Modify(inserts=(Insert(queue, "1", "a"),)))
    (row,) = await claimed(first, mine, queue)
    waits, _ = await hold_back(monkeypatch, first._stream)
    waits_too, goes_too = await hold_back(monkeypatch, second._stream)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(first.apply, Work(mine, (Change("a", row.version, json="2"),)))
            await waits.wait()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(claimed, second, theirs, queue)
                await waits_too.wait()
                leaving.cancel_scope.cancel()
            goes_too.set()
            (after,) = await claimed(second, theirs, queue)
            assert (after.id, after.json) == ("a", "2")
            assert await first._stream.at(row.version) is None
            group.cancel_scope.cancel()
