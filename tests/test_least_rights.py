"""The rights that SECURITY.md gives are enough for what the product does, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import nats
import pytest
import redis

import servers
from intervalq import IntervalQueue
from intervalq.ledger import Ledger, ledgers
from intervalq.rules import Drop, Hold, Resume, Settings
from intervalq.store import Waking, open_store
from intervalq.tasks import Claim, Tasks
from servers import Server, redis_client

REFUSED = [
    *("GET others", "SET x 1", "HGETALL others", "FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST"),
    *("SUBSCRIBE others", "SCRIPT FLUSH", "HSET others a b"),
]

DOCUMENT = (Path(__file__).parent.parent / "SECURITY.md").read_text()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def given(kind: str) -> str:
    """What stands in the document."""
    [found] = re.findall(rf"<!-- tried: {kind} -->\n```\n(.*?)```", DOCUMENT, re.DOTALL)
    assert isinstance(found, str)
    assert "CHANGE-ME" in found
    return found


async def work(url: str) -> None:
    """What the product does with a store."""
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
    store = open_store(url)
    await store.names()
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
    done: list[object] = []
    tasks = Tasks(url)

    @tasks.worker("least")
    async def one(task: Claim) -> None:
        done.append(task.value)
        if task.value == "bad":
            raise ValueError("bad")

    async with tasks:
        await tasks.insert("least", 1, key="k")
        await tasks.insert("least", 2, key="k", dedupe_key="d")
        await tasks.insert("least", 3, delay="1ms")
        await tasks.put("least", [4, 5])
        await tasks.modify(tasks.new("other", 6))
        await tasks.run(until_empty=True)
        assert [task.value for task in await tasks.tasks("other")] == [6]
        await tasks.queues()
        await tasks.sessions()
        claim = await tasks.try_claim("other")
        assert claim is not None
        await claim.in_progress()
        await claim.nak()
        await (await tasks.claim("other")).ack()
    assert sorted(map(str, done)) == ["1", "2", "3", "4", "5"]


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
        refused: list[str] = []
        all_refused = anyio.Event()

        async def heard(error: Exception) -> None:
            refused.append(str(error).lower())
            if len(refused) == 4:
                all_refused.set()

        client = await nats.connect(mine, error_cb=heard, allow_reconnect=False)
        await client.publish("others", b"")
        await client.publish("$JS.API.STREAM.DELETE.intervalq-log", b"")
        await client.publish("$JS.API.STREAM.CREATE.others", b"{}")
        await client.subscribe("others.>")
        with anyio.fail_after(20):  # a flush of this client may overtake what was published before it
            await all_refused.wait()
        await client.close()
        assert all("permissions violation" in text for text in refused)
