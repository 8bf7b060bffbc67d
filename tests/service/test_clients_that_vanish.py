"""Clients that go away while they wait, or begin requests and say no more: neither keeps a place."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from intervalq.service import _connections, _grpc
from service.grpc_client import GrpcClient
from service.processes import Served
from service.serving import served, serving
from service.test_clients_that_stop import HASTY, closed, sockets_of


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    with Served("memory://", program=HASTY) as service:
        yield service


def waiting(service: Served, queue: str) -> socket.socket:
    """A connection whose request waits for a task."""
    assert service.http is not None
    host, _, port = service.http.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    body = json.dumps({"claimantId": "gone", "queues": [queue]}).encode()
    head = b"POST /api/v0/claim/wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % len(body) + body)
    answered(service)
    return client


def answered(service: Served) -> None:
    """Let a service do what it was asked before."""
    for _ in range(3):
        assert httpx.get(f"http://{service.http}/healthz", timeout=60).text == "ok\n"


async def test_a_client_that_has_asked_for_more_and_goes_away_waits_no_longer(hasty: Served) -> None:
    before = sockets_of(hasty)
    with waiting(hasty, "more") as client:
        for _ in range(2):
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answered(hasty)
        opened = sockets_of(hasty) - before
    with anyio.fail_after(60):
        while opened & sockets_of(hasty):
            await anyio.sleep(0.05)
    async with httpx.AsyncClient(base_url=f"http://{hasty.http}/api/v0", timeout=60) as other:
        await other.post("/modify", json={"inserts": [{"queue": "more"}]})
        claimed = await other.post("/claim", json={"claimantId": "other", "queues": ["more"]})
        assert claimed.json()["task"]["queue"] == "more"


async def test_a_client_that_sends_far_ahead_is_cut_off(hasty: Served) -> None:
    """It is not read on, so nobody would see that it goes away."""
    before = sockets_of(hasty)
    with waiting(hasty, "ahead") as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3_000)
        await closed(hasty, before)


async def test_the_system_asks_silent_clients_whether_they_are_there(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[int]()
    watch = _connections._watch

    def watched(client: socket.socket) -> None:
        watch(client)
        found.append(client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
            if hasattr(socket, name):
                found.append(client.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)))

    monkeypatch.setattr(_connections, "_watch", watched)
    async with served(f"memory://{queue}") as there, httpx.AsyncClient() as client:
        await client.get(f"http://{there.http}/healthz")
    assert found in ([1, 15, 5, 3], [1])


async def test_a_request_over_grpc_whose_message_does_not_come_ends(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has a place of the service's, whatever its method is."""
    monkeypatch.setattr(_grpc, "_PATIENCE", 0.2)
    async with serving(f"memory://{queue}") as address, grpc.aio.insecure_channel(address) as channel:
        for method in ("api.EntroQ/TryClaim", "api.EntroQ/StreamTasks", "intervalq.v1.Store/Apply"):
            assert await ends(channel, method) == grpc.StatusCode.DEADLINE_EXCEEDED, method
        for method in ("Check", "Watch"):
            ended = await ends(channel, f"grpc.health.v1.Health/{method}")
            assert ended == grpc.StatusCode.DEADLINE_EXCEEDED
        reflected = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        assert await ends(channel, reflected) == grpc.StatusCode.OK
        empty: Any = channel.stream_unary("/api.EntroQ/Time")()
        await empty.done_writing()
        assert await empty.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await GrpcClient(channel, "me").try_claim("q") is None


async def test_a_message_over_grpc_that_can_not_be_read_is_an_error_of_the_client(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(f"memory://{queue}") as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/api.EntroQ/Modify")
        assert await call(b"\xff" * 9).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


async def ends(channel: grpc.aio.Channel, method: str) -> grpc.StatusCode:
    """How a request ends whose message does not come."""
    with anyio.fail_after(60):
        code: grpc.StatusCode = await channel.stream_stream(f"/{method}")().code()
    return code


async def test_streams_of_health_leave_places_for_others(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_grpc, "_MAX_WATCHING", 2)
    async with serving(f"memory://{queue}") as address, grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch
        streams = [watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for stream in streams:
            assert (await stream.read()).status == health_pb2.HealthCheckResponse.SERVING
        with anyio.fail_after(60):
            refused = watch(health_pb2.HealthCheckRequest())
            assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            streams[0].cancel()
            while await watch(health_pb2.HealthCheckRequest()).read() is grpc.aio.EOF:
                await anyio.sleep(0.05)
