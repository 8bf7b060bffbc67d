"""Three replicas of the stream of tasks: what is reported as done is done on all, whichever is asked next."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import anyio
import pytest
from nats.aio.msg import Msg

import servers
from faults.nats_cluster import Cluster, clustered
from faults.needs import need_server
from intervalq.tasks.rules import SECOND, Change, Count, Modify, QueueStats, Row, Select
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task.message import PREFIX, subject_of
from intervalq_stores.nats.tasks import NATSTaskStore
from stores.nats_sessions import begun, claim, done, inserts, settled

EACH = 60


@pytest.fixture
def queue() -> str:
    return f"q.{secrets.token_hex(6)}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with clustered(Path(tmp_path_factory.mktemp("cluster")), 3, "2m") as cluster:
            yield cluster
    except servers.NotInstalledError as error:
        need_server(error)


@pytest.fixture
async def stores(cluster: Cluster) -> AsyncIterator[list[NATSTaskStore]]:
    """One client for each node, connected to that node only."""
    urls = [f"{node.url}?replicas=3" for node in cluster.nodes.values()]
    async with (
        aclosing(NATSTaskStore(urls[0])) as one,
        aclosing(NATSTaskStore(urls[1])) as two,
        aclosing(NATSTaskStore(urls[2])) as three,
    ):
        yield [one, two, three]


async def claim_all(store: NATSTaskStore, session: str, queue: str, count: int = 1) -> list[Row]:
    """There are many tasks, because the consumer's leader may learn of a message after two other nodes."""
    rows: list[Row] = []
    with anyio.fail_after(60):
        while len(rows) < count:
            rows += await claim(store, session, queue, limit=count - len(rows))
    return rows


async def seen(store: NATSTaskStore, queue: str, *ids: str) -> list[Row]:
    """The tasks, once a look finds these: any node answers it, even one that is behind."""
    with anyio.fail_after(60):
        while True:
            rows = list(await store.apply(Select(queue=queue)))
            if sorted(row.id for row in rows) == sorted(ids):
                return rows


async def test_what_is_acknowledged_can_not_be_replaced(stores: list[NATSTaskStore], queue: str) -> None:
    """The server answers `+ACK` before it removes the message: then others could store it anew."""
    first, *others = stores
    mine = await begun(first)
    back: list[str] = []
    for number in range(4):  # whose consumers are led by several nodes
        name = f"{queue}.{number}"
        await first.apply(inserts(name, *(f"t{number}" for number in range(EACH))))
        for row in await claim_all(first, mine, name, EACH):
            assert await settled(first, mine, *done(row)) == ()
            anew = batch.instead(subject_of(name, row.id), row.version, b"1", {})
            for other in others:
                with suppress(Conflict):
                    await batch.store(other._stream.server, [anew])
                    back.append(row.id)
        await seen(first, name)
    assert back == []


