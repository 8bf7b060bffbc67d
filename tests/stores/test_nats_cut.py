"""Steps on NATS that are interrupted, by a killed server or a failed call: which worker learns what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from intervalq.errors import StoreUnavailable
from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND, Change, Delete, Modify, Select, Work
from intervalq_stores.nats._task import claims as nats_task_claims
from intervalq_stores.nats._task import delivery as nats_task_delivery
from intervalq_stores.nats._task import pull as nats_task_pull
from intervalq_stores.nats._task.commit import outdated
from intervalq_stores.nats._task.holdings import Holdings
from intervalq_stores.nats._task.message import STREAM
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

opened = nats_sessions.opened


def before_moves(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], Any]) -> None:
    """Call a function before each settlement that takes more than an acknowledgement."""
    move = Holdings._move

    async def late(self: Holdings, held: Any, *more: Any) -> bool:
        await do(held.row.id)
        return await move(self, held, *more)

    monkeypatch.setattr(Holdings, "_move", late)


async def test_what_a_killed_server_could_not_remove_is_not_worked_on(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server delivers both messages of a changed task, to different workers, as first deliveries."""
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
    """The server was killed meanwhile, and may have forgotten the claim, so others may have the task."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a", key="k"))
        rows = await claim(store, session, queue)

        async def restart(_: str) -> None:
            await anyio.to_thread.run_sync(server.stop)
            await anyio.to_thread.run_sync(server.start)
            await store._stream.connection()

        before_moves(monkeypatch, restart)
        with pytest.raises(StoreUnavailable):
            await store.apply(Work(session, done(*rows)))
        assert await ids_in(store, queue) == ["a"]


async def test_a_claim_of_the_last_moments_is_given_up_however_long_it_was_waited_for(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed may have forgotten the claim."""
    waited = 100 * SECOND
    monkeypatch.setattr(nats_task_pull, "stopwatch", lambda: stopwatch() - waited)
    monkeypatch.setattr(nats_task_delivery, "_FORGOTTEN", waited // 2)
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store, 3600 * SECOND)
        await store.apply(inserts(queue, "a"))
        rows = await claim(store, session, queue)
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)
        assert await settled(store, session, *done(*rows)) == ("a",)
        assert await ids_in(store, queue) == ["a"]


def restarted(server: Server) -> None:
    """Kill the server and start it again before it has written down its last deliveries."""
    server.stop()
    for state in server.folder.path.rglob("o.dat"):
        state.unlink()
    server.start()


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_is_said_of_a_claim_that_was_given_up_is_not_about_the_next_one(
    own_nats: Callable[..., Server], queue: str, key: str | None
) -> None:
    """The next claim is of the same message by the same session; else the key's next task would begin too."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a", "b", key=key))
        before = await claim(store, session, queue)
        await anyio.to_thread.run_sync(restarted, server)
        after = [row for row in await claim(store, session, queue, limit=9) if row.id == "a"]
        assert [row.id for row in (*before, *after)] == ["a", "a"]
        assert await settled(store, session, *done(*before)) == ("a",)
        assert await ids_in(store, queue) == ["a", "b"]
        assert await settled(store, session, *done(*after)) == ()
        assert await ids_in(store, queue) == ["b"]


async def test_a_loss_whose_answer_is_lost_is_not_taken_for_a_settlement(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that finds the loss then fails to claim the next task. Its repetition ends the session."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a"))
        rows = await claim(store, session, queue)
        await anyio.to_thread.run_sync(restarted, server)

        async def fails(*_: object) -> None:
            raise StoreUnavailable(store.url, "the stream has no leader at the moment")

        command = Work(session, done(*rows), queues=(queue,), limit=1)
        with monkeypatch.context() as broken:
            broken.setattr(nats_task_claims.Claims, "pull", fails)
            with pytest.raises(StoreUnavailable):
                await store.apply(command)
        worked = await store.apply(command)
        assert (worked.lost, worked.alive) == (("a",), False)
        assert await ids_in(store, queue) == ["a"]


async def test_a_claim_that_came_by_a_connection_which_ended_before_it_was_looked_at_is_given_up(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have the task; so may they have tasks given up when the next connection was made."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as one, aclosing(NATSTaskStore(server.url)) as two:
        session = await begun(one)
        await one.apply(inserts(queue, "a", key="k"))
        theirs: list[Any] = []

        async def late(*about: Any) -> Any:
            found = await outdated(*about)
            if not theirs:
                theirs.append("begin")
                await anyio.to_thread.run_sync(restarted, server)
                await one._sessions[session].holdings.connection()
                theirs[:] = await claim(two, await begun(two), queue)
            return found

        monkeypatch.setattr(nats_task_claims, "outdated", late)
        mine = await claim(one, session, queue)
        assert [row.id for row in theirs] == ["a"]
        assert mine == []


async def test_a_claim_whose_time_has_passed_while_it_was_looked_at_is_nobodys(
    opened: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With replicas, the check takes until there is a leader again; by then others may have done the task."""
    first, second = opened(), opened()
    mine, theirs = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a", key="k"))
    looks: list[bool] = []
    done_there: list[str] = []

    async def slow(*about: Any) -> Any:
        found = await outdated(*about)
        if not looks:
            looks.append(True)
            while not done_there:
                for row in await second.pull(Work(theirs, queues=(queue,), limit=1, begins=2), 20.0):
                    assert await settled(second, theirs, *done(row)) == ()
                    done_there.append(row.id)
        return found

    monkeypatch.setattr(nats_task_claims, "outdated", slow)
    with anyio.fail_after(30):
        assert await claim(first, mine, queue) == []
    assert done_there == ["a"]
    assert (await first.apply(Select(session=mine))) == ()


