"""Pull consumers with different names side by side: limits, state, creation and iteration."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import nats
import pytest
from anyio.lowlevel import checkpoint
from nats.aio.msg import Msg

from intervalq import errors
from intervalq.store import shown_url
from intervalq.tasks import Claim, Tasks
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._server import Server as StoreServer
from intervalq_stores.nats._task.message import STREAM
from intervalq_stores.nats._url import made_by, options_of
from servers import Server
from stores.nats_plain_client import PATIENCE, PlainClient

# --- limits -----------------------------------------------------------------------------------------


async def test_the_limit_of_one_throttles_no_other(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    """The other has another name or process; a waiting call gets a task as soon as there is room."""
    mine = tasks.pull(queue, name="p", max_ack_pending=3)
    await tasks.put(queue, range(20))
    claims = await mine.fetch(10, timeout=PATIENCE)
    assert [claim.value for claim in claims] == [0, 1, 2]
    assert await mine.fetch(10, no_wait=True) == []
    assert await mine.fetch(10, timeout=0.01) == []
    for other in (tasks.pull(queue, name="q"), others.pull(queue, name="p", max_ack_pending=4)):
        assert len(await other.fetch(4, no_wait=True)) == 4
    assert len(await others.pull(queue, name="free", max_ack_pending=None).fetch(5, no_wait=True)) == 5
    found: list[Claim] = []
    async with anyio.create_task_group() as group:

        async def fetch() -> None:
            found.extend(await mine.fetch(10, timeout=PATIENCE))

        group.start_soon(fetch)
        await anyio.wait_all_tasks_blocked()
        assert await plain.waiting() == 0
        await claims[0].ack()
    assert [claim.value for claim in found] == [16]
    config = (await plain.ask(f"CONSUMER.INFO.{plain.consumer}"))["config"]
    assert config.get("max_ack_pending", -1) == -1


async def test_calls_at_the_same_time_keep_one_limit(tasks: Tasks, queue: str) -> None:
    pull = tasks.pull(queue, name="p", max_ack_pending=3)
    found: list[Claim] = []

    async def fetch() -> None:
        found.extend(await pull.fetch(2, timeout=0.5))

    await tasks.put(queue, range(9))
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(fetch)
    assert len(found) == 3


async def test_a_limit_that_an_operator_has_set_is_waited_for(
    tasks: Tasks, queue: str, plain: PlainClient
) -> None:
    pull = tasks.pull(queue, name="p", max_ack_pending=None)
    assert await pull.fetch(no_wait=True) == []
    await tasks.put(queue, range(4))
    info = await plain.ask(f"CONSUMER.INFO.{plain.consumer}")
    config = {"stream_name": STREAM, "config": info["config"] | {"max_ack_pending": 2}}
    await plain.ask(f"CONSUMER.DURABLE.CREATE.{plain.consumer}", config)
    assert len(await pull.fetch(9, timeout=0.01)) == 2
    assert await pull.fetch(9, no_wait=True) == []


# --- a batch ----------------------------------------------------------------------------------------


async def test_a_call_gets_up_to_ten_thousand(tasks: Tasks, queue: str, plain: PlainClient) -> None:
    pull = tasks.pull(queue, name="p", max_ack_pending=None)
    await tasks.put(queue, range(2_500))
    claims = await pull.fetch(10_000)
    assert [claim.value for claim in claims] == list(range(2_500))
    await plain.listen()
    async with anyio.create_task_group() as group:
        group.start_soon(pull.fetch, 10_000, PATIENCE)
        with anyio.fail_after(PATIENCE):
            while len(plain.requests) < 2:  # the first one may wait, too
                await checkpoint()
        group.cancel_scope.cancel()
    assert [request["batch"] for request in plain.requests] == [10_000, 10_000]
    with pytest.raises(errors.InvalidOption):
        await pull.fetch(10_001)


async def test_what_came_with_the_first_is_for_the_same_call(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    """The request is then withdrawn, so that others get the rest at once, and as a first delivery."""
    pull = tasks.pull(queue, name="p")
    for number in range(5):
        found: list[Claim] = []
        async with anyio.create_task_group() as group:

            async def fetch(found: list[Claim] = found) -> None:
                found.extend(await pull.fetch(10, timeout=PATIENCE))

            group.start_soon(fetch)
            await plain.until_waiting(1)
            await others.modify(*(others.new(queue, number) for _ in range(3)))
        assert [(claim.value, claim.attempt, claim.claims) for claim in found] == [(number, 1, 1)] * 3
        assert await plain.waiting() == 0
        await others.insert(queue, "next")
        (claim,) = await others.pull(queue, name="p").fetch(10, timeout=PATIENCE)
        assert (claim.value, claim.attempt, claim.claims) == ("next", 1, 1)


# --- how they stand ---------------------------------------------------------------------------------


async def test_how_it_stands_is_said_over_all_processes(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    pull, same = tasks.pull(queue, name="p"), others.pull(queue, name="p")
    assert await pull.info() == ("p", 0, 0, 0, 0, {})
    await tasks.put(queue, range(5))
    claims = await pull.fetch(2)
    info = await same.info()
    assert info[:-1] == ("p", 3, 2, 0, 0)
    (consumer,) = info.consumers.values()
    last = max(claim.version for claim in claims)
    assert (consumer.delivered, consumer.ack_floor.consumer_seq) == ((2, last), 0)
    assert (consumer.pending, consumer.ack_pending, consumer.waiting) == (3, 2, 0)
    assert consumer.config["durable_name"] == encoded(queue)
    assert consumer.config["ack_wait"] == 60 * 10**9
    for claim in (*claims, *await same.fetch(3)):
        await claim.ack()
    assert (await pull.info()).consumers[queue].ack_floor.consumer_seq == 5
    async with anyio.create_task_group() as group:
        group.start_soon(pull.fetch, 1, PATIENCE)
        await plain.until_waiting(1)
        assert (await same.info())[:-1] == ("p", 0, 0, 0, 1)
        group.cancel_scope.cancel()


# --- iteration --------------------------------------------------------------------------------------


async def test_iteration_gives_each_task_once_and_in_order(tasks: Tasks, others: Tasks, queue: str) -> None:
    await tasks.put(queue, range(7))
    seen: list[int] = []
    async for claim in tasks.pull(queue, name="p"):
        seen.append(claim.value)
        await claim.ack()
        if claim.value == 6:
            await others.put(queue, range(7, 10))
        if claim.value == 9:
            break
    assert seen == list(range(10))
    assert await others.queues(queue) == []


async def test_who_leaves_an_iteration_gives_back_what_waits_in_it(
    tasks: Tasks, others: Tasks, queue: str
) -> None:
    await tasks.put(queue, range(4))
    async with aclosing(tasks.pull(queue, name="p").consume(3)) as claims:
        async for claim in claims:
            await claim.ack()
            break
    rest = await others.pull(queue, name="p").fetch(9)
    assert sorted((claim.value, claim.attempt) for claim in rest) == [(1, 1), (2, 1), (3, 1)]


# --- how they are made ------------------------------------------------------------------------------


def test_what_a_url_says_of_streams() -> None:
    made = made_by("nats://h?replicas=3&storage=memory&cluster=east&tags=ssd,eu&max_waiting=9&tls_ca=x")
    placement = {"cluster": "east", "tags": ["ssd", "eu"]}
    assert made == ({"num_replicas": 3, "storage": "memory", "placement": placement}, 9)
    assert made_by("nats://h") == ({}, 512)
    for wrong in ("replicas=0", "replicas=6", "replicas=x", "storage=tape", "max_waiting=", "max_waiting=-1"):
        with pytest.raises(errors.InvalidOption, match="replicas=1 to 5"):
            made_by(f"nats://h?{wrong}")
    with pytest.raises(errors.InvalidOption):
        options_of("nats://h?replica=3")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:secret@one:4222,two:4223/?replicas=3", "nats://one:4222,two:4223"),
        ("nats://secret@one:1,two:2", "nats://one:1,two:2"),
        ("nats://u:secret,more", "nats://..."),
        ("nats://u:12,34:5?secret@one,two", "nats://..."),
    ],
)
def test_an_error_shows_all_hosts_and_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


async def test_streams_are_made_as_the_url_says(own_nats: Callable[..., Server], queue: str) -> None:
    url = own_nats().url
    async with Tasks(f"{url}?storage=memory&max_waiting=7") as tasks:
        await tasks.insert(queue, 1)
        assert (await tasks.pull(queue, name="p").info()).consumers[queue].config["max_waiting"] == 7
    async with Tasks(f"{url}?storage=file") as tasks:  # it is there already
        assert len(await tasks.pull(queue, name="p").fetch(1)) == 1
    client = await nats.connect(url)
    answer = json.loads((await client.request(f"$JS.API.STREAM.INFO.{STREAM}")).data)
    assert answer["config"]["storage"] == "memory"
    await client.request(f"$JS.API.STREAM.DELETE.{STREAM}")
    await client.close()
    async with Tasks(f"{url}?replicas=3") as tasks:
        with pytest.raises(errors.UnsupportedOperation, match="without a cluster"):
            await tasks.insert(queue, 1)


async def test_a_place_is_waited_for(nats_url: str, queue: str) -> None:
    """A cluster that has just started may have no place yet; here a stand-in says so for the server."""
    client = await nats.connect(nats_url)
    left = 2

    async def answer(message: Msg) -> None:
        nonlocal left
        left -= 1
        error: dict[str, Any] = {"err_code": 10023, "description": "insufficient resources"}
        await message.respond(json.dumps({"error": error} if left >= 0 else {"done": True}).encode())

    await client.subscribe(f"$JS.API.{queue}", cb=answer)
    await client.flush()
    server = StoreServer(nats_url)
    with pytest.raises(errors.StoreFull):  # the other request is answered with the error of a full disk
        await server.ask(queue)
    assert await server.place(queue, {}) == {"done": True}
    await server.close()
    await client.close()