async def test_what_was_changed_is_not_worked_on_as_it_was(
    stores: list[NATSTaskStore], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that changes it is killed before it has removed what the change replaced."""
    first, other, _ = stores
    await first.apply(inserts(queue, "a"))
    (row,) = await seen(first, queue, "a")
    stored = anyio.Event()

    async def never(_: int) -> bool:
        stored.set()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(first._stream, "remove", never)
    async with anyio.create_task_group() as group:
        group.start_soon(first.apply, Modify(changes=(Change("a", row.version, json="1"),)))
        await stored.wait()
        group.cancel_scope.cancel()
    (after,) = await claim_all(other, await begun(other), queue)
    assert after.json == "1"


async def test_a_node_may_hand_out_a_second_earlier(stores: list[NATSTaskStore], queue: str) -> None:
    """No client hears of a node that has re-read its files, so the server waits a second longer."""
    first = stores[0]
    mine = await begun(first, 60 * SECOND)
    await first.apply(inserts(queue, "a"))
    (row,) = await claim_all(first, mine, queue)
    assert first._sessions[mine].holdings.deliveries["a"].wait == 60 * SECOND
    assert (await first.pulled((queue,)))[queue].config["ack_wait"] == 61 * SECOND * 1_000
    assert await settled(first, mine, *done(row)) == ()


async def test_who_asks_a_node_that_leads_no_more_is_told_the_truth(
    stores: list[NATSTaskStore], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a node may not know yet of a message that the others have stored."""
    first, other, _ = stores
    mine = await begun(first)
    await first.apply(inserts(queue, "a"))
    (row,) = await claim_all(first, mine, queue)
    first._sessions[mine].holdings.deliveries["a"].sent = True  # without an answer
    await other.apply(Modify(changes=(Change("a", row.version, json="1"),)))
    asked: list[str] = []
    revoked = first._stream.revoked

    async def stale(name: str, sequences: Sequence[int]) -> tuple[set[int], int]:
        asked.append(name)
        return (set(), 0) if len(asked) < 3 else await revoked(name, sequences)

    monkeypatch.setattr(first._stream, "revoked", stale)
    assert await settled(first, mine, *done(row)) == ("a",)
    assert len(asked) == 3


async def test_many_are_acknowledged_at_once_but_what_others_changed(
    stores: list[NATSTaskStore], queue: str
) -> None:
    first, other, _ = stores
    mine = await begun(first)
    await first.apply(inserts(queue, *(f"t{number}" for number in range(EACH))))
    rows = await claim_all(first, mine, queue, EACH)
    await other.apply(Modify(changes=(Change(rows[7].id, rows[7].version, json="1"),)))
    assert await settled(first, mine, *done(*rows)) == (rows[7].id,)
    await seen(other, queue, rows[7].id)


async def test_a_queue_is_empty_only_if_what_says_so_is_not_behind(
    stores: list[NATSTaskStore], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer's leader may not know of a task yet, and a former leader of the stream may answer."""
    first, other, _ = stores
    mine = await begun(other)
    look, subjects, last = Count(names=(queue,)), first._stream.subjects, first._stream.last
    asked: list[str] = []

    async def behind() -> list[object]:
        return []

    async def listed(pattern: str) -> dict[str, int]:
        asked.append(pattern)
        return {} if len(asked) < 4 else await subjects(pattern)

    async def former(pattern: str) -> tuple[int, Msg | None]:
        asked.append(pattern)
        return (0, None) if len(asked) < 4 else await last(pattern)

    assert await first.apply(look) == ()
    await other.apply(inserts(queue, "a"))
    monkeypatch.setattr(first._stream, "consumers", behind)
    assert await first.apply(look) == (QueueStats(queue, 1, ready=1),)
    for name, stale in (("subjects", listed), ("last", former)):
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(first._stream, name, stale)
            assert await first.apply(look) == (QueueStats(queue, 1, ready=1),)
        assert len(asked) > 3, "it looked again"
    (row,) = await claim_all(other, mine, queue)
    assert await first.apply(look) == (QueueStats(queue, 1, ready=1),)
    assert await settled(other, mine, *done(row)) == ()
    assert await first.apply(look) == ()


async def test_what_is_left_of_removed_tasks_is_none(
    stores: list[NATSTaskStore], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that ended them is killed before it has removed the record of that."""
    first, other, _ = stores
    mine = await begun(other)
    await other.apply(inserts(queue, "a", key="k"))

    async def never(_: int) -> bool:
        return False

    monkeypatch.setattr(other._stream, "remove", never)
    (row,) = await claim_all(other, mine, queue)
    assert await settled(other, mine, *done(row)) == ()
    assert await first._stream.subjects(f"{PREFIX}.w.{encoded(queue)}.>"), "a tombstone"
    with anyio.fail_after(60):  # the answering node may be behind, and know of more
        while await first.apply(Count(names=(queue,))):
            pass
