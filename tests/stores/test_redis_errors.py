from __future__ import annotations

import asyncio
import gc
import re
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from threading import Thread
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from redis.crc import key_slot
from redis.exceptions import ResponseError

import servers
from intervalq import errors
from intervalq.rules import Advance, Drop, Hold, Inspect, Resume, Settings
from intervalq_stores.redis import _pipeline as redis_pipeline
from intervalq_stores.redis.queues import RedisStore
from servers import Server, redis_client
from stores import redis_stores
from stores.redis_stores import Open

CANARY = "c4n4ry"
EACH_SECOND = Settings(interval=1_000_000)
TAKE = Advance(settings=EACH_SECOND, nonce="n", take=1)
OwnServer = Callable[..., Server]

opened = redis_stores.opened


@pytest.fixture(params=["redis", "valkey"])
def own(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A function that starts a Redis or Valkey for one test."""
    request.getfixturevalue(f"{request.param}_url")  # skips where there is none
    binary = servers.redis_binary() if request.param == "redis" else servers.valkey_binary()
    started: list[Server] = []

    def start(*options: str, **more: Any) -> Server:
        started.append(servers.redis_server(binary, *options, **more))
        return started[-1].start()

    yield start
    servers.end_all(started)


async def test_other_ways_to_a_server(own: OwnServer, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    server = own("--unixsocket", "socket")
    store = opened(f"unix://{server.folder.path}/socket?db=3")
    assert (await store.apply("q", TAKE)).count == 1
    with redis_client(f"{server.url[:-1]}3") as client:
        assert client.keys() == [b"intervalq:{q}"]
    monkeypatch.setattr(redis_pipeline, "WITHIN", 0.05)
    for scheme in ("rediss", "rediss+cluster"):  # these servers have no TLS, so no command may get through
        with pytest.raises(errors.StoreUnavailable):
            await opened(f"{scheme}://127.0.0.1:{server.port}").apply("q", TAKE)


async def test_closing_during_a_call(redis_url: str, opened: Open) -> None:
    """The call gets its answer, and no connection is left open (which would be a warning)."""
    store = opened(redis_url)
    await store.apply("closing", TAKE)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(store.apply, "closing", TAKE)
        await checkpoint()
        await store.aclose()
    answer = await store.apply("closing", Drop())
    assert answer.state is None
    gc.collect()


async def test_no_memory(own: OwnServer, opened: Open) -> None:
    server = own()
    store = opened(server.url)
    await store.apply("old", TAKE)
    with redis_client(server.url) as client:
        before = client.hgetall("intervalq:{old}")
        client.config_set("maxmemory", 1)
        for queue in ("old", "new"):
            with pytest.raises(errors.StoreFull):
                await store.apply(queue, TAKE)
        assert client.hgetall("intervalq:{old}") == before
        assert not client.exists("intervalq:{new}")


async def test_a_replica_takes_no_writes(own: OwnServer, opened: Open) -> None:
    server = own()
    store = opened(server.url)
    await store.apply("q", TAKE)
    with redis_client(server.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(servers.free_port()))
        with pytest.raises(errors.StoreReadOnly):
            await store.apply("q", TAKE)
        client.execute_command("CONFIG", "SET", "replica-serve-stale-data", "no")
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", TAKE)
        client.execute_command("REPLICAOF", "NO", "ONE")
    answer = await store.apply("q", TAKE)
    assert answer.state is not None
    assert answer.state.ticket == 2


async def test_a_script_that_hangs(own: OwnServer, opened: Open) -> None:
    server = own("--lua-time-limit", "1")
    store = opened(server.url)

    def hang() -> None:
        with redis_client(server.url) as client, pytest.raises(ResponseError):
            client.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except ResponseError as error:
            return str(error).startswith("BUSY")

    thread = Thread(target=hang)
    thread.start()
    with redis_client(server.url) as client:
        servers.until(is_busy)
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", TAKE)
        client.script_kill()
        thread.join()
    await store.apply("q", TAKE)


async def test_rights(own: OwnServer, opened: Open) -> None:
    """A user who lacks some gets an error that says so, and nothing is done."""
    server = own()
    everything = ("on", f">{CANARY}", "~intervalq:*", "resetchannels", "&intervalq:*", "+@all")
    port = server.port
    with redis_client(server.url) as client:
        for number, denied in enumerate(("-eval -evalsha", "-hgetall", "-hset", "resetkeys ~other:*")):
            client.execute_command("ACL", "SETUSER", f"user{number}", *everything, *denied.split())
            store = opened(f"redis://user{number}:{CANARY}@127.0.0.1:{port}/0")
            with pytest.raises(errors.Unauthorized) as raised:
                await store.apply("q", TAKE)
            assert f"user{number}" not in str(raised.value)
            assert not client.exists("intervalq:{q}")
        client.execute_command("ACL", "SETUSER", "mute", *everything, "resetchannels")
        store = opened(f"redis://mute:{CANARY}@127.0.0.1:{port}/0")
        await store.apply("q", TAKE)
        await store.apply("q", Hold())
        assert (await store.apply("q", Resume())).woken, "a wake-up is a hint, the step is done without it"
        with pytest.raises(errors.Unauthorized):
            async with store.wakeups("q"):
                pytest.fail("the channel isn't allowed")


async def test_no_secret_is_told(own: OwnServer, opened: Open) -> None:
    server = own(password="right")
    reported = []
    for credentials in (f"{CANARY}:{CANARY}", f":{CANARY}", ""):
        store = opened(f"redis://{credentials}@127.0.0.1:{server.port}/0")
        reported += [repr(store), store.url, repr(vars(store))]
        with pytest.raises(errors.Unauthorized) as raised:
            await store.apply("q", TAKE)
        reported += [repr(raised.value), *traceback.format_exception(raised.value)]
    store = opened(server.url)
    await store.apply("q", TAKE)
    server.stop()
    store = opened(f"redis://{CANARY}:{CANARY}@127.0.0.1:{server.port}/0")
    with pytest.raises(errors.StoreUnavailable) as gone:
        await store.apply("q", TAKE)
    reported += traceback.format_exception(gone.value)
    assert not [text for text in reported if CANARY in text]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:{}/34@host/0",
        "redis://:12/{}@host/0",
        "redis://:{}#x@host/0",
        "redis://host:{}/0",
        "redis://host/{}",
        "redis://host/0?nonsense={}",
        "redis://host/0?socket_timeout=1&x={}",
        "redis://host/0?db={}",
        "redis+cluster://:{}@host/3",
        "unix://:{}@",
    ],
)
def test_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(errors.InvalidOption) as raised:
        RedisStore(url.format(CANARY))
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingExtra, match=re.escape("pip install 'intervalq[redis]'")):
        RedisStore("redis://host")


def test_trio_is_refused() -> None:
    async def main() -> None:
        store = RedisStore("redis://127.0.0.1")
        with pytest.raises(errors.BackendUnsupported, match="under trio, use sqlite:// or memory://"):
            await store.apply("q", TAKE)
        with pytest.raises(errors.BackendUnsupported):
            async with store.wakeups("q"):
                pytest.fail("the driver can't do this")
        await store.aclose()

    anyio.run(main, backend="trio")


@asynccontextmanager
async def fake(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[str]:
    """A server that answers every read with what `answer` returns; None: it closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            text = answer(data)
            if text is None:
                break
            writer.write(text)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_lost_answer_is_not_asked_for_again(opened: Open) -> None:
    """The command may have been done, so the caller decides."""
    seen: list[bytes] = []

    def lose(data: bytes) -> bytes | None:
        if b"EVAL" not in data:
            return b"+OK\r\n" * data.count(b"CLIENT")
        seen.append(data)
        return None

    async with fake(lose) as url:
        store = opened(url)
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", TAKE)
        await store.aclose()
    assert len(seen) == 1


async def test_no_answer(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_pipeline, "WITHIN", 0.05)
    async with fake(lambda data: b"+OK\r\n" * data.count(b"CLIENT")) as url:
        store = opened(url)
        for _ in range(2):
            with pytest.raises(errors.StoreTimeout):
                await store.apply("q", TAKE)
        await store.aclose()


async def test_a_url_of_the_wrong_kind(redis_url: str, redis_cluster_url: str, opened: Open) -> None:
    single = opened(redis_cluster_url.replace("redis+cluster:", "redis:"))
    await single.apply("q", Inspect())  # a node that has all slots is as good as a server
    with pytest.raises(errors.StoreError, match="use redis://") as raised:
        await opened(redis_url.replace("redis:", "redis+cluster:")).apply("q", Inspect())
    assert not isinstance(raised.value, errors.StoreUnavailable)


async def test_a_cluster_that_moves_slots(redis_cluster_url: str, opened: Open) -> None:
    """Redirections are followed, so records are found; a lost node is reported, and then forgotten."""
    binary = servers.valkey_binary()
    with (
        servers.running(servers.redis_node(binary)) as one,
        servers.running(servers.redis_node(binary)) as two,
    ):
        first, second = redis_client(one.url), redis_client(two.url)
        with first, second:
            first.execute_command("CLUSTER ADDSLOTS", *range(16_384))
            second.execute_command("CLUSTER MEET", "127.0.0.1", one.port)
            for client in (first, second):
                servers.until(partial(servers.cluster_is_up, client, nodes=2))
            ids = [client.execute_command("CLUSTER MYID").decode() for client in (first, second)]
            store = opened(one.url.replace("redis:", "redis+cluster:"))
            await store.apply("stays", TAKE)

            slot = key_slot(b"intervalq:{asked}")
            second.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
            first.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
            await store.apply("asked", TAKE)  # ASK
            async with anyio.create_task_group() as group:
                for _ in range(50):  # each needs an ASKING right before it
                    group.start_soon(store.apply, "asked", Inspect())

            for client in (second, first):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
            for number in (2, 3):
                answer = await store.apply("asked", TAKE)  # MOVED
                assert answer.state is not None
                assert answer.state.ticket == number
            assert await store.names() == ["asked", "stays"]
            with pytest.raises(
                errors.StoreError, match=re.escape("use a URL that begins with redis+cluster://")
            ):
                await opened(one.url).apply("asked", Inspect())
            async with store.wakeups("asked") as woken:
                await store.apply("asked", Hold())
                await store.apply("asked", Resume())
                await woken()

        two.stop()
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("asked", TAKE)
        with redis_client(one.url) as client:
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[0])
        answer = await store.apply("asked", TAKE)
        assert answer.state is not None
        assert answer.state.ticket == 1