async def test_a_claim_is_sure_while_there_is_a_connection_and_its_time_has_not_come(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a"))
        (row,) = await claim(store, session, queue)
        connection = await store._stream.connection()
        assert store.holds(session, row)
        assert not store.holds("another", row)
        assert not store.holds(session, row._replace(version=row.version + 1))
        with monkeypatch.context() as later:
            later.setattr(
                "intervalq_stores.nats._task.holdings.stopwatch", lambda: stopwatch() + 3600 * SECOND
            )
            assert not store.holds(session, row)
        assert store.holds(session, row)
        await anyio.to_thread.run_sync(server.stop)
        with anyio.fail_after(30):
            await connection.ended.wait()
        assert not store.holds(session, row)
        await anyio.to_thread.run_sync(restarted, server)
        await store.apply(Work(session))
        assert not store.holds(session, row), "it was given up"


async def test_a_restart_shortens_claims_once_whoever_comes_first(
    own_nats: Callable[..., Server], queue: str
) -> None:
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        session = await begun(store)
        await store.apply(inserts(queue, "a"))
        await claim(store, session, queue)
        holdings = store._sessions[session].holdings
        held = holdings.deliveries["a"]
        await anyio.to_thread.run_sync(restarted, server)
        before = held.deadline
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(holdings.connection)
        assert before - held.deadline <= SECOND


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
async def test_what_was_removed_with_the_stream_is_lost(
    own_nats: Callable[..., Server], queue: str, key: str | None, again: bool
) -> None:
    """This holds however the loss is noticed; claims in a new stream, which counts anew, are others'."""
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store, aclosing(NATSTaskStore(server.url)) as other:
        session, theirs = await begun(store), await begun(other)
        await store.apply(inserts(queue, "a", "b", key=key))
        mine = await claim(store, session, queue)
        ready = store._sessions[session].holdings.deliveries["a"].ready
        if ready is not None:
            await ready
        await other._stream.server.ask(f"STREAM.DELETE.{STREAM}")
        with pytest.raises(StoreUnavailable):
            await store.apply(Work(session, done(*mine)))
        if again:
            other._stream.forget()
            await other.apply(inserts(queue, "a", key=key))
            rows = await claim(other, theirs, queue)
            assert [row.version for row in rows] == [row.version for row in mine]
        worked = await store.apply(Work(session, done(*mine)))
        assert worked.lost == ("a",)
        assert not worked.alive, "it was asked for again, which would count as done"
        assert await ids_in(other, queue) == (["a"] if again else [])


async def test_what_is_lost_is_remembered_until_it_was_told(
    opened: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated settlement that is lost would count as done; so the session ends, as it was lost before."""
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
