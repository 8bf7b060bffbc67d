from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib.resources import files

import anyio
import pytest
from anyio.lowlevel import checkpoint

import layouts
import servers
from intervalq import errors, rules
from intervalq._spec import auto, passing, record
from intervalq.rules import Advance, Command, Drop, Finish, Hold, Inspect, Resume, Settings
from intervalq.testing import StoreSuite
from intervalq_stores.redis import queues as redis_queues
from servers import Server, redis_client
from stores import redis_stores
from stores.redis_stores import Open, refused_and_kept

HOURLY = Settings(interval=3_600_000_000)
LIMITED = Settings(interval=1, max_running=3)
OwnRedis = Callable[..., Server]

opened = redis_stores.opened


class TestRedis(StoreSuite):
    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return redis_url


class TestValkey(StoreSuite):
    steps = 20  # the script is the same as in Redis

    @pytest.fixture
    def store_url(self, valkey_url: str) -> str:
        return valkey_url


class TestCluster(StoreSuite):
    steps = 20  # as above

    @pytest.fixture
    def store_url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


def take(nonce: str = "n", settings: Settings = HOURLY, reach: int = 0, lease: int = 0) -> Advance:
    return Advance(settings=settings, nonce=nonce, take=1, reach=reach, lease=lease)


def test_the_script_has_the_constants_of_the_rules() -> None:
    folder = files("intervalq_stores.redis")
    parts = (*redis_queues._SCRIPT, "queues_main.lua")
    text = "".join(folder.joinpath(part).read_text(encoding="utf-8") for part in parts)
    written = dict(re.findall(r"^ *local ([A-Z_]+) = (\d+|'\w+')$", text, re.MULTILINE))
    own = {"SETTINGS": "5"}
    names = ("FOREVER", "LAYOUT", "IDLE_KEPT", "MAX_TICKETS", "ERROR_KEPT", "STARTS")
    expected = {name: getattr(rules, name) for name in names}
    names_of_records = ("BLOCKS", "CELLS", "MAX_CELLS", "MAX_LIMITS", "MAX_WEIGHT")
    expected |= {name: getattr(record, name) for name in names_of_records}
    expected |= {"WEIGHT_KEPT": passing.WEIGHT_KEPT}
    expected |= {name: getattr(auto, name) for name in ("MAX_INTERVAL", "SETTLED")}
    curve = ("RETURN", "RETURN_STARTS", "FASTER", "FIRST", "EARLY", "SCALE", "STEPS", "FAR")
    expected |= {name: getattr(auto, f"_{name}") for name in curve}
    assert written == own | {
        name: repr(value) if isinstance(value, str) else str(value) for name, value in expected.items()
    }


async def test_a_flushed_script_cache_is_no_trouble(own_redis: OwnRedis, opened: Open) -> None:
    server = own_redis()
    store = opened(server.url)
    with redis_client(server.url) as client:
        for number in range(1, 4):
            answer = await store.apply("q", take())
            assert answer.state is not None
            assert answer.state.ticket == number
            client.script_flush()


async def test_a_server_that_is_gone_and_comes_back(own_redis: OwnRedis, opened: Open) -> None:
    server = own_redis("--appendonly", "yes", "--appendfsync", "always")
    store = opened(server.url)
    await store.apply("q", take())
    server.stop()
    for _ in range(3):
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", take())
    with pytest.raises(errors.StoreUnavailable):
        await store.names()
    server.start()
    answer = await store.apply("q", take())
    assert answer.state is not None
    assert answer.state.ticket == 2


async def test_a_connection_that_ended_while_idle_is_no_error(own_redis: OwnRedis, opened: Open) -> None:
    server = own_redis()
    store = opened(server.url)
    await store.apply("q", take())
    server.stop()
    server.start()
    for _ in range(5):
        await checkpoint()  # the event loop learns of the end
    assert (await store.apply("q", take())).count == 1


