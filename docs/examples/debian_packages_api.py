"""The API of the example: it answers for packages, rejects excess calls, and times each on its own clock."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Self

import anyio

from intervalq.demo.api import Meter

_QUICK, _SLOW = 0.02, 0.3
"""Seconds that an answer takes for the smallest packages and for the largest ones."""

_LARGE: Final = 100_000
"""The size in kilobytes from which an answer takes longest."""


class PackagesAPI:
    """An HTTP server on a thread of this process, for as long as the context is open.

    `GET /packages/NAME?size=KB` answers after a time that grows with the size. More than `limit` calls in any
    second get 429.
    """

    def __init__(self, limit: int) -> None:
        self.arrivals: list[float] = []
        self.per_key: Counter[str] = Counter()
        self.refused = 0
        self._meter = Meter(limit, 1.0)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def report(self) -> dict[str, Any]:
        """Statistics of the calls: counts, and seconds between calls."""
        arrivals = sorted(self.arrivals)
        gaps = sorted(later - earlier for earlier, later in pairwise(arrivals))
        span = arrivals[-1] - arrivals[0] if arrivals else 0.0
        return {
            "calls": len(arrivals),
            "rows": len(self.per_key),
            "repeated": sum(count - 1 for count in self.per_key.values()),
            "refused": self.refused,
            "rate": len(gaps) / span if span else 0.0,
            "most_in_a_second": _most(arrivals),
            "gap_p1": gaps[len(gaps) // 100] if gaps else None,
            "gap_p50": gaps[len(gaps) // 2] if gaps else None,
            "gap_max": gaps[-1] if gaps else None,
        }

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /packages/"):
                at = time.monotonic()
                name, _, size = head.split(b" ", 2)[1].decode().rpartition("/")[2].partition("?size=")
                await self._answer(name, int(size or 0), at, writer.write)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def _answer(self, name: str, size: int, at: float, write: Callable[[bytes], None]) -> None:
        self.arrivals.append(at)
        self.per_key[name] += 1
        if wait := self._meter.call(at):
            self.refused += 1
            write(_response("429 Too Many Requests", {}, f"Retry-After: {math.ceil(wait)}\r\n"))
            return
        share = math.log1p(min(size, _LARGE)) / math.log1p(_LARGE)
        await anyio.sleep(_QUICK + (_SLOW - _QUICK) * share**4)
        write(_response("200 OK", {"name": name, "megabytes": round(size / 1024, 3)}))


def _response(status: str, content: dict[str, Any], header: str = "") -> bytes:
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{header}\r\n"
    )
    return head.encode() + body


def _most(arrivals: list[float]) -> int:
    first, most = 0, 0
    for last, at in enumerate(arrivals):
        while arrivals[first] + 1.0 <= at:
            first += 1
        most = max(most, last - first + 1)
    return most
