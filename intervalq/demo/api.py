"""A small HTTP API with a rate limit, like those of published APIs, that reports the calls it received."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Self

from intervalq.demo import countries

_MAX_ARRIVALS: Final = 1_000_000
"""How many of the newest arrivals are kept for the report: some 32 MB of them."""

_MAX_HEAD: Final = 8192
"""The longest head of a request, in bytes."""

_PATIENCE: Final = 10.0
"""Seconds that a client has to send its request."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
}


class Meter:
    """Counts calls, and accepts at most `limit` of them in any `window` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        if limit < 1 or not (math.isfinite(window) and window > 0):
            raise ValueError("a limit is at least 1 call, its window is more than 0 seconds")
        self.limit = limit
        self.window = window
        self.reset()

    def reset(self) -> None:
        """Forget all calls."""
        self._recent: deque[float] = deque()
        self._arrivals: deque[float] = deque(maxlen=_MAX_ARRIVALS)
        self.calls = 0
        self.accepted = 0

    def call(self, at: float) -> float:
        """Count a call that arrived at `at` seconds; return 0 if accepted, else after how long one would be.

        A window is open at its end: with 1 call in 1 s, calls just 1 s apart are accepted.
        """
        self.calls += 1
        self._arrivals.append(at)
        while self._recent and self._recent[0] + self.window <= at:
            self._recent.popleft()
        if len(self._recent) >= self.limit:
            return self._recent[0] + self.window - at
        self._recent.append(at)
        self.accepted += 1
        return 0.0

    def report(self) -> dict[str, Any]:
        """Report the calls: counts, and seconds between the arrivals."""
        arrivals = sorted(self._arrivals)
        gaps = sorted(later - earlier for earlier, later in pairwise(arrivals))
        return {
            "limit": self.limit,
            "window": self.window,
            "calls": self.calls,
            "accepted": self.accepted,
            "rejected": self.calls - self.accepted,
            "gaps": {
                "min": _percentile(gaps, 0),
                "p1": _percentile(gaps, 1),
                "p50": _percentile(gaps, 50),
                "p99": _percentile(gaps, 99),
            },
            "most_in_window": _most_in_window(arrivals, self.window),
        }


class DemoAPI:
    """The API on a port of its own, for as long as the context is open. On asyncio only.

    `GET /countries/XX` answers JSON, or 429 with `Retry-After` in whole seconds; `GET /report` reports
    the calls since it was started, or since `POST /reset`.
    """

    def __init__(
        self,
        *,
        limit: int = 1,
        window: float = 1.0,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an API that isn't started yet.

        Args:
            limit: how many calls are accepted in any `window`.
            window: seconds.
            host: the address on which it listens.
            port: 0: any that is free; see `url`.
            clock: seconds, for tests.
        """
        self.meter = Meter(limit, window)
        self.clock = clock
        self._host = host
        self._port = port
        self._codes = frozenset(countries())
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its URL, once it is started."""
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self._host, self._port, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()  # connected clients still get an answer, which nothing waits for
            self._server = None

    def answer(self, method: str, path: str, arrival: float) -> bytes:
        """Answer a request whose connection was accepted at `arrival` on the clock."""
        kind, _, code = path.partition("?")[0].lstrip("/").partition("/")
        expected = "POST" if kind == "reset" else "GET"
        if kind not in {"countries", "report", "reset"} or (kind != "countries" and code):
            return _response(404, {"error": "there are /countries/XX, /report and /reset"})
        if method != expected:
            return _response(405, {"error": f"use {expected}"}, f"Allow: {expected}")
        if kind == "report":
            return _response(200, self.meter.report())
        if kind == "reset":
            self.meter.reset()
            return _response(200, {"calls": 0})
        return self._country(code, arrival)

    def _country(self, code: str, arrival: float) -> bytes:
        if wait := self.meter.call(arrival):
            after = f"Retry-After: {max(1, math.ceil(wait))}"
            return _response(429, {"error": "too many calls", "code": code[:20]}, after)
        if code not in self._codes:
            return _response(404, {"error": "no such country", "code": code[:20]})
        return _response(200, {"code": code, "call": self.meter.calls})


async def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    limit: int = 1,
    window: float = 1.0,
    *,
    started: Callable[[DemoAPI], object] = lambda _: None,
) -> None:
    """Run the API until this is cancelled; `started` is notified when it can be called."""
    async with DemoAPI(limit=limit, window=window, host=host, port=port) as api:
        started(api)
        await asyncio.Event().wait()


class _Connection(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, api: DemoAPI) -> None:
        self._api = api
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # First of all, because everything after it takes some time.
        self._arrival = self._api.clock()
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" not in self._head and len(self._head) <= _MAX_HEAD:
            return
        words = self._head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(self._head) > _MAX_HEAD or len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._transport.write(_response(400, {"error": "not an HTTP/1.1 request"}))
        else:
            self._transport.write(self._api.answer(words[0], words[1], self._arrival))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._timer.cancel()


def _response(status: int, content: dict[str, Any], *headers: str) -> bytes:
    body = json.dumps(content).encode()
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Take the value at the nearest rank; None if there is no value."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)], 6)


def _most_in_window(ordered: Sequence[float], window: float) -> int:
    first, most = 0, 0
    for last, at in enumerate(ordered):
        while ordered[first] + window <= at:
            first += 1
        most = max(most, last - first + 1)
    return most