async def test_advice(own: OwnServer, opened: Open, redis_cluster_url: str) -> None:
    server = own("--appendonly", "yes")
    store = opened(server.url)
    safety = 2  # sentences about the connection and the rights come first
    assert {level for level, _ in (await store.advice())[safety:]} == {"ok"}
    with redis_client(server.url) as client:
        for sync, level, lost in (
            ("everysec", "ok", "about a second"),
            ("always", "ok", "nothing"),
            ("no", "warning", "half a minute"),
        ):
            client.config_set("appendfsync", sync)
            found = (await store.advice())[safety + 3]
            assert found[0] == level
            assert lost in found[1]
        client.execute_command("ACL", "SETUSER", "less", "on", "nopass", "+@all", "-config", "~*")
        less = await opened(f"redis://less:x@127.0.0.1:{server.port}/0").advice()
        assert "is unknown" in less[safety + 3][1]
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert [level for level, _ in (await store.advice())[safety:]] == ["ok", "ok", "warning", "warning"]
        client.config_set("save", "60 1")
        assert "only snapshots" in (await store.advice())[safety + 3][1]
        client.execute_command("ACL", "SETUSER", "some", "on", "nopass", "+@all", "-config", "~*")
        client.execute_command("ACL", "SETUSER", "few", "on", "nopass", "+evalsha", "~*")
        client.execute_command("REPLICAOF", "127.0.0.1", str(servers.free_port()))
        assert (await store.advice())[safety + 1][0] == "error"
    some = await opened(f"redis://some:x@127.0.0.1:{server.port}/0").advice()
    assert "CONFIG is forbidden" in some[safety + 3][1]
    few = await opened(f"redis://few:x@127.0.0.1:{server.port}/0").advice()
    assert [level for level, _ in few] == ["ok", "ok", "warning"]
    assert "can't even read" in few[1][1]
    assert "INFO" in few[safety][1]
    assert len(await opened(redis_cluster_url).advice()) == safety + 4
