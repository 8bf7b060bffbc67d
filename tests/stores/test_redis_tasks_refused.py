"""Tasks on Redis: refused commands, damaged data, and faults of the server."""

from __future__ import annotations

import random
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
    End,
    Insert,
    Modify,
    Select,
    Session,
    Sessions,
    Work,
)
from intervalq_stores.redis.tasks import RedisTaskStore
from stores import redis_sessions
from stores.redis_sessions import (
    INDEX,
    KEYS,
    MARKS,
    META,
    SESSIONS,
    TASKS,
    begun,
    claim,
    deleted,
    inserts,
)

server = redis_sessions.server
client = redis_sessions.client
store = redis_sessions.store


def dump(client: Any) -> list[Any]:
    look = {b"hash": client.hgetall, b"zset": lambda key: client.zrange(key, 0, -1, withscores=True)}
    return [look.get(client.type(key), client.dump)(key) for key in KEYS]


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
    assert (await store.apply(Beat("s"))).claim_count == 1
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
    client.hset(META, "version", "99")
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
