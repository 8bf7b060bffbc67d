"""Limits in addition to the interval on Redis: their fields, what is refused, and the number of cells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from intervalq import errors, rules
from intervalq._spec import record
from intervalq.rules import Advance, Command, Configure, Drop, Finish, Hold, Inspect, Limit, Settings, Slot
from intervalq_stores.redis.queues import RedisStore
from servers import redis_client
from stores.redis_stores import refused_and_kept

NOW = 1_700_000_000_000_000
HOURLY = Settings(interval=3_600_000_000)
WINDOWS = Settings(
    interval=1_000,
    limits=(Limit(5, 3_600_000_000), Limit(10**9, 60_000_000, "to\u00e4 \n\U0001d11e k", 7)),
)
"""Units may be any text."""


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    yield store
    await store.aclose()


def take(nonce: str = "n", settings: Settings = WINDOWS) -> Advance:
    return Advance(settings=settings, nonce=nonce, take=1)


@pytest.mark.parametrize("command", [take(), Inspect(), Drop(), Hold(), Finish(generation="n")])
@pytest.mark.parametrize(
    "broken",
    [
        {"stepped": "-1"},
        {"stepped": "x"},
        {"limits": "0"},
        {"limits": "3"},
        {"limits": "17"},
        {"limit:1": ""},
        {"limit:1": "5 3600000000 0"},
        {"limit:1": "0 3600000000 0 starts"},
        {"limit:1": "5 0 0 starts"},
        {"limit:1": "5 3600000000 -1 starts"},
        {"limit:1": f"{2**53} 3600000000 0 starts"},
        {"limit:1": "1" * 400 + " 3600000000 0 starts"},
        {"limit:2": b"5 64 0 \xff"},
        {"edge:1": ""},
        {"edge:1": "-1"},
        {"edge:1": "3600000000"},
        {"ahead:1": "5"},
        {"ahead:1": "5:1"},
        {"ahead:1": "5:1;6"},
        {"ahead:1": "5:1:5;"},
        {"ahead:1": " 5:1;"},
        {"ahead:1": "5:0;"},
        {"ahead:1": "5:-1;"},
        {"ahead:1": "5.5:1;"},
        {"ahead:1": "5:1;5:1;"},
        {"ahead:1": "6:1;5:1;"},
        {"ahead:1": f"5:{2**53};"},
        {"ahead:1": f"{2**53}:1;"},
        {"ahead:1": f"-{2**53}:1;"},
        {"ahead:2": "1" * 400 + ":1;"},
        {"ahead:1": "".join(f"{end}:1;" for end in range(record.MAX_CELLS + 1))},
        {"used:1": "5:1;"},
        {"used:1": "5:1:x;"},
        {"used:1": f"5:1:{2**53};"},
        {"used:1": "5:1:6;5:1:7;"},
        {"used:2": "".join(f"{end}:1:{end};" for end in range(record.MAX_CELLS + 1))},
    ],
    ids=lambda broken: str(broken)[:40],
)
async def test_broken_limits_are_left_as_they_are(
    redis_url: str, store: RedisStore, broken: dict[str, str | bytes], command: Command
) -> None:
    await refused_and_kept(redis_url, store, take(), broken, command)


async def test_what_limits_are_kept_as(redis_url: str, store: RedisStore) -> None:
    now = NOW
    state, expected = rules.apply(None, take(), now)
    assert await store.apply("windows", take(), now) == expected
    with redis_client(redis_url) as client:
        kept = client.hgetall("intervalq:{windows}")
        assert len(kept) == 19 + 2 + 3 * 2
        assert kept[b"stepped"] == b"0"
        assert kept[b"limits"] == b"2"
        assert kept[b"limit:1"] == b"5 3600000000 0 starts"
        assert kept[b"limit:2"].decode() == "1000000000 60000000 7 " + WINDOWS.limits[1].unit
        assert state is not None
        ((end, units),) = state.usage[0].ahead
        assert (kept[b"ahead:1"], kept[b"ahead:2"]) == (f"{end}:{units};".encode(), b"")
        command = take()
        expected = rules.apply(state, command, now + 3_600_000_000)[1]
        assert await store.apply("windows", command, now + 3_600_000_000) == expected
        assert expected.state is not None
        ((end, units, due),) = expected.state.usage[0].used
        assert client.hget("intervalq:{windows}", "used:1") == f"{end}:{units}:{due};".encode()
    await store.apply("windows", Drop())


async def test_what_edges_are_kept_as(redis_url: str, store: RedisStore) -> None:
    fixed = WINDOWS.limits[0]._replace(edge=7)
    await store.apply("edges", take(settings=replace(WINDOWS, limits=(*WINDOWS.limits[1:], fixed))), NOW)
    with redis_client(redis_url) as client:
        kept = client.hgetall("intervalq:{edges}")
        assert kept[b"limit:2"] == b"5 3600000000 0 starts"
        assert {field: kept[field] for field in kept if field.startswith(b"edge")} == {b"edge:2": b"7"}
        await store.apply("edges", Configure(limits=(fixed._replace(edge=None),)), NOW)
        kept = client.hgetall("intervalq:{edges}")
        assert not any(field.startswith(b"edge") for field in kept)
    await store.apply("edges", Drop())


async def test_as_many_cells_as_are_kept(store: RedisStore) -> None:
    """Slots further ahead share the last cell, and all cells of a full record can be read."""
    state, now = None, NOW
    settings = Settings(interval=1_000_000, limits=(Limit(10**6, 64_000_000),))
    command = Advance(settings=settings, nonce="n", take=1_000, generation="n")
    for _ in range(5):
        state, expected = rules.apply(state, command, now)
        assert await store.apply("cells", command, now) == expected
    assert state is not None
    assert len(state.usage[0].ahead) == record.MAX_CELLS
    for later in (now + 3_000_000_000, now + 6_000_000_000):
        release = Advance(generation="n", release=expected.taken[-3:], take=3)
        state, expected = rules.apply(state, release, later)
        assert await store.apply("cells", release, later) == expected
    await store.apply("cells", Drop())


async def test_limits_go_with_the_record_that_had_them(redis_url: str, store: RedisStore) -> None:
    """An ephemeral record that lapsed is replaced by one with other settings, or one without limits."""
    now = NOW
    keyed = Settings(interval=1_000, ephemeral=True, limits=WINDOWS.limits)
    fewer = Settings(interval=1_000, ephemeral=True, limits=WINDOWS.limits[:1])
    with redis_client(redis_url) as client:
        for turn, (settings, count) in enumerate(((keyed, 27), (fewer, 24), (HOURLY, 19))):
            at = now + turn * 3_600_000_000_000
            expected = rules.apply(None, take(f"n{turn}", settings), at)[1]
            assert await store.apply("lapsed", take(f"n{turn}", settings), at) == expected
            assert len(client.hgetall("intervalq:{lapsed}")) == count
    await store.apply("lapsed", Drop())


async def test_limits_are_settings(store: RedisStore) -> None:
    one, other = WINDOWS.limits
    await store.apply("attach", take())
    for limits, refused in (
        ((one, other), False),
        ((), True),
        ((one,), True),
        ((other, one), True),
        ((one, other._replace(most=5)), True),
        ((one, other._replace(window=5)), True),
        ((one, other._replace(unit="tokens")), True),
        ((one, other._replace(jitter=0)), True),
        ((one, other, other), True),
    ):
        command = Advance(settings=Settings(interval=1_000, limits=limits), attach=True, nonce="n")
        assert (await store.apply("attach", command)).refused is refused, limits
    await store.apply("attach", Drop())
    await store.apply("attach", take(settings=HOURLY))
    command = Advance(settings=Settings(interval=HOURLY.interval, limits=(one,)), attach=True, nonce="n")
    assert (await store.apply("attach", command)).refused
    await store.apply("attach", Drop())


async def test_no_field_of_limits_may_be_missing(redis_url: str, store: RedisStore) -> None:
    key = "intervalq:{torn-limits}"
    await store.apply("torn-limits", take())
    with redis_client(redis_url) as client:
        whole = client.hgetall(key)
        assert len(whole) == 19 + 2 + 3 * 2
        for name in whole:
            client.hdel(key, name)
            with pytest.raises(errors.CorruptState, match=name.decode()):
                await store.apply("torn-limits", take())
            client.hset(key, mapping=whole)
    await store.apply("torn-limits", Drop())


async def test_what_would_end_beyond_the_numbers_ends_with_them(store: RedisStore) -> None:
    settings = Settings(interval=1_000_000, burst=5, limits=(Limit(5, 64),))
    state, slot = None, Slot(0, 0)
    first = Advance(settings=settings, nonce="n", take=2, costs=((rules.FOREVER - NOW) // 1_000_000 + 3,))
    for step in range(3):
        command: Command = first
        if step == 1:
            command = Advance(generation="n", slots=(slot._replace(cost=rules.FOREVER),))
        elif step == 2:
            command = Configure(interval=1_000)
        state, expected = rules.apply(state, command, NOW)
        assert await store.apply("end", command, NOW) == expected
        slot = expected.taken[-1] if expected.taken else slot
    assert state is not None
    assert state.current == slot.ticket == 2
    assert state.current_due == state.usage[0].used[-1][0] == rules.FOREVER
    await store.apply("end", Drop())
