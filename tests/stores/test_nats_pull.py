"""Pull consumers by the rules of NATS's decision record, seen on the connection and at the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import pytest
from nats.aio.msg import Msg

from faults.proxy import Fault, Proxy, proxied
from intervalq import errors
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._session import batcher
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task import pull as nats_task_pull
from intervalq_stores.nats._task.message import STREAM
from intervalq_stores.nats._task.pull import Pulled, Puller
from intervalq_stores.nats.tasks import NATSTaskStore
from stores.nats_plain_client import PATIENCE, PlainClient


def subscriptions(proxy: Proxy) -> int:
    return sum(len(re.findall(rb"^SUB ", data, re.MULTILINE)) for _, data in proxy.asked)


async def test_it_asks_without_waiting_and_then_less_long_than_its_caller(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    await plain.listen()
    pull = tasks.pull(queue, name="p", max_ack_pending=None)
    assert await pull.fetch(7, no_wait=True) == []
    assert await pull.fetch(1, timeout=0.2) == []
    async with anyio.create_task_group() as group:
        group.start_soon(pull.fetch, 3, 20)
        await plain.until_waiting(1)
        await others.insert(queue, 1)
    await plain.flush()
    zero, one, expires, three, longer, *more = plain.requests
    assert zero == {"batch": 7, "no_wait": True}
    assert one == {"batch": 1, "no_wait": True}
    assert expires.keys() == {"batch", "expires"}
    assert longer.keys() == {"batch", "expires"}
    assert longer["batch"] == 3
    assert 0 < expires["expires"] <= 180e6  # of a short time, a tenth is kept
    assert three == {"batch": 3, "no_wait": True}
    assert 10e9 < longer["expires"] <= 19.9e9
    assert more == []


async def test_what_is_there_takes_one_request(tasks: Tasks, queue: str, plain: PlainClient) -> None:
    await plain.listen()
    await tasks.put(queue, range(5))
    claims = await tasks.pull(queue, name="p").fetch(5, timeout=10)
    assert [claim.value for claim in claims] == list(range(5))
    await plain.flush()
    assert plain.requests == [{"batch": 5, "no_wait": True}]


async def test_one_subscription_serves_many_calls(nats_url: str, queue: str) -> None:
    async with proxied(nats_url) as proxy, Tasks(proxy.url) as tasks:
        pull = tasks.pull(queue, name="p", max_ack_pending=None)
        await tasks.put(queue, range(20))
        await (await pull.fetch(1))[0].ack()
        before = subscriptions(proxy)
        for _ in range(9):
            await (await pull.fetch(1))[0].ack()
        assert len(await pull.fetch(100)) == 10
        assert await pull.fetch(no_wait=True) == []
        assert subscriptions(proxy) == before


async def test_the_first_that_comes_ends_the_wait_and_brings_those_with_it(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    found: list[Claim] = []
    async with anyio.create_task_group() as group:

        async def fetch() -> None:
            found.extend(await tasks.pull(queue, name="p").fetch(10, timeout=PATIENCE))

        group.start_soon(fetch)
        await plain.until_waiting(1)
        await others.modify(*(others.new(queue, number) for number in range(3)))
    assert [claim.value for claim in found] == [0, 1, 2]
    assert await plain.waiting() == 0


# --- what the server says of a request --------------------------------------------------------------


@asynccontextmanager
async def pulling(nats_url: str, queue: str, ping: float = 60.0) -> AsyncIterator[Puller]:
    """A consumer that asks a subject where only the test answers."""
    store = NATSTaskStore(nats_url)
    connection = await store._stream.connection()
    given: list[Msg] = []

    async def stray(message: Msg) -> None:
        given.append(message)

    async with Puller(
        connection, "nats://x", {"durable_name": encoded(queue), "max_waiting": 2}, stray, ping
    ) as puller:
        yield puller
    assert given == []
    await store.aclose()


class Server:
    """Answers requests for tasks instead of the server, with a status line, which only it can send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def answer(self, *lines: str) -> None:
        """Answer the next request."""
        while not (output := await self._reader.readline()).startswith((b"MSG", b"HMSG")):
            assert output
        inbox = output.split()[3].decode()
        await self._reader.readline()
        for line in lines:
            head = f"NATS/1.0 {line}\r\n\r\n"
            self._writer.write(f"HPUB {inbox} {len(head)} {len(head)}\r\n{head}\r\n".encode())
        await self._writer.drain()


