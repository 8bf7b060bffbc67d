"""Alarms of an asyncio event loop on Linux: exact to microseconds, all of them by one descriptor (a timerfd).

An event loop rounds its own waits up to whole milliseconds. The descriptor is open while anybody waits.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
import time
from contextlib import suppress
from itertools import count
from typing import Final
from weakref import WeakKeyDictionary

from intervalq._timing.backends import Bell

# Linux stops CLOCK_MONOTONIC while the machine is suspended, and the store's clock goes on: a slot that was
# slept through would seem to have just come.
CLOCK_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


FAR: Final = 2**53
"""An instant that never comes."""

_LONGEST: Final = 3_600
"""The most seconds to ask an event loop to wait: they overflow on very long waits."""

_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)

_libc: ctypes.CDLL | None = None
if sys.platform == "linux":
    with suppress(OSError, AttributeError):
        _libc = ctypes.CDLL(None, use_errno=True)
        _ = _libc.timerfd_create, _libc.timerfd_settime  # raises where the C library has none


class Alarms:
    """Rings bells at instants of `CLOCK_ID`, in whole microseconds. Made by `alarms_of`."""

    # It doesn't hold its event loop, or none would ever be collected: see `_of`.

    def __init__(self) -> None:
        self._set: list[tuple[int, int, Bell]] = []  # a heap
        self._early = 0  # about how many of them nobody waits for any more
        self._numbers = count()
        self._timer = -1
        self._next = 0  # what the timer is set to; 0: nothing

    async def wait(self, bell: Bell, instant: int) -> None:
        """Wait for a bell, which is rung at an instant if it isn't done by then."""
        if self._timer < 0 and not self._open():  # no descriptors left
            left = max(0, instant - time.clock_gettime_ns(CLOCK_ID) // 1_000) / 1e6
            timer = asyncio.get_running_loop().call_later(min(left, _LONGEST), _ring, bell)
            try:
                await bell
            finally:
                timer.cancel()
            return
        alarm = (instant, next(self._numbers), bell)
        heapq.heappush(self._set, alarm)
        if not 0 < self._next <= instant:
            self._next = instant
            _arm(self._timer, instant)
        try:
            await bell
        finally:
            if self._set and self._set[0] is alarm:
                heapq.heappop(self._set)
            elif instant > time.clock_gettime_ns(CLOCK_ID) // 1_000:  # else it is out by now, or soon
                self._early += 1
                if self._early > 16 and self._early * 2 > len(self._set):
                    self._sweep()

    def tidy(self) -> None:
        """Close the descriptor if nobody waits for a bell; the next alarm opens another."""
        self._sweep()
        if not self._set and self._timer >= 0:
            timer, self._timer, self._next = self._timer, -1, 0
            with suppress(RuntimeError):  # a task of an event loop that was left alone is thrown away
                asyncio.get_running_loop().remove_reader(timer)
            os.close(timer)

    def _sweep(self) -> None:
        self._set = [alarm for alarm in self._set if not alarm[2].done()]
        heapq.heapify(self._set)
        self._early = 0

    def _open(self) -> bool:
        timer = timer_at(FAR)
        if timer is None:
            return False
        try:
            asyncio.get_running_loop().add_reader(timer, self._rung)
        except NotImplementedError:  # an event loop that watches no descriptors
            os.close(timer)
            return False
        self._timer = timer
        return True

    def _rung(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        self._next = 0
        now = time.clock_gettime_ns(CLOCK_ID) // 1_000
        alarms = self._set
        while alarms and (alarms[0][0] <= now or alarms[0][2].done()):
            bell = heapq.heappop(alarms)[2]
            _ring(bell)
        if alarms:
            self._next = alarms[0][0]
            _arm(self._timer, self._next)


def _ring(bell: Bell) -> None:
    if not bell.done():
        bell.set_result(None)


def timer_at(instant: int) -> int | None:
    """A descriptor that becomes readable at `instant`; None: not to be had here, or no descriptors left."""
    timer = -1 if _libc is None else int(_libc.timerfd_create(CLOCK_ID, _TFD_FLAGS))
    if timer < 0:
        return None
    _arm(timer, instant)
    return timer


def _arm(timer: int, instant: int) -> None:
    seconds, micros = divmod(max(1, instant), 1_000_000)
    spec = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, micros * 1_000))
    assert _libc is not None
    _libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)


_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Alarms]] = WeakKeyDictionary()


def alarms_of(loop: asyncio.AbstractEventLoop | None) -> Alarms | None:
    """The alarms of an event loop; None: not to be had here."""
    if _libc is None or loop is None:
        return None
    alarms = _of.get(loop)
    if alarms is None:
        alarms = _of[loop] = Alarms()
    return alarms
