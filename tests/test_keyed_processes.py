"""Keys under one rate in real processes on real servers, some killed with -9, judged by a stub server."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import pytest
from redis import Redis

from intervalq.sync import IntervalQueue

KEYS = [f"k{number}" for number in range(6)]
RATE = 40
EACH = 10
LATENESS = 0.1
"""How much longer one call may take to the stub than another on a busy machine, in seconds."""

GONE = -2
"""Redis's answer for a key that doesn't exist."""


class Stub:
    """A server that records, on its own clock, when each call of a key arrived."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = DefaultSelector()
        self._peers: list[socket.socket] = []
        self.calls: list[tuple[float, str]] = []

    def expect(self, count: int) -> None:
        """Wait until this number of processes are ready, and let them begin."""
        new = [self._listener.accept()[0] for _ in range(count)]
        for peer in new:
            assert peer.recv(6) == b"ready\n"
        for peer in new:
            peer.sendall(b"!")
            self._selector.register(peer, EVENT_READ)
        self._peers += new

    def until(self, count: int) -> None:
        """Receive calls until there are this many."""
        while len(self.calls) < count:
            for ready, _ in self._selector.select():
                peer = ready.fileobj
                assert isinstance(peer, socket.socket)
                try:
                    received = peer.recv(4_096)
                except ConnectionResetError:
                    received = b""
                now = time.monotonic()
                if not received:
                    self._selector.unregister(peer)
                self.calls += [(now, key) for key in received.decode().split()]

    def close(self) -> None:
        for each in (*self._peers, self._listener):
            each.close()
        self._selector.close()


@contextmanager
def processes(
    stub: Stub, store: str, name: str, keys: list[list[str]]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run one process for each list of keys; all are killed at the end."""
    script = Path(__file__).parent / "keyed_process.py"
    given = {"store": store, "name": name, "rate": f"{RATE}/s", "each": f"{EACH}/s", "port": stub.port}
    started = [
        subprocess.Popen([sys.executable, str(script), json.dumps(given | {"keys": mine})]) for mine in keys
    ]
    try:
        stub.expect(len(started))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def excess(instants: list[float], rate: float) -> float:
    """The most calls by which any period exceeds the rate; the first call of a period is free."""
    most, least = 0.0, float("inf")
    for number, at in enumerate(instants):
        least = min(least, number - rate * at)
        most = max(most, number - rate * at - least)
    return most


def over(calls: list[tuple[float, str]]) -> list[str]:
    """The keys whose rate was exceeded by more than late calls explain."""
    by_key = {key: [at for at, whose in calls if whose == key] for key in (*KEYS, "gone")}
    found = [key for key, instants in by_key.items() if excess(instants, EACH) > 1 + EACH * LATENESS]
    return found + ["all"] * (excess([at for at, _ in calls], RATE) > 1 + RATE * LATENESS)


def test_the_judge_sees_a_rate_that_is_exceeded() -> None:
    spaced = [(number / RATE, KEYS[number % 6]) for number in range(240)]
    assert over(spaced) == []
    assert over([(at * 0.9, key) for at, key in spaced]) == ["all"]
    assert over([(at, KEYS[0] if key == KEYS[1] else key) for at, key in spaced]) == [KEYS[0]]


@pytest.mark.parametrize("kind", ["redis", "redis_cluster", "postgres"])
def test_both_rates_and_shares_are_kept_while_processes_are_killed(
    kind: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(f"{kind}_url")
    name = f"keyed-{secrets.token_hex(6)}"
    stub = Stub()
    parts = [KEYS, [*KEYS, "gone"], KEYS, KEYS[:2]]
    with processes(stub, store, name, parts) as started:
        stub.until(60)
        started[0].kill()  # while it has places in the turns of its keys
        stub.until(120)
        started[1].kill()
        killed = len(stub.calls)
        stub.until(killed + 120)
        shares = Counter([key for _, key in stub.calls[killed:] if key != "gone"])
        started[2].kill()
        stub.until(killed + 160)  # two keys remain, whose own rates are the limit
    stub.close()
    assert over(stub.calls) == []
    assert set(shares) == set(KEYS)
    assert min(shares.values()) >= 0.6 * 120 / len(KEYS), shares
    if kind == "redis":
        with Redis.from_url(store) as server:
            left = [server.pttl(f"intervalq:{{{name}:{key}}}") for key in (*KEYS, "gone")]
        assert all(0 < each <= 90_000 or each == GONE for each in left), left
    with IntervalQueue(name, store=store) as queue:
        queue.drop()
