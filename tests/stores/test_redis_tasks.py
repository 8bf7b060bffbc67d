from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Change,
    Command,
    Count,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    QueueStats,
    Select,
    Work,
)
from intervalq.tasks.store import MAX_ROWS, Ranging, Transactional
from intervalq.testing import TaskSuite, WakingTaskSuite
from intervalq_stores.redis import tasks as redis_tasks
from intervalq_stores.redis._scripts import Script
from intervalq_stores.redis.tasks import RedisTaskStore
from servers import Server
from stores import redis_sessions
from stores.redis_sessions import INDEX, KEYS, MARKS, META, begun, claim, deleted, inserts

server = redis_sessions.server
client = redis_sessions.client
store = redis_sessions.store


class TestRedisTaskStore(TaskSuite, WakingTaskSuite):
    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return redis_url


class TestValkeyTaskStore(TaskSuite, WakingTaskSuite):
    steps = 15  # the scripts are the same

    @pytest.fixture
    def store_url(self, valkey_url: str) -> str:
        return valkey_url


class TestTasksOnACluster(TaskSuite, WakingTaskSuite):
    steps = 15

    @pytest.fixture
    def store_url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


def kept(client: Any) -> list[bytes]:
    """The contents of the index, except for sessions."""
    return [member for member in client.zrange(INDEX, 0, -1) if member[:1] != b"e"]


def test_what_it_is_not(server: Server) -> None:
    store = RedisTaskStore(server.url)
    assert not isinstance(store, Transactional)
    assert not isinstance(store, Ranging)
    assert repr(store) == f"<RedisTaskStore {server.url}>"


async def test_a_batch_is_no_larger_than_what_the_server_may_do_in_one_step() -> None:
    store = RedisTaskStore("redis://127.0.0.1:1")  # nothing is sent there
    parts = (Insert("q", "1", "a", follow_up="b"),) * 10_001
    with pytest.raises(errors.UnsupportedOperation, match="at most 10000 tasks"):
        await store.apply(Modify(inserts=(Insert("q", "1", "b", awaits=len(parts)), *parts)))


# --- what is left ------------------------------------------------------------------------------------


async def test_nothing_is_left_of_what_is_done(store: RedisTaskStore, client: Any) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", "b"))
    await store.apply(inserts("c", "d", "e", key="k"))
    await store.apply(inserts("f", dedupe="x", dedupe_for=0))
    settled: tuple[Delete, ...] = ()
    for lease in (None, SECOND, None, None, None, None, None):
        worked = await store.apply(Work("s", settled, queues=("q",), limit=2, lease=lease, idle=True))
        settled = deleted(worked.claimed)
    await store.apply(Work("s", settled, queues=("q",), limit=1, idle=True))
    await store.apply(Beat("s"))
    assert kept(client) == [b"i\0\1qs"]
    await store.apply(End("s"))
    assert {key: client.exists(key) for key in KEYS} == {**dict.fromkeys(KEYS, 0), META: 1}
    assert client.hgetall(META).keys() == {b"version", b"clock"}


async def test_a_beat_forgets_marks_that_have_ended(store: RedisTaskStore, client: Any) -> None:
    now = 1_000_000 * SECOND
    names = [f"d{number}" for number in range(20)]
    for name in names:
        await store.apply(inserts(name, dedupe=name, dedupe_for=5), now)
    await store.apply(Modify(deletes=tuple(Delete(name, 0) for name in names)), now)
    for later, left in ((4, 20), (5, 4), (5, 0)):
        await store.apply(Beat("nobody"), now + later)
        assert client.hlen(MARKS) == left
    assert kept(client) == []


async def test_a_mark_ends_to_the_microsecond(store: RedisTaskStore) -> None:
    now = 1_000_000 * SECOND
    await store.apply(inserts("a", dedupe="d", dedupe_for=5), now)
    await store.apply(Modify(deletes=(Delete("a", 0),)), now + 100)
    assert (await store.apply(inserts("b", dedupe="d"), now + 104)).existing == (("b", "a"),)
    assert len((await store.apply(inserts("c", dedupe="d"), now + 105)).inserted) == 1


