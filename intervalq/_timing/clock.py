"""A process's own clock: monotonic microseconds, and sleeps that are exact to microseconds."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from typing import Final, Protocol

import anyio

from intervalq._timing.backends import asyncio_loop
from intervalq._timing.timers import CLOCK_ID, Timers, timer_at, timers_of

_COARSE: Final = 5_000
"""Event loops round waits up to whole milliseconds and may be a few late: a timer ends the last 5 ms."""

_MAX_WAIT: Final = 3_600 * 1_000_000
"""Sleep at most an hour at a time: event loops overflow on very long waits."""


class Clock(Protocol):
    """A shard's local clock. Readings of two clocks must never be compared."""

    goes_on: bool
    """Whether time passes while a task polls the clock in a loop; virtual time does not."""

    def now(self) -> int:
        """Microseconds since some fixed instant; never goes back."""
        ...

    async def sleep_until(self, instant: int) -> None:
        """Wait until `now()` has reached `instant`, never shorter."""
        ...

    def timers(self) -> Timers | None:
        """A cheaper way to wake tasks of the running event loop; None: there is none here."""
        ...


class SystemClock:
    """The time since boot; on systems with timerfd (Linux), a timer descriptor ends each sleep."""

    goes_on = True

    def now(self) -> int:
        """See `Clock.now`."""
        return time.clock_gettime_ns(CLOCK_ID) // 1_000

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        while (left := instant - self.now()) > 0:
            if left > _COARSE:
                await anyio.sleep(min(left - _COARSE, _MAX_WAIT) / 1e6)
            elif (timer := timer_at(instant)) is None:
                await anyio.sleep(left / 1e6)
            else:
                try:
                    await anyio.wait_readable(timer)
                finally:
                    os.close(timer)

    def timers(self) -> Timers | None:
        """See `Clock.timers`."""
        return timers_of(asyncio_loop())


class LoopClock:
    """The event loop's own time, for event loops that run on virtual time."""

    goes_on = False

    def timers(self) -> Timers | None:
        """See `Clock.timers`."""
        return None

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