@pytest.fixture
async def server(nats_url: str, queue: str) -> AsyncIterator[Server]:
    there = urlsplit(nats_url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    hello = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{encoded(queue)}"
    writer.write(hello + f"SUB {subject} 1\r\nPING\r\n".encode())
    while await reader.readline() != b"PONG\r\n":
        pass
    yield Server(reader, writer)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["404 No Messages"], None),
        (["408 Request Timeout"], None),
        (["408 Requests Pending"], None),
        (["409 Exceeded MaxAckPending"], None),
        (["100 Idle Heartbeat", "404 No Messages"], None),
        (["409 Exceeded MaxWaiting"], errors.TooManyWaiting),
        (["409 Consumer Deleted"], errors.StoreUnavailable),
        (["409 Leadership Change"], errors.StoreUnavailable),
        (["409 Server Shutdown"], errors.StoreUnavailable),
        (["400 Bad Request"], errors.StoreUnavailable),
        (["503"], errors.StoreUnavailable),
    ],
)
async def test_what_the_server_says_of_a_request_is_never_a_task(
    nats_url: str, queue: str, server: Server, lines: list[str], kind: type[Exception] | None
) -> None:
    async with pulling(nats_url, queue) as puller:
        asks: list[Callable[[], Awaitable[Pulled]]] = [lambda: puller.now(3), lambda: puller.wait(3, 15.0)]
        for ask in asks:
            async with anyio.create_task_group() as group:
                group.start_soon(server.answer, *lines)
                if kind is None:
                    assert (await ask()).messages == []
                else:
                    with pytest.raises(kind):
                        await ask()