async def test_nobody_listens(opened: Open) -> None:
    """The connection is refused at once, so the call doesn't wait, which would be a timeout."""
    store = opened(f"redis://127.0.0.1:{servers.free_port()}")
    with pytest.raises(errors.StoreUnavailable) as raised:
        await store.apply("q", take())
    assert not isinstance(raised.value, errors.StoreTimeout)


@pytest.mark.parametrize("command", [take(), Inspect(), Drop(), Hold(), Finish(generation="n")])
@pytest.mark.parametrize(
    "broken",
    [
        {"ticket": "abc"},
        {"ticket": ""},
        {"ticket": "1.5"},
        {"ticket": "1e3"},
        {"ticket": " 1"},
        {"ticket": "-1"},
        {"current": "99"},
        {"revoked_through": "99"},
        {"interval": "0"},
        {"burst": "0"},
        {"last_now": str(2**53)},
        {"due": str(-(2**53))},
        {"held_total": "1" * 400},
        {"generation": ""},
        {"ephemeral": "2"},
        {"held_since": "never"},
        {"running:x": "1"},
        {"running:": "1"},
        {"running:-1": "1"},
        {"running:7": "soon"},
        {"version": "0"},
        {"version": "one"},
    ],
    ids=str,
)
async def test_a_broken_record_is_left_as_it_is(
    redis_url: str, opened: Open, broken: dict[str, str], command: Command
) -> None:
    await refused_and_kept(redis_url, opened(redis_url), take(), broken, command)


async def test_no_field_of_a_record_may_be_missing(redis_url: str, opened: Open) -> None:
    store, key = opened(redis_url), "intervalq:{torn}"
    await store.apply("torn", take())
    with redis_client(redis_url) as client:
        whole = client.hgetall(key)
        assert len(whole) == 19
        for name in whole:
            client.hdel(key, name)
            with pytest.raises(errors.CorruptState, match=name.decode()):
                await store.apply("torn", take())
            client.hset(key, mapping=whole)
    await store.apply("torn", Drop())


async def test_a_key_of_another_type_is_left_as_it_is(redis_url: str, opened: Open) -> None:
    store = opened(redis_url)
    with redis_client(redis_url) as client:
        client.set("intervalq:{typed}", "theirs")
        for command in (take(), Inspect(), Drop()):
            with pytest.raises(errors.CorruptState):
                await store.apply("typed", command)
        assert client.getdel("intervalq:{typed}") == b"theirs"


async def test_a_record_of_layout_1_is_raised_in_the_step_that_comes_next(
    redis_url: str, opened: Open
) -> None:
    store, key = opened(redis_url), "intervalq:{old}"
    record = {name: str(value) for name, value in layouts.LAYOUT_1.items() if name != "running"}
    record |= {"ephemeral": "0", "held_since": ""}
    leases = {f"running:{ticket}": str(until) for ticket, until in layouts.LAYOUT_1["running"].items()}
    with redis_client(redis_url) as client:
        client.delete(key)
        client.hset(key, mapping=record | leases)
        after = await layouts.is_raised(store, "old")
        leases = {f"running:{ticket}": str(until) for ticket, until in after.pop("running").items()}
        kept = {name: str(value) for name, value in after.items()} | {"ephemeral": "0", "held_since": ""}
        found = {name.decode(): value.decode() for name, value in client.hgetall(key).items()}
        assert found == kept | leases
        client.delete(key)


async def test_a_record_of_a_newer_version(redis_url: str, opened: Open) -> None:
    store = opened(redis_url)
    with redis_client(redis_url) as client:
        client.hset("intervalq:{newer}", mapping={"version": "7", "news": "!"})
        with pytest.raises(errors.VersionMismatch):
            await store.apply("newer", take())
        assert client.hgetall("intervalq:{newer}") == {b"version": b"7", b"news": b"!"}
        client.delete("intervalq:{newer}")


