from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Command,
    Count,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    QueueStats,
    Row,
    Select,
    Session,
    Sessions,
    Work,
)
from intervalq.tasks.store import MAX_ROWS, Ranging, Transactional
from intervalq.testing import TaskSuite, WakingTaskSuite
from intervalq_stores.redis import tasks as redis_tasks
from intervalq_stores.redis._ports import Script
from intervalq_stores.redis.tasks import RedisTaskStore
from servers import Server, redis_client

TASKS, INDEX, SESSIONS, MARKS, META = (
    f"intervalq:{{tasks}}:{part}" for part in ("tasks", "index", "sessions", "marks", "meta")
)
KEYS: Final = (TASKS, INDEX, SESSIONS, MARKS, META)


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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server(own_redis: Callable[..., Server]) -> Server:
    """One that a test may fill with what it likes."""
    return own_redis()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with redis_client(server.url) as client:
        yield client


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisTaskStore]:
    async with aclosing(RedisTaskStore(server.url)) as store:
        yield store


async def begun(store: RedisTaskStore, *sessions: str, expiry: int = 3600 * SECOND) -> None:
    for session in sessions:
        await store.apply(Begin(Session(session, "host", 7, expiry=expiry)))


async def claim(store: RedisTaskStore, session: str, limit: int = 1, **more: Any) -> tuple[Row, ...]:
    return (await store.apply(Work(session, queues=("q",), limit=limit, **more))).claimed


def inserts(*ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", f'"{id_}"', id_, **more) for id_ in ids))


def deleted(rows: tuple[Row, ...]) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)


def dump(client: Any) -> list[Any]:
    look = {b"hash": client.hgetall, b"zset": lambda key: client.zrange(key, 0, -1, withscores=True)}
    return [look.get(client.type(key), client.dump)(key) for key in KEYS]


def kept(client: Any) -> list[bytes]:
    """What the index has, but for sessions."""
    return [member for member in client.zrange(INDEX, 0, -1) if member[:1] != b"e"]


