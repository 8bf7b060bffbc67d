"""The rights that SECURITY.md grants are sufficient for everything that intervalq does, and no wider."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import nats
import psycopg
import pytest
import redis
from psycopg import errors

import intervalq_stores
import postgres_servers
import servers
from intervalq import IntervalQueue
from intervalq.ledger import Ledger, ledgers
from intervalq.ledger.rules import Claim as Begun
from intervalq.ledger.rules import Ended, Leave, Record, Release, Start
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Advance, Drop, Hold, Limit, Resume, Settings
from intervalq.store import Waking, open_store, scheduling
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.store import Keeping, open_task_store
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._url import options_of
from servers import Server, redis_client

REFUSED = [
    *("GET others", "SET x 1", "HGETALL others", "FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST"),
    *("SUBSCRIBE others", "SCRIPT FLUSH", "HSET others a b"),
]

FILES = Path(intervalq_stores.__path__[0]) / "postgres"
DOCUMENT = (Path(__file__).parent.parent / "SECURITY.md").read_text()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def given(kind: str) -> str:
    """The block of the document with these rights."""
    [found] = re.findall(rf"<!-- tried: {kind} -->\n```\n(.*?)```", DOCUMENT, re.DOTALL)
    assert isinstance(found, str)
    assert "CHANGE-ME" in found
    return found


async def work(url: str) -> None:
    """Use a store in all the ways in which intervalq does."""
    await pace(url)
    await do_tasks(url)


async def pace(url: str) -> None:
    async with IntervalQueue("least", interval="1ms", max_running=3, store=url) as queue:
        await queue.run(anyio.lowlevel.checkpoint)
        await queue.pause()
        job = await queue.add(anyio.lowlevel.checkpoint)
        await queue.resume()
        await job
        await queue["key"].run(anyio.lowlevel.checkpoint)
        await queue.configure(interval="2ms")
        assert (await queue.inspect()).ticket >= 2
        await queue.reclaim()
        await queue.drop()
    if not url.startswith("nats"):
        async with IntervalQueue("keyed", rate="1000/s", each="500/s", store=url) as keyed:
            await keyed.key("a").run(anyio.lowlevel.checkpoint)
            assert len(await keyed.keys()) <= 1
            await keyed.drop(keys=True)
    store = open_store(url)
    await store.names()
    schedules = scheduling(store)
    assert (await schedules.swap_schedule("least", None, "1")).done
    assert (await schedules.read_schedules(["least"])).texts == (await schedules.read_schedules()).texts
    assert (await schedules.swap_schedule("least", "1", "2")).done
    assert not (await schedules.swap_schedule("least", "1", "3")).done
    assert (await schedules.swap_schedule("least", "2", None)).done
    assert isinstance(store, Waking)
    settings = Settings(1_000)
    async with store.wakeups("woken") as woken:
        await store.apply("woken", Hold(settings=settings, nonce="n"))
        await store.apply("woken", Resume(settings=settings))
        with anyio.fail_after(20):
            await woken()
    await store.apply("woken", Drop())
    assert not [what for level, what in await store.advice() if level == "error"]  # type: ignore[attr-defined]
    await store.aclose()


async def do_tasks(url: str) -> None:
    done: list[object] = []
    tasks = Tasks(url)
    keep = "1h" if isinstance(open_task_store(url), Keeping) else None

    @tasks.worker("least")
    async def one(task: Claim) -> None:
        done.append(task.value)
        if task.value == "bad":
            raise ValueError("bad")

    async with tasks:
        await tasks.insert("least", 1, key="k")
        await tasks.insert("least", 2, key="k", dedupe_key="d")
        await tasks.insert("least", 3, delay="1ms")
        kept = await tasks.insert("least", 6, keep=keep)
        await tasks.put("least", [4, 5])
        await tasks.modify(tasks.new("other", 6))
        await tasks.run(until_empty=True)
        assert [task.value for task in await tasks.tasks("other")] == [6]
        if keep:
            assert [outcome.state for outcome in await tasks.wait([kept])] == ["done"]
            assert len(await tasks.outcomes("least")) == 1
        await tasks.queues()
        await tasks.sessions()
        claim = await tasks.try_claim("other")
        assert claim is not None
        await claim.in_progress()
        await claim.nak()
        await (await tasks.claim("other")).ack()
        cancelled = await tasks.insert("other", 7)
        await tasks.cancel(cancelled)
        async with tasks.lock("least"):
            pass
    assert sorted(map(str, done)) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_redis(kind: str, own_redis: Callable[..., Server], valkey_url: str) -> None:
    url = own_redis().url if kind == "redis" else valkey_url
    command = given("redis").strip()
    if kind == "redis":
        command = command.replace(" +client|setinfo", "")
    with redis_client(url) as admin:
        admin.execute_command(*command.split())
        admin.set("others", "secret")
        try:
            mine = url.replace("redis://", "redis://intervalq:CHANGE-ME@")
            await work(mine)
            async with Ledger("least", store=mine) as ledger:
                await ledger.drop()
            await ledgers(mine)
            with redis_client(mine) as user:
                for refused in REFUSED:
                    with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
                        user.execute_command(*refused.split())
        finally:
            admin.execute_command("ACL", "DELUSER", "intervalq")
            admin.delete("others")


SQL_REFUSED = [
    *("select * from public.others", "insert into public.others values (1)", "truncate public.others"),
    *("create table public.mine (a int)", "create table intervalq.mine (a int)", "create schema mine"),
    *("create temporary table mine (a int)", "create role mine", "create database mine", "checkpoint"),
    *("drop schema intervalq", "drop table public.others", "drop function intervalq.names"),
    *("drop table intervalq.tasks", "truncate intervalq.tasks", "alter table intervalq.tasks add a int"),
    *("alter table intervalq.tasks disable trigger all", "create index on intervalq.tasks (json)"),
    *("update intervalq.version set number = 9", "delete from intervalq.tasks_version"),
    *("delete from intervalq.clock", "insert into intervalq.clock default values"),
    *("update intervalq.plain set number = 1", "select nextval('intervalq.sessions_number_seq')"),
    "create function intervalq.mine() returns int language sql return 1",
    "create or replace function intervalq.enqueue(queue text, value jsonb) returns text return ''",
    *("alter role intervalq superuser", "set role postgres", "select pg_read_file('/etc/passwd')"),
    *("select * from pg_authid", "copy intervalq.tasks to '/tmp/tasks'"),
    *("copy intervalq.tasks to program 'cat'", "alter system set fsync = off", "select pg_reload_conf()"),
    *("drop extension plpgsql", "alter schema intervalq rename to mine"),
]


def may(user: psycopg.Connection, command: str) -> bool:
    try:
        user.execute(command.encode())
    except errors.InsufficientPrivilege:
        return False
    return True


def psql(url: str, role: str, file: Path) -> None:
    """Run what SECURITY.md tells an administrator to run; no superuser is needed."""
    program = postgres_servers.binaries() / "psql"
    options = {"PGOPTIONS": f"-c role={role}"}
    subprocess.run(
        [program, url, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file], env=os.environ | options, check=True
    )


@pytest.mark.anyio
async def test_postgres(empty_postgres_url: str) -> None:
    owner = f"owner_{secrets.token_hex(4)}"
    with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
        admin.execute(f"create role {owner}".encode())
        admin.execute("create table others (a int)")
        name = empty_postgres_url.rpartition("/")[2]
        admin.execute(f"grant create on database {name} to {owner}".encode())
        for part in ("queues", "tasks", "ledgers", "schedules"):
            psql(empty_postgres_url, owner, FILES / f"{part}.sql")
        admin.execute(given("postgres").encode())
        try:
            mine = empty_postgres_url.replace("postgres@", "intervalq:CHANGE-ME@")
            await work(mine)
            await limited(mine)
            await in_transactions(mine)
            await keep(mine)
            with psycopg.connect(mine, autocommit=True) as user:
                assert user.execute("select current_user").fetchall() == [("intervalq",)]
                assert [command for command in SQL_REFUSED if may(user, command)] == []
            stranger = empty_postgres_url.replace("postgres@", f"{owner}@")
            admin.execute(f"alter role {owner} login".encode())
            with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
                psycopg.connect(stranger).close()
        finally:
            admin.execute(b"drop owned by intervalq; drop role intervalq")
            admin.execute(f"drop owned by {owner} cascade; drop role {owner}".encode())


async def limited(url: str) -> None:
    """Use a queue that has limits beside its interval."""
    store, settings = open_store(url), Settings(1_000, limits=(Limit(2, 1_000_000),))
    taken = await store.apply("windows", Advance(settings=settings, nonce="n", take=3, units=((1,),) * 3))
    first, second, third = taken.dues
    assert second - first < 1_000_000 <= third - first
    await store.apply("windows", Advance(generation="n", release=taken.taken))
    await store.apply("windows", Drop())
    await store.aclose()


async def in_transactions(url: str) -> None:
    """Use tasks in a transaction of the user's, and from SQL."""
    async with Tasks(url) as tasks:
        async with tasks.transaction() as connection:
            await tasks.insert("own", 1, connection=connection)
            await connection.execute("select intervalq.enqueue('own', '2')")
        claims = [await tasks.claim("own") for _ in range(2)]
        assert {claim.value for claim in claims} == {1, 2}
        async with claims[0].commit("serializable") as connection:
            await connection.execute("select 1")
        await claims[1].term("no")
        await tasks.modify(*[task.delete() for task in await tasks.tasks("own.dead")])
        await tasks.insert("own", 3)
        (claim,) = await tasks.pull("own", name="me").fetch()
        await claim.ack()


