"""Clients over HTTP that go away while they wait: the service sees it, and claims nothing for them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import anyio
import httpx
import pytest

from intervalq.service import _connections
from service.processes import Served
from service.serving import served
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
