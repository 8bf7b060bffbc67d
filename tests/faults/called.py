"""The called service: records when each job's call arrived, on its own clock, as the kernel timestamped it.

Jobs call it by a datagram over a Unix socket: a socket in a folder can be reached from every network
namespace, loses nothing, and costs a job a few microseconds. Because of the kernel's timestamp, it doesn't
matter how late a busy machine runs this service.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from faults.verdict import Start, Step
from intervalq._timing.clock import SystemClock

_SO_TIMESTAMPNS: Final = getattr(socket, "SO_TIMESTAMPNS", 35)
_STEPPED: Final = 2_000
"""The change of the wall clock against the time since boot, in microseconds, that counts as a step."""

_CLOSE: Final = 100
"""Microseconds within which two clocks must be read to be compared."""

_clock: Final = SystemClock()


def now() -> int:
    """The clock of the called service and of the driver: microseconds since boot."""
    return _clock.now()


@dataclass(frozen=True, slots=True)
class Call:
    """What a job reports of itself; instants are microseconds since boot."""

    shard: str
    number: int
    generation: str
    ticket: int
    check: int
    tolerance: int
    heard: int
    straight: bool

    def to_bytes(self) -> bytes:
        """The datagram."""
        return json.dumps([getattr(self, name) for name in self.__slots__]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The report in a datagram made by `to_bytes`."""
        return cls(*json.loads(data))


class Called:
    """The service: a thread of the driver, from `start` to `close`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "called"
        self.starts: list[Start] = []
        self.steps: list[Step] = []
        """Steps of this machine's wall clock, in case somebody sets it during the run."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._stamped = True
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:  # not Linux: arrivals are timestamped here instead, and may seem later than they were
            self._stamped = False
        self._socket.bind(str(self.path))
        self._marked = threading.Event()
        self._wall = _wall_less_boot()
        self._thread = threading.Thread(target=self._serve, name="called", daemon=True)

    def start(self) -> Self:
        """Begin to receive calls."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Receive what has arrived, and end."""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
            self._thread.join()
        self._socket.close()

    def since(self, instant: int) -> list[Start]:
        """The calls that arrived after an instant, of jobs that also began after it."""
        return [start for start in list(self.starts) if start.check > instant]

    def taken(self) -> list[Start]:
        """All calls that have arrived so far."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
            mark.sendto(b"?", str(self.path))
        self._marked.wait()
        self._marked.clear()
        return list(self.starts)

    def _serve(self) -> None:
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(4096, 256)
            if not data:
                return
            if data == b"?":
                self._marked.set()
                continue
            call = Call.from_bytes(data)
            arrived = self._stamp(ancillary)
            self.starts.append(Start(arrived, **{name: getattr(call, name) for name in Call.__slots__}))

    def _stamp(self, ancillary: list[Any]) -> int:
        wall = _wall_less_boot()
        if abs(wall - self._wall) > _STEPPED:
            at = now()
            self.steps.append(Step(at - 1_000_000, at, wall - self._wall))
        self._wall = wall
        for level, kind, data in ancillary:
            if self._stamped and (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, nanoseconds = struct.unpack("ll", data)
                stamp: int = seconds * 1_000_000 + nanoseconds // 1_000
                return stamp - wall
        return now()


def _wall_less_boot() -> int:
    """How far the wall clock is ahead of the time since boot; read until nothing came in between."""
    while True:
        before = now()
        wall = time.time_ns() // 1_000
        after = now()
        if after - before <= _CLOSE:
            return wall - (before + after) // 2
