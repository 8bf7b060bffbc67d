"""What clients that stop, stall or flood can't do: keep others out, or hold a service up. On real sockets."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import grpc.aio
import httpx
import pytest

from intervalq._wire import intervalq_v1_pb2 as pb
from intervalq.errors import StoreError
from intervalq.rules import Advance, Hold, Resume, Settings
from intervalq.service import _serve
from intervalq.service._refusal import Refusal
from intervalq.service._remote import over_grpc
from intervalq.service._remote.places import Places
from intervalq.store import Waking, open_store
from intervalq.tasks.rules import Row, Worked
from intervalq_stores.memory.tasks import MemoryTaskStore
from service.grpc_client import GrpcClient
from service.processes import Served
from service.serving import serving

HASTY = str(Path(__file__).with_name("hasty_service.py"))
CLIENT = Path(__file__).with_name("many_streams.py")


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    with Served("memory://", program=HASTY) as service:
        yield service


@contextmanager
def stopped_client(address: str, streams: int) -> Iterator[None]:
    """A process with so many streams of wake-ups and a claim that waits, stopped by SIGSTOP."""
    path = os.pathsep.join([str(CLIENT.parent.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(CLIENT), address, str(streams)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            client.send_signal(signal.SIGSTOP)
            yield
        finally:
            client.kill()


def sockets_of(service: Served) -> set[str]:
    """The sockets of the process of a service."""
    found = set[str]()
    for each in Path(f"/proc/{service.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(each.readlink()))
    return {name for name in found if name.startswith("socket:")}


async def closed(service: Served, before: set[str], but: int = 0) -> None:
    """Wait until a service has closed the sockets that it has and did not have before, but so many."""
    opened = sockets_of(service) - before
    assert opened
    with anyio.fail_after(60):
        while len(opened & sockets_of(service)) > but:
            await anyio.sleep(0.05)


async def test_a_stopped_client_keeps_nobody_from_listening(tmp_path: Path) -> None:
    """It has all streams; another client gets some at once, and is woken."""
    async with serving(f"memory://{tmp_path}") as address:
        opened = anyio.to_thread.run_sync
        with ExitStack() as stack:
            client = stopped_client(address, over_grpc.MAX_LISTENING)
            await opened(stack.enter_context, client)
            store = open_store(f"intervalq://{address}")
            assert isinstance(store, Waking)
            await store.apply("q", Advance(settings=Settings(1_000), attach=True, nonce="n"))
            await store.apply("q", Hold())
            async with AsyncExitStack() as listening:
                woken = await listening.enter_async_context(store.wakeups("q"))
                for number in range(over_grpc.MAX_LISTENING // 2 - 1):
                    await listening.enter_async_context(store.wakeups(f"p{number}"))
                with pytest.raises(StoreError, match="too many clients listen"):
                    async with store.wakeups("r"):
                        pass
                await store.apply("q", Resume())
                with anyio.fail_after(30):
                    await woken()
            await store.aclose()


def test_a_busy_client_keeps_its_connection(hasty: Served) -> None:
    """It sends one request after the other, while silent clients that came later are cut off."""
    assert hasty.http is not None
    host, _, port = hasty.http.rpartition(":")
    for _ in range(3):
        busy = HTTPConnection(host, int(port), timeout=60)
        busy.connect()
        busy.auto_open = 0  # there is no other connection
        longest, last = 0.0, time.monotonic()
        with closing(busy), socket.create_connection((host, int(port)), timeout=60) as silent:
            silent.setblocking(False)
            while not ended(silent):
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                try:
                    busy.request("GET", "/healthz")
                    assert busy.getresponse().read() == b"ok\n"
                except ConnectionError:
                    assert longest > 0.2, "only a client that its machine held up may be cut off"
                    break


async def test_a_client_that_waits_for_its_answer_keeps_its_connection(hasty: Served) -> None:
    """It waits for a task while silent clients that came later are cut off, one after the other."""
    assert hasty.http is not None
    host, _, port = hasty.http.rpartition(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as waiting:
        body = json.dumps({"claimantId": "me", "queues": ["awaited"]})
        waiting.request("POST", "/api/v0/claim/wait", body, {"Content-Type": "application/json"})
        for _ in range(2):
            with socket.create_connection((host, int(port)), timeout=60) as silent:
                assert await anyio.to_thread.run_sync(silent.recv, 1) == b""
        async with grpc.aio.insecure_channel(hasty.address) as channel:
            await GrpcClient(channel, "another").insert("awaited")
        answer = json.loads((await anyio.to_thread.run_sync(waiting.getresponse)).read())
        assert answer["task"]["queue"] == "awaited"


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended a connection that doesn't block."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_a_stopped_client_is_given_up(hasty: Served) -> None:
    """Its connection ends, so that the task it waits for is there for others."""
    before = sockets_of(hasty)
    with ExitStack() as stack:
        await anyio.to_thread.run_sync(stack.enter_context, stopped_client(hasty.address, 8))
        await closed(hasty, before)
        async with grpc.aio.insecure_channel(hasty.address) as channel:
            client = GrpcClient(channel, "me")
            await client.insert("tasks")
            assert await client.try_claim("tasks") is not None


def test_places_are_shared_by_those_who_want_them() -> None:
    places, ended = Places(6), list[str]()
    with ExitStack() as stack:

        def take(caller: str) -> None:
            stack.enter_context(places.place(caller, lambda: ended.append(caller)))

        for _ in range(6):
            take("a")
        for _ in range(3):
            take("b")
        with pytest.raises(Refusal, match="too many"):
            take("b")
        take("c")
        take("c")
        with pytest.raises(Refusal, match="too many"):
            take("c")
        assert sorted(ended) == ["a", "a", "a", "a", "b"]
    for _ in range(2):  # all are free again
        with ExitStack() as stack:
            for _ in range(6):
                take("d")


def test_places_that_can_t_be_shared_evenly_stay_where_they_are() -> None:
    """Of five, the second caller gets two: with a third, both would take it from each other for ever."""
    places = Places(5)
    with ExitStack() as stack:
        for caller in "aaaaabb":
            stack.enter_context(places.place(caller, lambda: None))
        for caller in "ba":
            with pytest.raises(Refusal, match="too many"):
                stack.enter_context(places.place(caller, lambda: None))


async def test_requests_that_never_end_are_cut_off(hasty: Served) -> None:
    """Connections that send nothing, half a head, half a body, or half of gRPC's first words."""
    assert hasty.http is not None
    before = sockets_of(hasty)
    web, other = (_place(address) for address in (hasty.http, hasty.address))
    with ExitStack() as stack:
        for place, sent in (
            (web, b""),
            (web, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "),
            (web, b"POST /v1/tasks/count HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"),
            (web, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal"),
            (other, b"PRI * HTTP/2.0\r\n"),
        ):
            for _ in range(200):
                half = stack.enter_context(socket.create_connection(place))
                half.sendall(sent)
        async with httpx.AsyncClient() as client:  # they are there, and others are answered
            assert (await client.get(f"http://{hasty.http}/healthz")).text == "ok\n"
        await closed(hasty, before)


async def test_further_connections_are_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_serve, "MAX_CONNECTIONS", 3)
    async with serving(f"memory://{tmp_path}") as address, AsyncExitStack() as stack:
        greeted = []
        for _ in range(5):
            stream = await stack.enter_async_context(await anyio.connect_tcp(*_place(address)))
            with anyio.move_on_after(60), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                greeted.append(await stream.receive())  # the service's first words
        assert len(greeted) == 3


def test_a_service_may_have_more_connections_than_the_programs_of_its_user_usually_have() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, usual[1]))
    try:
        with Served("memory://") as service, ExitStack() as stack:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            assert service.http is not None
            for _ in range(300):
                stack.enter_context(socket.create_connection(_place(service.http)))
            assert httpx.get(f"http://{service.http}/healthz", timeout=20).text == "ok\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


