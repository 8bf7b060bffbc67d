"""Steps on NATS that are cut short, by a server that is killed or a call that fails: who is told what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from intervalq.errors import StoreUnavailable
from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND, Change, Delete, Modify, Select, Work
from intervalq_stores import _nats_held, _nats_pull
from intervalq_stores._nats_holdings import Holdings
from intervalq_stores.nats_tasks import NATSTaskStore
from servers import Server
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

opened = nats_sessions.opened


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def before_moves(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], Any]) -> None:
    """Have something done each time before a claim is settled that takes more than an acknowledgement."""
    move = Holdings._move

    async def late(self: Holdings, held: Any, *more: Any) -> bool:
        await do(held.row.id)
        return await move(self, held, *more)

    monkeypatch.setattr(Holdings, "_move", late)


async def test_what_a_killed_server_could_not_remove_is_not_worked_on(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a task that was changed: it hands out both, to different workers, and both for the first time."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        await store.apply(inserts(queue, "a"))
        (row,) = await store.apply(Select(queue=queue))
        stored = anyio.Event()

        async def never(_: int) -> bool:
            stored.set()
            await anyio.sleep_forever()
            raise AssertionError

        monkeypatch.setattr(store._stream, "remove", never)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(store.apply, Modify(changes=(Change("a", row.version, json="2"),)))
                await stored.wait()
                await anyio.to_thread.run_sync(server.stop)
                group.cancel_scope.cancel()
    await anyio.to_thread.run_sync(server.start)
    async with aclosing(NATSTaskStore(server.url)) as one, aclosing(NATSTaskStore(server.url)) as two:
        work = [Work(await begun(store), queues=(queue,), limit=1, begins=2) for store in (one, two)]
        claims = [*await one.pull(work[0], 1.0), *await two.pull(work[1], 1.0)]
        assert [row.json for row in claims] == ["2"]


async def test_a_claim_is_not_settled_by_a_connection_for_which_it_was_not_checked(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was killed meanwhile, and may have forgotten the claim: others may have the task."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a", key="k"))
        rows = await claim(store, session, queue)

        async def restart(_: str) -> None:
            await anyio.to_thread.run_sync(server.stop)
            await anyio.to_thread.run_sync(server.start)
            await store._stream.link()

        before_moves(monkeypatch, restart)
        with pytest.raises(StoreUnavailable):
            await store.apply(Work(session, done(*rows)))
        assert await ids_in(store, queue) == ["a"]


async def test_a_claim_of_the_last_moments_is_given_up_however_long_it_was_waited_for(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed may have forgotten it."""
    waited = 100 * SECOND
    monkeypatch.setattr(_nats_pull, "stopwatch", lambda: stopwatch() - waited)
    monkeypatch.setattr(_nats_held, "_FORGOTTEN", waited // 2)
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store, 3600 * SECOND)
        await store.apply(inserts(queue, "a"))
        rows = await claim(store, session, queue)
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)
        assert await settled(store, session, *done(*rows)) == ("a",)
        assert await ids_in(store, queue) == ["a"]


async def test_what_is_lost_is_remembered_until_it_was_told(
    opened: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for again and lost counts as done, so the session ends: it was lost the first time."""
    first, second = opened(), opened()
    session = await begun(first)
    for id_ in ("a", "b"):
        await first.apply(inserts(queue, id_, key=id_))
    rows = {row.id: row for row in await claim(first, session, queue, limit=2)}
    await second.apply(Modify(changes=(Change("a", rows["a"].version, json="2"),)))
    fails = [True]

    async def fail(id_: str) -> None:
        if id_ == "b" and fails:
            fails.clear()
            raise StoreUnavailable("x", "y")

    before_moves(monkeypatch, fail)
    settled = tuple(Delete(id_, rows[id_].version) for id_ in ("a", "b"))
    with pytest.raises(StoreUnavailable):
        await first.apply(Work(session, settled))
    worked = await first.apply(Work(session, settled))
    assert (worked.alive, worked.lost) == (False, ("a",))
