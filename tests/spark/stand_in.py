"""The stand-in for an API that Spark's workers call: it records every call, and may have a limit."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self
from urllib.parse import unquote

import anyio.lowlevel

from intervalq.demo.api import Meter

_WITHIN: Final = 60.0  # In seconds: generous for a busy machine, because it is only a limit.

_REASONS: Final = {200: "OK", 400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error"}


@dataclass(slots=True)
class Call:
    """One call, as this side saw it."""

    at: float
    """When its first byte arrived, in seconds of the stand-in's clock: by default `time.monotonic`."""
    key: str
    idempotency: str | None
    process: str = ""
    """The process that called, if it said so."""
    status: int = 0
    answered: float | None = None
    """When the answer was written; None: not yet, or the caller had left before."""
    gone: float | None = None
    """When the caller closed the connection, if that was before its answer."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A published policy: `limit` calls in any `window` s; one more, and all get 429 for `penalty` s."""

    limit: int
    window: float
    penalty: float


class SparkApi:
    """An HTTP server on a thread of this process, while the context is open.

    `GET /rows/KEY` (any method, any first part) is a call for the row KEY; a header `X-Row` takes precedence.
    It answers `{"key": KEY, "call": the number of calls of this key, "idempotency": ...}`.
    """

    def __init__(
        self,
        *,
        latency: float | Callable[[str, int], float] = 0.0,
        status: Callable[[str, int], int] = lambda _key, _call: 200,
        policy: Policy | None = None,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create one that isn't started yet.

        Args:
            latency: seconds until the answer, or a function of the row's key and the number of its call.
            status: a function of the same, for calls that the policy accepts.
            policy: None: no limit.
            host: the address on which it listens.
            clock: in seconds.
        """
        self.latency = latency
        self.status = status
        self.clock = clock
        self.calls: list[Call] = []
        self.connections: set[_Connection] = set()
        self._policy = policy
        self._meter = Meter(policy.limit, policy.window) if policy else None
        self._refuses_until = -math.inf
        self._host = host
        self._port = 0
        self._counts: Counter[str] = Counter()
        self._held: set[str] = set()
        self._all_held = False
        self._spares_first = False
        self._processes: set[str] = set()
        self._answered_first: int | None = None  # how many calls are answered before all others are held
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        return self._host, self._port

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{self._host}:{self._port}"

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="stand-in")
        self._thread.start()
        assert started.wait(_WITHIN)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    # --- what tests steer -----------------------------------------------------------------------------

    def hold(self, *keys: str, after: int = 0, spare_first: bool = False) -> None:
        """Hold the answers to these keys, or to all calls but the first `after`, until `release`.

        `spare_first`: the first call of each process (header `X-Process`) is answered.
        """
        with self._changed:
            self._held.update(keys)
            self._spares_first = spare_first
            if not keys:
                self._answered_first = after
                self._all_held = self.count >= after

    def release(self, *keys: str) -> None:
        """Send the held answers for these keys, or all; later ones aren't held."""
        with self._changed:
            if keys:
                self._held.difference_update(keys)
            else:
                self._held.clear()
                self._all_held, self._answered_first = False, None
            free = [answer for key, answer in self._waiting if not self._holds(key)]
            self._waiting = [(key, answer) for key, answer in self._waiting if self._holds(key)]
        for answer in free:
            self._loop.call_soon_threadsafe(answer)

    def until(self, happened: Callable[[], object], what: str = "it") -> None:
        """Wait for a condition; it is checked after every call, answer and broken connection."""
        with self._changed:
            if not self._changed.wait_for(happened, _WITHIN):
                raise AssertionError(f"{what} didn't come within {_WITHIN:g} s: {self.report()}")

    # --- what it saw ----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of calls so far."""
        return len(self.calls)

    def per_key(self) -> Counter[str]:
        """How many calls each row had, including refused ones."""
        return Counter(call.key for call in self.calls)

    def repeats(self) -> dict[str, int]:
        """The rows that were called more than once, and how often."""
        return {key: number for key, number in self.per_key().items() if number > 1}

    def refused(self) -> int:
        """How many calls were answered by 429."""
        return sum(call.status == 429 for call in self.calls)

    def in_flight(self) -> list[Call]:
        """Calls without an answer whose caller is still there."""
        return [call for call in self.calls if call.answered is None and call.gone is None]

    def gone(self) -> list[Call]:
        """Calls whose caller closed the connection before the answer: it was killed, or gave up."""
        return [call for call in self.calls if call.gone is not None]

    def gaps(self) -> list[float]:
        """Seconds between calls, in the order of their arrival."""
        arrivals = sorted(call.at for call in self.calls)
        return [later - earlier for earlier, later in pairwise(arrivals)]

    def rate(self) -> float:
        """Calls per second between the first and the last; 0 for fewer than two."""
        gaps = self.gaps()
        return len(gaps) / sum(gaps) if gaps else 0.0

    def most_in_flight(self) -> int:
        """The largest number of calls that were without an answer at the same time."""
        edges = sorted(
            [(call.at, 1) for call in self.calls]
            + [(end, -1) for call in self.calls if (end := call.answered or call.gone) is not None]
        )
        now = most = 0
        for _, step in edges:
            now += step
            most = max(most, now)
        return most

    def most_in(self, window: float) -> int:
        """The most calls that arrived within any `window` seconds, open at its end."""
        recent: deque[float] = deque()
        most = 0
        for at in sorted(call.at for call in self.calls):
            recent.append(at)
            while recent[0] + window <= at:
                recent.popleft()
            most = max(most, len(recent))
        return most

    def report(self) -> dict[str, float]:
        """All the figures; gaps in seconds, rates in calls per second."""
        gaps = sorted(self.gaps())
        return {
            "calls": self.count,
            "rows": len(self.per_key()),
            "repeated": sum(number - 1 for number in self.per_key().values()),
            "refused": self.refused(),
            "gone": len(self.gone()),
            "most_in_flight": self.most_in_flight(),
            "rate": self.rate(),
            "gap_min": gaps[0] if gaps else 0.0,
            "gap_median": gaps[len(gaps) // 2] if gaps else 0.0,
            "gap_max": gaps[-1] if gaps else 0.0,
            "most_in_a_second": self.most_in(1.0),
        }

    # --- the server -----------------------------------------------------------------------------------

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), self._host, 0, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        started.set()
        await self._end.wait()
        server.close()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            await anyio.lowlevel.checkpoint()

    def arrived(self, call: Call, answer: Callable[[dict[str, object], Sequence[str]], None]) -> None:
        """Record a call, and answer it when it is time; on the server's thread."""
        headers: list[str] = []
        with self._changed:
            self._all_held |= self._answered_first is not None and self.count >= self._answered_first
            self.calls.append(call)
            self._counts[call.key] += 1
            spared = self._spares_first and call.process not in self._processes
            self._processes.add(call.process)
            number = self._counts[call.key]
            wait = self._refusal(call.at)
            self._changed.notify_all()
        latency = self.latency if isinstance(self.latency, (int, float)) else self.latency(call.key, number)
        if wait:
            call.status, latency = 429, 0.0  # a gateway refuses at once
            headers.append(f"Retry-After: {max(1, math.ceil(wait))}")
        else:
            call.status = self.status(call.key, number)
        content: dict[str, object] = {"key": call.key, "call": number, "idempotency": call.idempotency}

        def now() -> None:
            answer(content, headers)
            self.changed()

        def later() -> None:
            with self._changed:
                if not wait and not spared and self._holds(call.key):
                    self._waiting.append((call.key, now))
                    return
            now()

        if latency > 0:
            self._loop.call_later(latency, later)
        else:
            later()

    def changed(self) -> None:
        """Wake those who wait for a condition; on the server's thread."""
        with self._changed:
            self._changed.notify_all()

    def _holds(self, key: str) -> bool:
        return self._all_held or key in self._held

    def _refusal(self, at: float) -> float:
        """Seconds for which the policy refuses calls; 0: it accepts this one."""
        if self._policy is None or self._meter is None:
            return 0.0
        if at >= self._refuses_until and self._meter.call(at):
            self._refuses_until = at + self._policy.penalty
            self._meter.reset()
        return max(0.0, self._refuses_until - at)


class _Connection(asyncio.Protocol):
    """One persistent connection of HTTP/1.1, one request after the other."""

    def __init__(self, api: SparkApi) -> None:
        self._api = api
        self._received = b""
        self._at = 0.0
        self._now: Call | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._api.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self._at = self._api.clock()  # first of all: what comes after takes some time
        self._received += data
        self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        self._api.connections.discard(self)
        if self._now is not None:
            self._now.gone = self._api.clock()
            self._api.changed()

    def abort(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def _take(self) -> None:
        """Read one whole request; a client that sends the next before the answer waits for its turn."""
        head, found, body = self._received.partition(b"\r\n\r\n")
        if self._now is not None or not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        words = lines[0].split(" ")
        if len(words) != 3 or "transfer-encoding" in headers:
            self._write(400, {"error": "no request that this server knows"}, ["Connection: close"])
            self._transport.close()
        elif len(body) >= length:
            self._received = body[length:]
            key = headers.get("x-row") or unquote(words[1].partition("?")[0].rpartition("/")[2])
            self._now = call = Call(
                self._at, key, headers.get("idempotency-key"), headers.get("x-process", "")
            )
            self._api.arrived(call, self._answer)

    def _answer(self, content: dict[str, object], headers: Iterable[str]) -> None:
        call, self._now = self._now, None
        if call is None or call.gone is not None or self._transport.is_closing():
            return
        call.answered = self._api.clock()  # before the caller knows, because a test may look at once
        self._write(call.status, content, headers)
        if self._received:
            self._at = self._api.clock()
            self._take()

    def _write(self, status: int, content: dict[str, object], headers: Iterable[str]) -> None:
        body = json.dumps(content).encode()
        lines = [
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        self._transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