async def keep(url: str) -> None:
    """Use a ledger."""
    store = open_ledger_store(url)
    await store.apply("run", Begun("s", 60_000_000, ("a", "b", "c")))
    await store.apply("run", Start("s", 60_000_000, ("a",)))
    await store.apply("run", Record("s", 60_000_000, (Ended("a", "1"),)))
    await store.apply("run", Release("s", ("b",)))
    await store.apply("run", Leave("s"))
    await store.aclose()
    async with Ledger("run", store=url) as ledger:
        assert {row.key: row.state async for row in ledger.rows()} == {"a": "done", "c": "free"}
        assert (await ledger.info()).done == 1
        await ledger.expire("1h")
        await ledger.cancel()
        await ledger.forget(["a"])
        assert await ledgers(url) == ["run"]
        await ledger.drop()


NATS_REFUSED = [
    *("INFO", "STREAM.LIST", "STREAM.DELETE.intervalq-log", "STREAM.CREATE.others", "STREAM.MSG.GET.others"),
    *("STREAM.MSG.DELETE.intervalq-log", "STREAM.PURGE.intervalq-tasks", "STREAM.UPDATE.intervalq-tasks"),
    *("CONSUMER.DELETE.intervalq-tasks.least", "CONSUMER.PAUSE.intervalq-tasks.least"),
]