async def test_a_request_that_the_server_has_forgotten_is_an_error(
    nats_url: str, queue: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection works, but nothing is heard of the request; until then its heartbeats arrive."""
    monkeypatch.setattr(nats_task_pull, "_HEARTBEAT", 0.05)
    async with pulling(nats_url, queue, 0.01) as puller, anyio.create_task_group() as group:

        async def answer() -> None:
            await server.answer("408 Request Timeout")
            await server.answer("100 Idle Heartbeat")

        group.start_soon(answer)
        with pytest.raises(errors.StoreUnavailable, match="forgotten"):
            await puller.wait(1, PATIENCE)


async def test_a_consumer_that_is_removed_is_made_anew(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    """The consumer is removed while a call waits for it, and while none does."""
    pull = tasks.pull(queue, name="p")
    found: list[Claim] = []
    async with anyio.create_task_group() as group:

        async def fetch() -> None:
            found.extend(await pull.fetch(10, timeout=PATIENCE))

        group.start_soon(fetch)
        await plain.until_waiting(1)
        await plain.ask(f"CONSUMER.DELETE.{plain.consumer}")
        await plain.until_waiting(1)
        await others.insert(queue, 1)
    (claim,) = found
    await claim.ack()
    await plain.ask(f"CONSUMER.DELETE.{plain.consumer}")
    await others.insert(queue, 2)
    (claim,) = await pull.fetch(10, timeout=PATIENCE)
    assert claim.value == 2
    await claim.ack()
    assert await others.queues(queue) == []


# --- who goes, and who may come ---------------------------------------------------------------------


async def test_a_call_that_is_cancelled_withdraws_its_request(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(tasks.pull(queue, name="p").fetch, 1, PATIENCE)
        await plain.until_waiting(1)
        group.cancel_scope.cancel()
    await plain.until_waiting(0)
    await tasks.insert(queue, 1)
    (claim,) = await others.pull(queue, name="p").fetch(no_wait=True)
    assert claim.attempt == 1


async def test_what_was_on_its_way_to_a_call_that_left_is_free_at_once(
    nats_url: str, others: Tasks, queue: str, plain: PlainClient
) -> None:
    """It is free long before its ack wait is over."""
    async with proxied(nats_url) as proxy, Tasks(proxy.url, expiry=60) as tasks:
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.pull(queue, name="p").fetch, 1, PATIENCE)
            await plain.until_waiting(1)
            await proxy.begin(Fault.HOLD_ANSWERS)
            await others.insert(queue, 1)
            await plain.until_waiting(0)  # it was sent
            group.cancel_scope.cancel()
        assert await others.pull(queue, name="p").fetch(no_wait=True) == []
        await proxy.heal()
        (claim,) = await others.pull(queue, name="p").fetch(1, timeout=PATIENCE)
        assert (claim.attempt, claim.claims, claim.error) == (1, 1, "")
        await claim.ack()


async def test_more_calls_than_may_wait_are_refused(
    nats_url: str, others: Tasks, queue: str, plain: PlainClient
) -> None:
    """This process refuses them by its own limit, and the server by that of all processes."""
    tasks = Tasks(f"{nats_url}?max_waiting=2")
    pull = tasks.pull(queue, name="p", max_waiting=2)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(pull.fetch, 1, PATIENCE)
        await plain.until_waiting(2)
        with pytest.raises(errors.TooManyWaiting) as caught:
            await pull.fetch()
        assert (caught.value.name, caught.value.limit) == ("p", 2)
        with pytest.raises(errors.TooManyWaiting) as caught:
            await others.pull(queue, name="p").fetch(1, timeout=PATIENCE)
        assert (caught.value.name, caught.value.limit) == (queue, 2)
        assert await others.try_claim(queue) is None
        group.cancel_scope.cancel()
    await tasks.aclose()


async def test_a_worker_that_is_idle_has_a_request_waiting(
    tasks: Tasks, others: Tasks, queue: str, plain: PlainClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request brings each task by itself."""
    monkeypatch.setattr(batcher, "CHECK", 3600.0)
    done: list[int] = []
    moved = anyio.Event()

    @tasks.worker(queue, concurrency=1)
    async def work(claim: Claim) -> None:
        done.append(claim.value)
        moved.set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            for number in range(3):
                moved = anyio.Event()
                await plain.until_waiting(1)
                await others.insert(queue, number)
                await moved.wait()
            await plain.until_waiting(1)
            tasks.stop()
    assert done == [0, 1, 2]
    await plain.until_waiting(0)


async def test_a_lost_connection_ends_what_waits_and_it_is_asked_again(
    nats_url: str, others: Tasks, queue: str, plain: PlainClient
) -> None:
    found: list[Claim] = []
    async with proxied(nats_url) as proxy, Tasks(proxy.url, expiry=60) as tasks:
        async with anyio.create_task_group() as group:

            async def fetch() -> None:
                found.extend(await tasks.pull(queue, name="p").fetch(10, timeout=PATIENCE))

            group.start_soon(fetch)
            await plain.until_waiting(1)
            before = proxy.connections
            await proxy.begin(Fault.REFUSE)
            await plain.until_waiting(0)
            await proxy.heal()
            await plain.until_waiting(1)
            assert proxy.connections > before
            await others.insert(queue, 1)
        assert [(claim.value, claim.attempt) for claim in found] == [(1, 1)]
        await found[0].ack()
    assert await others.queues(queue) == []


async def test_a_call_goes_on_by_the_next_session_when_its_own_has_expired(
    tasks: Tasks, others: Tasks, queue: str
) -> None:
    """The store has forgotten the session, of which its process has just heard."""
    pull = tasks.pull(queue, name="p")
    assert await pull.fetch(no_wait=True) == []
    session = pull._session()
    before = session.batcher.session
    await others.insert(queue, 1)
    tasks._here()._sessions.clear()  # type: ignore[attr-defined] # of this store
    session.lapsed()
    (claim,) = await pull.fetch(1, timeout=10)
    assert session.batcher.session != before
    await claim.ack()