async def test_tasks_that_a_command_takes_away_make_room_in_an_inbox(store: RedisTaskStore) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", "b", key="k"))
    full = Insert("q", "1", "c", "k", inbox=1)
    for deletes, changes in (((Delete("b", 0),), ()), ((), (Change("b", 0, queue="other"),))):
        with pytest.raises(errors.InboxFull):
            await store.apply(Modify(inserts=(full,)))
        with pytest.raises(errors.InboxFull):
            await store.apply(Modify(inserts=(full, full._replace(id="d")), deletes=deletes, changes=changes))
        (row,) = (await store.apply(Modify(inserts=(full,), deletes=deletes, changes=changes))).inserted
        assert (row.place, row.waiting) == (2, True)
        await store.apply(Modify(deletes=(Delete("c", 0),)))
        if deletes:
            await store.apply(inserts("b", key="k"))


async def test_what_a_command_inserts_may_replace_what_it_inserted_before(store: RedisTaskStore) -> None:
    first = Insert("q", "1", "a", "k")
    both = (await store.apply(Modify(inserts=(first, first._replace(id="b", replace=True))))).inserted
    assert [(row.id, row.place, row.waiting) for row in both] == [("a", 1, False), ("b", 1, False)]
    assert await store.apply(Select()) == both[1:]


async def test_what_replaces_a_line_leaves_what_is_claimed(store: RedisTaskStore) -> None:
    await begun(store, "s")
    now = 1_000_000_000 * SECOND
    await store.apply(inserts("a", "b", key="k"), now)
    worked = await store.apply(Work("s", queues=("q",), limit=5, lease=10), now)
    assert [row.id for row in worked.claimed] == ["a"]
    for later, names in ((9, ["a", "c0"]), (9, ["a", "c1"]), (10, ["c2"])):
        await store.apply(inserts(f"c{names[-1][1:]}", key="k", replace=True), now + later)
        rows = await store.apply(Select(queue="q"))
        assert sorted(row.id for row in rows) == names
        assert [row.waiting for row in rows if row.id != "a"] == [len(names) > 1]


