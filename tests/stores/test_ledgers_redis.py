from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from importlib.resources import files
from typing import Any

import pytest

from intervalq import errors, rules
from intervalq.ledger.rules import (
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Ended,
    Expire,
    Forget,
    Look,
    Record,
    Verdict,
)
from intervalq_stores.redis.ledgers import RedisLedgerStore
from servers import redis_client

HOUR = 3_600_000_000
ROW = Record("s", HOUR, (Ended("a", "1"),))


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisLedgerStore]:
    async with aclosing(RedisLedgerStore(redis_url)) as store:
        yield store


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis_client(redis_url) as client:
        yield client


@pytest.fixture
def name(client: Any) -> Iterator[str]:
    name = f"ledger-{secrets.token_hex(4)}"
    yield name
    client.delete(*keys(name))


def keys(name: str) -> list[str]:
    return [f"intervalq:{{{name}}}:ledger:{part}" for part in ("meta", "sessions", "open", "rows")]


def dump(client: Any, name: str) -> list[Any]:
    return [client.dump(key) for key in keys(name)]


def test_the_script_has_the_constant_of_the_rules() -> None:
    text = files("intervalq_stores.redis").joinpath("ledgers.lua").read_text(encoding="utf-8")
    assert f"local FOREVER = {rules.FOREVER}\n" in text


async def test_all_keys_of_a_ledger_expire_and_are_kept_together(
    store: RedisLedgerStore, client: Any, name: str
) -> None:
    await store.apply(name, ROW)
    now = (await store.apply(name, Claim("s", HOUR, ("b",)))).now
    await store.apply(name, Expire(now + HOUR))
    for _ in range(2):
        left = [client.pttl(key) for key in keys(name)]
        assert all(0 < each <= HOUR // 1_000 + 1 for each in left)
        # Keys that were removed, and are created again.
        await store.apply(name, Forget(("a", "b"), ("done", "claimed")))
        assert [client.exists(key) for key in keys(name)] == [1, 1, 0, 0]
        await store.apply(name, ROW)
        await store.apply(name, Claim("s", HOUR, ("b",)))
    await store.apply(name, Expire(None))
    assert [client.pttl(key) for key in keys(name)] == [-1] * 4
    await store.apply(name, Expire(now + HOUR), now)
    assert [client.pttl(key) for key in keys(name)] == [-1] * 4, "a test's clock isn't the server's"


@pytest.mark.parametrize("command", [ROW, Claim("t", HOUR, ("a", "b")), Look(), Beat("s", HOUR)], ids=repr)
@pytest.mark.parametrize(
    ("key", "field", "text"),
    [(0, "done", "many"), (0, "created", ""), (3, "a", "d1"), (3, "a", "x1:1:1"), (0, "version", "0")],
)
async def test_a_broken_ledger_is_left_as_it_is(
    store: RedisLedgerStore, client: Any, name: str, key: int, field: str, text: str, command: Command
) -> None:
    if key and isinstance(command, Beat):
        return  # which reads no row
    await store.apply(name, ROW)
    client.hset(keys(name)[key], field, text)
    before = dump(client, name)
    with pytest.raises(errors.CorruptState):
        await store.apply(name, Look("r0") if isinstance(command, Look) else command)
    assert dump(client, name) == before


@pytest.mark.parametrize("key", range(4))
async def test_a_key_of_another_type_is_left_as_it_is(
    store: RedisLedgerStore, client: Any, name: str, key: int
) -> None:
    await store.apply(name, Claim("t", HOUR, ("a", "b")))
    client.delete(keys(name)[key])
    client.set(keys(name)[key], "theirs")
    before = dump(client, name)
    for command in (Claim("s", HOUR, ("a", "c")), Count()):
        if key < 3 or isinstance(command, Claim):
            with pytest.raises(errors.CorruptState):
                await store.apply(name, command)
    assert dump(client, name) == before


async def test_a_ledger_of_a_newer_version(store: RedisLedgerStore, client: Any, name: str) -> None:
    client.hset(keys(name)[0], mapping={"version": "2", "news": "!"})
    with pytest.raises(errors.VersionMismatch):
        await store.apply(name, ROW)
    assert client.hgetall(keys(name)[0]) == {b"version": b"2", b"news": b"!"}


async def test_a_server_without_memory_refuses_a_command_as_a_whole(
    store: RedisLedgerStore, client: Any, name: str
) -> None:
    """It accepts no rows, but still answers queries, and accepts a cancellation."""
    await store.apply(name, ROW)
    before = dump(client, name)
    most = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(errors.StoreFull):
            await store.apply(name, Record("t", HOUR, (Ended("b", "1"),)))
        assert dump(client, name) == before
        summary = (await store.apply(name, Count())).summary
        assert summary is not None
        assert summary.done == 1
        assert (await store.apply(name, Cancel())).cancelled
        assert (await store.apply(name, Forget(("a",), ("done",)))).removed == 1
    finally:
        client.config_set("maxmemory", most)


async def test_rows_of_a_ledger_whose_first_key_was_lost_are_not_taken_for_those_of_a_new_one(
    store: RedisLedgerStore, client: Any, name: str
) -> None:
    await store.apply(name, ROW)
    client.delete(keys(name)[0])
    assert (await store.apply(name, Claim("s", HOUR, ("a",)))).verdicts == (Verdict("mine", 1),)
    summary = (await store.apply(name, Count())).summary
    assert summary is not None
    assert (summary.done, summary.claimed) == (0, 1)


async def test_a_key_with_the_beginning_of_a_huge_list_is_read(store: RedisLedgerStore, name: str) -> None:
    key = "a\r\n>20261129\r\n\x7f/\u00e4\U0001f600"
    await store.apply(name, Claim("s", HOUR, (key,)))
    assert [row.key for row in (await store.apply(name, Look())).rows] == [key]