async def test_answers_that_nobody_takes_are_thrown_away(hasty: Served) -> None:
    """Eight clients ask for 16 MB and read nothing; one that reads slowly gets all of it."""
    assert hasty.http is not None
    async with httpx.AsyncClient(base_url=f"http://{hasty.http}", timeout=60) as client:
        for part in range(8):
            tasks = [{"queue": "large", "id": f"{part}-{each}", "value": "x" * 250_000} for each in range(8)]
            answer = await client.post("/api/v0/modify", json={"inserts": tasks})
            assert answer.status_code == 200, answer.text
    before = sockets_of(hasty)
    body = b'{"queue": "large"}'
    select = b"POST /v1/tasks/select HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    stream = b"GET /api/v0/tasks/stream?queue=large HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        for sent, room in ((stream, 16_384), *((select, 16_384),) * 7, (select, 262_144)):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            reader.connect(_place(hasty.http))
            reader.sendall(sent)
        taken = 0
        reader.setblocking(False)
        with anyio.fail_after(60):
            while taken < 16_000_000:
                await anyio.wait_readable(reader)
                taken += len(got := reader.recv(1_000_000))
                assert got, f"cut off after {taken} bytes"
                await anyio.sleep(0.001)
        await closed(hasty, before, but=1)


class Generous(MemoryTaskStore):
    """A store that hands tasks over to one session without end."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ended = anyio.Event()

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        async def woken() -> Worked:
            await (anyio.lowlevel.checkpoint() if session == "s" else anyio.sleep_forever())
            return Worked(claimed=(Row("t", 1, "q", 0, f'"{"x" * 100_000}"', session=session),))

        try:
            yield woken
        finally:
            if session == "s":
                self.ended.set()


async def test_wake_ups_that_nobody_takes_end_their_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client answers pings, but reads nothing, so that its stream fills up."""
    monkeypatch.setattr(over_grpc, "_PATIENCE", 0.2)
    store = Generous(f"memory://{tmp_path}")
    async with serving(store) as address, grpc.aio.insecure_channel(address) as channel:
        stream = channel.unary_stream(
            "/intervalq.v1.Store/Listen",
            request_serializer=pb.Subject.SerializeToString,
            response_deserializer=pb.Wakeup.FromString,
        )(pb.Subject(version=1, kind=pb.TASKS, name="s"))
        await stream.read()
        with anyio.fail_after(60):
            await store.ended.wait()
            with pytest.raises(grpc.aio.AioRpcError, match="others listen"):
                await to_the_end(stream)


async def to_the_end(stream: grpc.aio.UnaryStreamCall[Any, pb.Wakeup]) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