async def test_who_is_idle_is_told_of_what_is_ready_soon(store: RedisTaskStore, client: Any) -> None:
    """It is notified once, and must then declare itself idle again; as nobody listens, so is the next one."""
    await begun(store, "s", "t")
    idle = Work("s", queues=("q", "p"), limit=1, idle=True)
    both = [b"i\0\1ps", b"i\0\1pt", b"i\0\1qs", b"i\0\1qt"]

    def waiting() -> list[bytes]:
        return [member for member in kept(client) if member[:1] == b"i"]

    for commands, reported in (
        ([inserts("a", key="k", delay=3600 * SECOND), inserts("b", delay=3600 * SECOND)], False),
        ([Modify(changes=(Change("a", 0, json="2"), Change("b", 0, at=0, queue="other")))], False),
        ([Work("s", queues=("other",), limit=0)], False),
        ([Modify(changes=(Change("a", 1, delay=SECOND // 2),))], True),
        ([inserts("c", delay=SECOND // 2), Modify(deletes=(Delete("c", 0),))], True),
        ([inserts("d", key="d", delay=SECOND // 2), Modify(deletes=(Delete("d", 0),))], True),
    ):
        for session in ("s", "t"):
            await store.apply(Work(session, queues=idle.queues, limit=1, idle=True))
        assert waiting() == both
        for command in commands:
            await store.apply(command)
        assert waiting() == ([] if reported else both)
    await store.apply(Modify(deletes=(Delete("a", 2),)))
    await store.apply(idle)
    assert len((await store.apply(Work("s", queues=("other",), limit=1))).claimed) == 1
    assert waiting() == []


async def test_each_database_has_tasks_of_its_own(store: RedisTaskStore, server: Server) -> None:
    await store.apply(inserts("a"))
    async with aclosing(RedisTaskStore(server.url[:-1] + "5")) as other:
        assert await other.apply(Select()) == ()
        assert len((await other.apply(inserts("a"))).inserted) == 1


# --- many --------------------------------------------------------------------------------------------


async def test_as_many_parts_as_a_command_may_have(store: RedisTaskStore, client: Any) -> None:
    """They are tasks of one key: each delete makes the next one claimable, and each change moves one."""
    await begun(store, "s")
    ids = [f"t{number}" for number in range(MAX_ROWS)]
    await store.apply(inserts(*ids, key="k"))
    assert await store.apply(Count()) == (QueueStats("q", MAX_ROWS, ready=1, inbox=MAX_ROWS - 1),)
    await store.apply(Modify(depends=tuple(Depend(id_, 0) for id_ in ids)))
    changes = tuple(Change(id_, 0, queue="other", json="1", delay=SECOND**2) for id_ in ids)
    moved = (await store.apply(Modify(changes=changes))).changed
    assert [(row.place, row.waiting) for row in moved] == [(n + 1, n > 0) for n in range(MAX_ROWS)]
    assert await store.apply(Count()) == (QueueStats("other", MAX_ROWS, future=1, inbox=MAX_ROWS - 1),)
    await store.apply(Modify(deletes=deleted(moved)))
    assert kept(client) == []
    await store.apply(inserts(*ids))
    rows = await claim(store, "s", MAX_ROWS)
    assert sorted(row.id for row in rows) == sorted(ids)
    again = tuple(Change(row.id, 1, error="no") for row in rows)
    worked = await store.apply(Work("s", again, queues=("q",), limit=MAX_ROWS))
    assert {(row.version, row.claims, row.error) for row in worked.claimed} == {(3, 2, "no")}
    (stats,) = await store.apply(Count())
    assert stats == QueueStats("q", MAX_ROWS, claimed=MAX_ROWS, most_claims=2)
    await store.apply(End("s"))
    await store.apply(Modify(deletes=tuple(Delete(id_, 4) for id_ in ids)))
    assert kept(client) == []


COUNTED: Final = """
local server = redis
local counted = function(how)
  return function(...)
    local reply = server[how](...)
    server.call('INCR', 'commands')
    server.call('INCRBY', 'replies', type(reply) == 'table' and #reply or 1)
    return reply
  end
end
local redis = { call = counted('call'), pcall = counted('pcall') }
"""


async def test_what_a_command_costs_does_not_grow_with_those_that_wait(
    store: RedisTaskStore, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and their parts are counted within the server, before and after 100,000 tasks are inserted."""
    plain = redis_tasks._script
    keyed = Insert("q", "1", "keyed", "k", inbox=10**6)
    steps: list[Command[Any]] = [
        Modify(inserts=(Insert("q", "1", "one"), keyed)),
        Work("s", queues=("q",), limit=1, lease=SECOND),
        Work("s", queues=("q", "other"), limit=100),
        Count(names=("q",)),
        Modify(deletes=(Delete("one", 0), Delete("keyed", 0))),
        Beat("s"),
        Select(queue="q", limit=10),
    ]

    async def costs(thousands: int, line: int) -> list[tuple[int, int]]:
        client.flushdb()
        await begun(store, "s")
        for number in range(thousands):
            ids = [f"{number} {each}" for each in range(MAX_ROWS)]
            await store.apply(Modify(inserts=tuple(Insert("q", "1", id_, at=0) for id_ in ids)))
        await store.apply(inserts(*(f"line {number}" for number in range(line)), key="k"))
        found = []
        for command in steps:
            client.delete("commands", "replies")
            with monkeypatch.context() as patch:
                patch.setattr(redis_tasks, "_script", lambda name: Script(COUNTED + plain(name).text))
                await store.apply(command)
            found.append((int(client.get("commands")), int(client.get("replies"))))
        return found

    few = await costs(1, 50)
    assert await costs(100, 950) == few
    assert max(commands for commands, _ in few) <= 20
    assert max(replies for _, replies in few) < 500
