"""What a Redis or Valkey may do to an active queue, and what the queue's callers see of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import pytest

import servers
from faults.work import Work, stands_still, working
from intervalq import errors
from intervalq.rules import Hold
from intervalq_stores.redis.queues import RedisStore
from servers import Server, redis_client
from small_disks import mounted

OwnServer = Callable[..., Server]


@pytest.fixture(params=["redis", "valkey"])
def own(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A function that starts a Redis or Valkey for one test, which may break it."""
    request.getfixturevalue(f"{request.param}_url")  # skips where there is none
    binary = servers.redis_binary() if request.param == "redis" else servers.valkey_binary()
    debug = (
        ("--enable-debug-command", "yes", "--enable-protected-configs", "yes")
        if request.param == "valkey"
        else ()
    )
    started: list[Server] = []

    def start(*options: str, **more: Any) -> Server:
        started.append(servers.redis_server(binary, *debug, *options, **more))
        return started[-1].start()

    yield start
    servers.end_all(started)


def record(work: Work) -> str:
    return f"intervalq:{{{work.name}}}"


# --- what a queue works through ---------------------------------------------------------------------


async def test_scripts_are_flushed_all_the_time(own: OwnServer) -> None:
    server = own()
    with redis_client(server.url) as client:
        async with working([server.url] * 2) as work:
            for _ in range(10):
                client.script_flush()
                await work.more(1)
            await work.stop()
            work.check()
            assert [handle._shard().regressions for handle in work.handles] == [0, 0]


async def test_clients_are_killed_all_the_time(own: OwnServer) -> None:
    server = own()
    with redis_client(server.url) as client:
        async with working([server.url] * 2) as work:
            for _ in range(10):
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await work.more(1)
            await work.stop()
            work.check()
            assert [handle._shard().regressions for handle in work.handles] == [0, 0]