async def test_a_step_out_of_the_numbers_is_not_kept(redis_url: str, opened: Open) -> None:
    store = opened(redis_url)
    before = (await store.apply("far", take(settings=LIMITED, lease=1_000), 5)).state
    with pytest.raises(errors.StoreError):
        await store.apply("far", take(settings=LIMITED, reach=rules.FOREVER, lease=rules.FOREVER), 5)
    assert (await store.apply("far", Inspect(), 5)).state == before
    await store.apply("far", Drop())


async def test_thousands_of_leases(redis_url: str, opened: Open) -> None:
    """There are more than Lua passes on at once, and all of them change when the clock is set back."""
    store, many = opened(redis_url), Settings(interval=1, max_running=5_000)
    state = None
    for now in (5_000, 6_000, 7_000, 8_000, 9_000, 4_000):
        command = Advance(settings=many, nonce="n", take=999, reach=rules.FOREVER // 2, lease=100_000)
        state, expected = rules.apply(state, command, now)
        assert await store.apply("crowd", command, now) == expected
    assert (await store.apply("crowd", Inspect(), 4_000)).state == state
    assert len(expected.state.running if expected.state else ()) == 5_000
    ended = Finish(generation="n", ended=tuple(range(1, 4_900)))
    state, expected = rules.apply(state, ended, 4_000)
    assert await store.apply("crowd", ended, 4_000) == expected
    assert (await store.apply("crowd", Inspect(), 4_000)).state == state
    await store.apply("crowd", Drop())


async def test_only_idle_ephemeral_records_expire(redis_url: str, opened: Open) -> None:
    store = opened(redis_url)
    keyed = Settings(interval=1_000_000, ephemeral=True)
    with redis_client(redis_url) as client:
        for name, settings in (("stays", HOURLY), ("goes", keyed)):
            answer = await store.apply(name, take(settings=settings))
            assert answer.state is not None
            expires = client.execute_command("PTTL", f"intervalq:{{{name}}}")
            if name == "stays":
                assert expires == -1
            else:
                assert 0 < expires <= (rules.lapses(answer.state) - answer.now) // 1_000 + 1
        for command, expected in ((Hold(), False), (Resume(), True)):
            await store.apply("goes", command)
            assert (client.execute_command("PTTL", "intervalq:{goes}") > 0) is expected
        await store.apply("goes", Drop())
        await store.apply("goes", take(settings=keyed), 1_000)
        assert client.execute_command("PTTL", "intervalq:{goes}") == -1, "a test's clock isn't the server's"
    for name in ("stays", "goes"):
        await store.apply(name, Drop())


async def test_a_cancelled_call_does_not_poison_the_next(redis_url: str, opened: Open) -> None:
    """Each answer is about the queue that was asked about, whatever was cancelled meanwhile."""
    store, dice, answered = opened(redis_url), random.Random(5), 0
    for name in range(8):
        await store.apply(f"mine-{name}", take(f"g{name}"))

    async def ask(name: int) -> None:
        nonlocal answered
        state = (await store.apply(f"mine-{name}", Inspect())).state
        assert state is not None
        assert state.generation == f"g{name}"
        answered += 1

    async def ask_and_cancel(name: int, patience: int) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, name)
            for _ in range(patience):
                await checkpoint()
            group.cancel_scope.cancel()

    for turn in range(300):
        async with anyio.create_task_group() as group:
            for name in range(turn % 4):
                group.start_soon(ask_and_cancel, name, dice.randint(0, 40))
            for name in range(4, 4 + turn % 3):
                group.start_soon(ask, name)
        await ask(7)
    assert answered >= 600
    for name in range(8):
        await store.apply(f"mine-{name}", Drop())


async def test_a_lost_connection_is_told_to_who_waits_for_a_wake_up(
    own_redis: OwnRedis, opened: Open
) -> None:
    server = own_redis()
    store = opened(server.url)
    async with store.wakeups("q") as woken:
        server.stop()
        for _ in range(2):
            with pytest.raises(errors.StoreUnavailable):
                await woken()
    with pytest.raises(errors.StoreUnavailable):
        async with store.wakeups("q"):
            pytest.fail("nobody is there to listen to")