@pytest.mark.anyio
async def test_nats(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_text(
        given("nats").replace("  users = [", "  users = [\n    { user: admin, password: admin }", 1)
    )
    server = servers.nats_server("-c", str(path))
    server._ready = lambda port: servers.nats_answers(f"nats://admin:admin@127.0.0.1:{port}")
    with servers.running(server):
        mine = f"nats://intervalq:CHANGE-ME@127.0.0.1:{server.port}"
        await work(mine)
        connection = await Connection.connect(mine, options_of(mine))
        with anyio.fail_after(20), pytest.raises(nats.errors.Error, match="permissions violation"):
            await connection.request("$JS.API.INFO")  # has no time limit: the refusal ends it
        await connection.close()
        refused: list[str] = []
        forbidden = ["others", *(f"$JS.API.{name}" for name in NATS_REFUSED)]
        all_refused = anyio.Event()

        async def heard(error: Exception) -> None:
            refused.append(str(error).lower())
            if len(refused) == len(forbidden) + 1:
                all_refused.set()

        client = await nats.connect(mine, error_cb=heard, allow_reconnect=False)
        for subject in forbidden:
            await client.publish(subject, b"{}")
        await client.subscribe("others.>")
        with anyio.fail_after(20):  # a flush of this client may overtake what was published before it
            await all_refused.wait()
        await client.close()
        assert all("permissions violation" in text for text in refused)