LOSSES: dict[str, Callable[[Any, str], object]] = {
    "flushed": lambda client, _: client.flushall(),
    "deleted": lambda client, key: client.delete(key),
    "with a time to live": lambda client, key: client.pexpire(key, 1),
    "evicted": lambda client, _: (
        client.config_set("maxmemory-policy", "allkeys-random"),
        client.config_set("maxmemory", 1),
        client.config_set("maxmemory", 0),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_lost_record_is_made_anew_after_a_quiet_interval(
    own: OwnServer, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call still ends, and each handle reports the loss."""
    server = own()
    with redis_client(server.url) as client:
        async with working([server.url] * 2) as work:
            for times in range(1, 4):
                LOSSES[loss](client, record(work))
                while not all(handle._shard().regressions == times for handle in work.handles):
                    await work.more(1)
            await work.stop()
            work.check(losses=3)
            assert client.pttl(record(work)) == -1, "ours have no time to live"
    assert caplog.text.count("was lost or dropped") == 6


@pytest.mark.parametrize("persistent", [True, False])
async def test_the_server_is_killed_and_comes_back(own: OwnServer, persistent: bool) -> None:
    server = own(*(("--appendonly", "yes", "--appendfsync", "always") if persistent else ()))
    async with working([server.url] * 2) as work:
        for _ in range(2):
            server.stop()
            await stands_still(work)
            server.start()
            await work.more(2)
        await work.stop()
        work.check(losses=0 if persistent else 2)
        lost = 0 if persistent else 2
        assert [handle._shard().regressions for handle in work.handles] == [lost, lost]


async def test_a_backup_is_restored_under_the_queue(own: OwnServer, caplog: pytest.LogCaptureFixture) -> None:
    """As in a failover to a replica that lags behind, counters never go back, and the loss is reported."""
    server = own()
    with redis_client(server.url) as client:
        async with working([server.url] * 2) as work:
            backup = client.dump(record(work))
            await work.more(5)
            before = max(start.ticket for start in work.starts)
            client.restore(record(work), 0, backup, replace=True)
            await work.more(5)
            await work.stop()
            work.check(losses=1, healed=True)
            assert sum(handle._shard().regressions for handle in work.handles) >= 1
            assert max(start.ticket for start in work.starts) > before
    assert "the store lost writes that it had acknowledged" in caplog.text


# --- what a queue waits for -------------------------------------------------------------------------


def _readonly(client: Any, _: Server) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", str(servers.free_port()))


def _writable(client: Any, _: Server) -> None:
    client.execute_command("REPLICAOF", "NO", "ONE")


def _no_memory(client: Any, _: Server) -> None:
    client.config_set("maxmemory", 1)


def _memory(client: Any, _: Server) -> None:
    client.config_set("maxmemory", 0)


def _no_snapshots(client: Any, server: Server) -> None:
    """Its folder is gone, so its snapshot fails, and then it accepts no writes."""
    folder = server.folder.path / "gone"
    folder.mkdir()
    client.config_set("dir", str(folder))
    folder.rmdir()
    client.config_set("save", "3600 1000000")
    with contextlib.suppress(Exception):
        client.bgsave()
    servers.until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")


def _snapshots(client: Any, server: Server) -> None:
    client.config_set("dir", str(server.folder.path))
    client.config_set("save", "")
    client.config_set("stop-writes-on-bgsave-error", "no")


def _busy(client: Any, server: Server) -> None:
    def hang() -> None:
        with redis_client(server.url) as other, contextlib.suppress(Exception):
            other.eval("while true do end", 0)

    client.config_set("lua-time-limit", 1)
    Thread(target=hang, daemon=True).start()

    def is_busy() -> bool:
        try:
            return not client.ping()
        except Exception as error:  # noqa: BLE001 - the driver's own
            return "BUSY" in str(error)

    servers.until(is_busy)


def _not_busy(client: Any, _: Server) -> None:
    client.script_kill()


TROUBLE: dict[str, tuple[Callable[[Any, Server], None], Callable[[Any, Server], None], type[Exception]]] = {
    "it became a replica": (_readonly, _writable, errors.StoreReadOnly),
    "no memory": (_no_memory, _memory, errors.StoreFull),
    "no snapshots": (_no_snapshots, _snapshots, errors.StoreFull),
    "a script that hangs": (_busy, _not_busy, errors.StoreUnavailable),
}


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_calls_wait_while_it_lasts_and_go_on_after(own: OwnServer, trouble: str) -> None:
    server = own()
    begin, end, kind = TROUBLE[trouble]
    with redis_client(server.url) as client:
        async with working([server.url] * 2) as work:
            begin(client, server)
            try:
                await stands_still(work)
                store = RedisStore(server.url)
                with pytest.raises(kind):
                    await store.apply(work.name, Hold(length=0))
                await store.aclose()
            finally:
                end(client, server)
            await work.more(2)
            await work.stop()
            work.check()
            assert [handle._shard().regressions for handle in work.handles] == [0, 0]


@pytest.mark.parametrize("own", ["valkey"], indirect=True)  # an old Redis says it too rarely while it loads
async def test_it_loads_its_data_for_a_long_time(own: OwnServer) -> None:
    """After a restart it answers LOADING for as long as that takes."""
    server = own("--key-load-delay", "0", "--loading-process-events-interval-bytes", "1024")
    with redis_client(server.url) as client, redis_client(server.url) as loader:
        async with working([server.url] * 2) as work:
            client.eval("for n = 1, 5000 do redis.call('SET', 'filler' .. n, 'x') end", 0)
            client.config_set("key-load-delay", "2000")
            loader.connection_pool.connection_kwargs["socket_timeout"] = 60
            thread = Thread(target=lambda: loader.execute_command("DEBUG", "RELOAD"))
            thread.start()
            await stands_still(work)
            client.config_set("key-load-delay", "0")
            thread.join()
            await work.more(2)
            await work.stop()
            work.check()
            assert [handle._shard().regressions for handle in work.handles] == [0, 0]


# --- what ends a call with an error -----------------------------------------------------------------


async def test_a_password_that_changes_ends_calls_at_once_and_without_a_storm(own: OwnServer) -> None:
    server = own(password="old")
    with redis_client(server.url) as client:
        async with working([server.url] * 2, callers=4) as work:
            client.config_set("requirepass", "new")
            await work.more(2)  # a logged-in client stays logged in
            before = client.info("stats")["total_connections_received"]
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await work.until(lambda: len(work.errors) == 8)
            assert {type(error) for _, error in work.errors} == {errors.Unauthorized}
            assert not any("old" in str(error) or "new" in str(error) for _, error in work.errors)
            assert client.info("stats")["total_connections_received"] - before <= 8, "no storm"
            client.config_set("requirepass", "old")
            async with anyio.create_task_group() as group:
                work.go(group)
                await work.more(2)
                await work.stop()
            work.check(failed=8)


async def test_no_more_clients_are_let_in(own: OwnServer) -> None:
    """Logged-in clients go on, others get an error, and none is kept out for longer than the cause lasts."""
    server = own()
    with redis_client(server.url) as client:
        async with working([server.url]) as work:
            client.config_set("maxclients", 2)
            store = RedisStore(server.url)
            with pytest.raises(errors.StoreUnavailable):
                await store.names()
            await work.more(3)
            client.config_set("maxclients", 100)
            assert await store.names() == [work.name]
            await store.aclose()
            await work.stop()
            work.check()


# --- a real full disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk


async def test_the_disk_of_its_log_is_full(own: OwnServer, small_disk: Path) -> None:
    server = own("--dir", str(small_disk), "--appendonly", "yes", "--appendfsync", "everysec")
    async with working([server.url] * 2) as work:
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                pass
        await stands_still(work)
        filler.unlink()
        await work.more(2)
        await work.stop()
        work.check(losses=1)
