"""A process's own clock: monotonic microseconds, and a sleep that ends within microseconds of its end."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Final, Protocol

import anyio

_COARSE: Final = 5_000
"""Event loops round their waits up to whole milliseconds and may be a few late: the last 5 ms go by timer."""

_LONGEST: Final = 3_600 * 1_000_000
"""Sleep at most an hour at a time: event loops overflow on very long waits."""


class Clock(Protocol):
    """What a shard knows of time by itself. Readings of two clocks must never be compared."""

    def now(self) -> int:
        """Microseconds since some instant; never goes back."""
        ...

    async def sleep_until(self, instant: int) -> None:
        """Wait until `now()` has reached `instant`, never less."""
        ...


# Linux stops CLOCK_MONOTONIC while the machine is suspended, and the store's clock goes on: a slot that was
# slept through would seem to have just come.
_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The time since boot, with a timerfd for the end of a sleep where the system has one (Linux)."""

    def now(self) -> int:
        """See `Clock.now`."""
        return time.clock_gettime_ns(_ID) // 1_000

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        while (left := instant - self.now()) > 0:
            if left > _COARSE:
                await anyio.sleep(min(left - _COARSE, _LONGEST) / 1e6)
            elif (timer := _timer(instant)) is None:
                await anyio.sleep(left / 1e6)
            else:
                try:
                    await anyio.wait_readable(timer)
                finally:
                    os.close(timer)


class LoopClock:
    """The event loop's own time, for event loops that run on virtual time."""

    def now(self) -> int:
        """See `Clock.now`."""
        return round(anyio.current_time() * 1e6)

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        while (left := instant - self.now()) > 0:  # noqa: ASYNC110 - virtual time may be rounded
            await anyio.sleep(left / 1e6)


_SYSTEM: Final = SystemClock()

CLOCK: Final[ContextVar[Clock]] = ContextVar("intervalq_clock", default=_SYSTEM)
"""The clock of queues that are used in this context; tests put a virtual one here."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

_libc: ctypes.CDLL | None = None
if sys.platform == "linux":
    with suppress(OSError, AttributeError):
        _libc = ctypes.CDLL(None, use_errno=True)
        _ = _libc.timerfd_create, _libc.timerfd_settime  # raises where the C library has none


def _timer(instant: int) -> int | None:
    """A descriptor that becomes readable at `instant`; None: not to be had here, or no descriptors left."""
    if _libc is None:
        return None
    timer: int = _libc.timerfd_create(_ID, _TFD_FLAGS)
    if timer < 0:
        return None
    seconds, micros = divmod(instant, 1_000_000)
    spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, micros * 1_000))
    if _libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
        os.close(timer)
        return None
    return timer
