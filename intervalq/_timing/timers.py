"""Timers of an asyncio event loop on Linux, exact to microseconds: one timerfd serves all of them.

An event loop rounds its own waits up to whole milliseconds. The descriptor is open only while a task waits.
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

from intervalq._timing.backends import Waker

# Linux stops CLOCK_MONOTONIC while the machine is suspended, and the store's clock goes on: a slot that was
# slept through would seem to have just come.
CLOCK_ID: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


FAR: Final = 2**53
"""An instant that never comes."""

_MAX_WAIT: Final = 3_600
"""The longest wait, in seconds, to request from an event loop: very long ones overflow."""

_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

_libc: ctypes.CDLL | None = None
if sys.platform == "linux":
    with suppress(OSError, AttributeError):
        _libc = ctypes.CDLL(None, use_errno=True)
        _ = _libc.timerfd_create, _libc.timerfd_settime  # raises an error if the C library lacks them


class Timers:
    """Sets wakers at instants of `CLOCK_ID`, in whole microseconds. Created by `timers_of`."""

    # It has no reference to its event loop, which would then never be collected: see `_of`.

    def __init__(self) -> None:
        self._set: list[tuple[int, int, Waker]] = []  # a heap
        self._early = 0  # about how many of them have no waiting task any more
        self._numbers = count()
        self._timer = -1
        self._next = 0  # what the timer is set to; 0: nothing

    async def wait(self, waker: Waker, instant: int) -> None:
        """Wait for a waker; it is set at `instant` unless it is done before."""
        if self._timer < 0 and not self._open():  # no descriptors left
            left = max(0, instant - time.clock_gettime_ns(CLOCK_ID) // 1_000) / 1e6
            timer = asyncio.get_running_loop().call_later(min(left, _MAX_WAIT), _wake, waker)
            try:
                await waker
            finally:
                timer.cancel()
            return
        instant = max(1, instant)  # `_next` 0 says that nothing is set: another wait would move the timer
        entry = (instant, next(self._numbers), waker)
        heapq.heappush(self._set, entry)
        if not 0 < self._next <= instant:
            self._next = instant
            _arm(self._timer, instant)
        try:
            await waker
        finally:
            if self._set and self._set[0] is entry:
                heapq.heappop(self._set)
            elif instant > time.clock_gettime_ns(CLOCK_ID) // 1_000:  # otherwise `_fired` removes it
                self._early += 1
                if self._early > 16 and self._early * 2 > len(self._set):
                    self._sweep()

    def tidy(self) -> None:
        """Close the descriptor if nobody waits for a waker; the next wait opens another."""
        self._sweep()
        if not self._set and self._timer >= 0:
            timer, self._timer, self._next = self._timer, -1, 0
            with suppress(RuntimeError):  # the event loop was abandoned, and a task of it is being collected
                asyncio.get_running_loop().remove_reader(timer)
            os.close(timer)

    def _sweep(self) -> None:
        self._set = [entry for entry in self._set if not entry[2].done()]
        heapq.heapify(self._set)
        self._early = 0

    def _open(self) -> bool:
        timer = timer_at(FAR)
        if timer is None:
            return False
        try:
            asyncio.get_running_loop().add_reader(timer, self._fired)
        except NotImplementedError:  # the event loop can't watch descriptors
            os.close(timer)
            return False
        self._timer = timer
        return True

    def _fired(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        self._next = 0
        now = time.clock_gettime_ns(CLOCK_ID) // 1_000
        pending = self._set
        while pending and (pending[0][0] <= now or pending[0][2].done()):
            waker = heapq.heappop(pending)[2]
            _wake(waker)
        if pending:
            self._next = pending[0][0]
            _arm(self._timer, self._next)


def _wake(waker: Waker) -> None:
    if not waker.done():
        waker.set_result(None)


def timer_at(instant: int) -> int | None:
    """A descriptor that becomes readable at `instant`; None: unsupported here, or no descriptors left."""
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


_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Timers]] = WeakKeyDictionary()


def timers_of(loop: asyncio.AbstractEventLoop | None) -> Timers | None:
    """The timers of an event loop; None: this system has none, or the loop is not asyncio's."""
    if _libc is None or loop is None:
        return None
    timers = _of.get(loop)
    if timers is None:
        timers = _of[loop] = Timers()
    return timers
