"""Keys under one rate in real processes on real servers, some killed with -9, judged by a stub server.

On a busy machine, the stub and the processes wait for a processor. So each call says when its slot was
checked, on the clock that all processes of a machine share, and how many slots its process woke too late for.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import pytest
from redis import Redis

from intervalq._timing.clock import CLOCK
from intervalq.sync import IntervalQueue

KEYS = [f"k{number}" for number in range(6)]
RATE = 40
EACH = 10
LATENESS = 0.1
"""How much further from its slot one call may begin than another, in seconds: on a busy machine, processes
know the clock of the store less precisely."""

GONE = -2
"""Redis's answer for a key that doesn't exist."""


class Stub:
    """A server that records the calls of keys, when they began, and the slots that were given up before."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = DefaultSelector()
        self._peers: list[socket.socket] = []
        self._parts: dict[socket.socket, bytes] = {}
        self._given_up: Counter[tuple[socket.socket, str]] = Counter()
        self.calls: list[tuple[float, str]] = []
        self.given_up: list[str] = []
        """The keys whose slots were given up, once for each slot."""

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
                if not received:
                    self._selector.unregister(peer)
                *lines, self._parts[peer] = (self._parts.get(peer, b"") + received).split(b"\n")
                for line in lines:
                    self._called(peer, *line.decode().split())

    def _called(self, peer: socket.socket, key: str, at: str, given_up: str) -> None:
        assert int(at) <= CLOCK.get().now(), "it began after its call arrived"
        self.calls.append((int(at) / 1e6, key))
        more = int(given_up) - self._given_up[peer, key]
        self._given_up[peer, key] += more
        self.given_up += more * [key]

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
    calls = sorted(calls)
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
        killed, given_up = len(stub.calls), len(stub.given_up)
        stub.until(killed + 120)
        turns = [key for _, key in stub.calls[killed:]] + stub.given_up[given_up:]
        shares = Counter([key for key in turns if key != "gone"])
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