def test_what_it_is_not(server: Server) -> None:
    store = RedisTaskStore(server.url)
    assert not isinstance(store, Transactional)
    assert not isinstance(store, Ranging)
    assert repr(store) == f"<RedisTaskStore {server.url}>"


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
    """Once: it has to say again that it is idle. Nobody listens here, so the next one is told, too."""
    await begun(store, "s", "t")
    idle = Work("s", queues=("q", "p"), limit=1, idle=True)
    both = [b"i\0\1ps", b"i\0\1pt", b"i\0\1qs", b"i\0\1qt"]

    def waiting() -> list[bytes]:
        return [member for member in kept(client) if member[:1] == b"i"]

    for commands, told in (
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
        assert waiting() == ([] if told else both)
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
    """In one line, where each delete feeds the next one, and each change moves it."""
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
    """Counted within the server, as commands and as parts of their replies, before and with 100,000 tasks."""
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


# --- what can't be -----------------------------------------------------------------------------------


async def test_what_the_tables_cannot_hold_is_refused_as_a_whole(store: RedisTaskStore, client: Any) -> None:
    await begun(store, "s", "other")
    await store.apply(inserts("a"))
    before = dump(client)
    good = Insert("q", "1", "good")
    long = "x" * 70_000
    commands: list[Command[Any]] = [
        Modify(inserts=(good, Insert("q", "1", "b", **more)))
        for more in (
            {"at": 2**53},
            {"at": 2**70},
            {"delay": 2**53},
            {"attempt": 2**31},
            {"attempt": -1},
            {"dedupe_for": 2**52},
            {"key": long},
            {"error": "\ud800"},
        )
    ]
    commands += [
        Modify(inserts=(good,), changes=(Change("a", 0, **more),))
        for more in ({"delay": 2**53}, {"attempt": 2**31}, {"queue": long}, {"json": "\ud800"})
    ]
    commands += [
        Work("s", queues=(long,), limit=1),
        Work("s", queues=("q",), limit=1, lease=2**53),
        Begin(Session("new", expiry=2**52)),
        Begin(Session(long)),
        Count(names=(long,)),
    ]
    for command in commands:
        with pytest.raises(errors.StoreError):
            await store.apply(command)
        assert dump(client) == before, command
    version = 10**30
    with pytest.raises(errors.DependencyError):
        await store.apply(Modify(deletes=(Delete("a", version),)))


async def test_what_is_just_in_range_can_be_done(store: RedisTaskStore) -> None:
    await store.apply(Begin(Session("s", expiry=2**52 - 1)))
    most = {"attempt": 2**31 - 1, "dedupe_for": 2**52 - 1, "at": -(2**53) + 1}
    await store.apply(inserts("a", dedupe="d", **most))
    await store.apply(inserts("z", at=2**53 - 1))
    (row,) = await claim(store, "s", 2, lease=2**52, begins=2)
    assert (row.id, row.at, row.attempt, row.dedupe_for) == ("a", most["at"], 2**31, 2**52 - 1)
    assert (await store.apply(Beat("s"))).held == 1
    assert (await store.apply(Work("s", (Delete("a", 1),)))).lost == ()
    assert [row.at for row in await store.apply(Select())] == [2**53 - 1]


async def test_an_id_that_comes_twice_in_one_command_is_refused(store: RedisTaskStore) -> None:
    for more in ({}, {"key": "k"}):
        with pytest.raises(errors.DependencyError) as caught:
            await store.apply(inserts("a", "b", "a", **more))
        assert caught.value.inserts == ("a",)
    assert await store.apply(Select()) == ()
    await store.apply(inserts("a"))
    with pytest.raises(errors.DependencyError) as caught:
        await store.apply(Modify(changes=(Change("a", 0),), deletes=(Delete("a", 0),)))
    assert caught.value.changes == ("a",)
    assert len(await store.apply(Select())) == 1


PACKED: Final = b"\0" * 71
WORK: Final = Work("s", queues=("q",), limit=5)
BROKEN: Final[list[tuple[str, str | bytes, bytes, Command[Any]]]] = [
    (TASKS, "a", b"", WORK),
    (TASKS, "a", b"\0" * 70, Modify(inserts=(Insert("q", "1", "new"),), deletes=(Delete("a", 0),))),
    (TASKS, "a", PACKED, WORK),
    (TASKS, "a", PACKED[:-1] + b"\1", Modify(changes=(Change("a", 0),))),
    (TASKS, "a", b"\0\0\x80" + PACKED[3:], Select()),
    (TASKS, "held", PACKED, Beat("s")),
    (INDEX, b"r\0\1q\1" + b"\0" * 8 + b"ghost", b"0", WORK),
    (INDEX, b"r\0\1q\1" + b"\0" * 8 + b"a", b"0", WORK),
    (INDEX, b"s\0\1s\0\1qghost", b"0", End("s")),
    (INDEX, b"s\0\1s\0\1qa", b"0", End("s")),
    (INDEX, b"e\1" + b"\0" * 8 + b"ghost", b"0", Beat("s")),
    (INDEX, b"k\0\1q\0\1k\0\0\0\0ghost", b"0", Modify(deletes=(Delete("first", 0),))),
    (SESSIONS, "s", b"", WORK),
    (SESSIONS, "s", b"\0" * 34 + b"\1\1", Beat("s")),
    (SESSIONS, "s", b"\0", Sessions()),
    (MARKS, b"\0\1qd", b"x", Modify(inserts=(Insert("q", "1", "new", dedupe="d"),))),
    (META, "version", b"one", Count()),
    (META, b"h\0\1q", b"-1", WORK),
    (META, b"h\0\1q", b"many", Count()),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken[0]}-{broken[1]!r}-{broken[3]!r}"[:60])
async def test_what_is_broken_is_left_as_it_is(
    store: RedisTaskStore, client: Any, broken: tuple[str, str | bytes, bytes, Command[Any]]
) -> None:
    key, field, text, command = broken
    await begun(store, "lapsed", expiry=1)
    await begun(store, "s")
    await store.apply(inserts("held"))
    assert len(await claim(store, "lapsed")) == 1
    await store.apply(inserts("a", "b"))
    await store.apply(inserts("first", "second", key="k"))
    client.zadd(key, {field: 0}) if key == INDEX else client.hset(key, field, text)
    before = dump(client)
    with pytest.raises(errors.CorruptState):
        await store.apply(command)
    assert dump(client) == before


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_of_another_type_is_left_as_it_is(store: RedisTaskStore, client: Any, key: str) -> None:
    await begun(store, "s")
    await store.apply(inserts("a"))
    await store.apply(inserts("b", dedupe="d"))
    client.delete(key)
    client.set(key, "theirs")
    before = dump(client)
    commands = (inserts("new", dedupe="e"), WORK, Work("t", (Change("a", 0),)), End("s"), Begin(Session("t")))
    for command in commands:
        try:
            await store.apply(command)
        except errors.CorruptState:
            assert dump(client) == before
        else:
            assert command == commands[2], "nothing is lost, and nothing is written"
            assert dump(client) == before


async def test_tables_of_a_newer_version(store: RedisTaskStore, client: Any) -> None:
    await store.apply(inserts("a"))
    client.hset(META, "version", "3")
    before = dump(client)
    for command in (inserts("b"), Count(), WORK, Beat("s")):
        with pytest.raises(errors.VersionMismatch):
            await store.apply(command)
    assert dump(client) == before


async def test_a_text_that_is_none(store: RedisTaskStore, client: Any) -> None:
    await store.apply(inserts("a", "b"))
    client.hset(TASKS, "a", client.hget(TASKS, "a")[:-2] + b"\xff\xff")
    with pytest.raises(errors.CorruptState, match="isn't UTF-8"):
        await store.apply(Select())
    assert [row.id for row in await store.apply(Select(ids=("b",)))] == ["b"]


# --- the server --------------------------------------------------------------------------------------


async def test_scripts_that_the_server_has_forgotten(store: RedisTaskStore, client: Any) -> None:
    await begun(store, "s")
    for turn in ("a", "b"):
        client.script_flush()
        await store.apply(inserts(turn))
        client.script_flush()
        assert len(await claim(store, "s")) == 1


async def test_a_server_without_memory_takes_nothing_more_and_its_tasks_can_be_done(
    store: RedisTaskStore, client: Any
) -> None:
    await begun(store, "s", "t")
    await store.apply(inserts("a", "b"))
    await store.apply(inserts("c", "d", key="k", dedupe_for=SECOND))
    before = dump(client)
    client.config_set("maxmemory", 1)
    for command in (inserts("e"), inserts("e", key="k", replace=True), Modify(changes=(Change("a", 0),))):
        with pytest.raises(errors.StoreFull):
            await store.apply(command)
        assert dump(client) == before
    rows = await claim(store, "s", 9)
    assert sorted(row.id for row in rows) == ["a", "b", "c"]
    assert len((await store.apply(Work("s", deleted(rows), queues=("q",), limit=9, idle=True))).claimed) == 1
    await begun(store, "more")
    assert (await store.apply(Beat("t"))).alive
    await store.apply(End("s"))
    await store.apply(Modify(deletes=(Delete("d", 2),)))
    assert await store.apply(Count()) == ()


async def test_a_claim_begins_anywhere_among_the_first(
    store: RedisTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(store, "s")
    ids = [f"t{number:02}" for number in range(40)]
    for number, id_ in enumerate(ids):
        await store.apply(inserts(id_, at=number))
    seen = []
    for chance in range(34):
        monkeypatch.setattr(random, "getrandbits", lambda _, chance=chance: chance)
        (row,) = await claim(store, "s")
        seen.append(row.id)
        await store.apply(Work("s", (Change(row.id, row.version),)))
    assert sorted(seen) == sorted(2 * ids[:17])
