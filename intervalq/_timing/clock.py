"""A process's own clock: monotonic microseconds, and sleeps that are exact to microseconds."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar, Token
from typing import Any, Final, Protocol

import anyio

from intervalq._timing.backends import asyncio_loop
from intervalq._timing.timers import CLOCK_ID, Timers, timer_at, timers_of

_COARSE: Final = 5_000
"""Event loops round waits up to whole milliseconds and may be a few late: a timer ends the last 5 ms."""

_SPIN: Final = 150
"""How long a thread polls the clock at the end of a wait, in microseconds: sleeps end about this late."""

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

    def block_until(self, instant: int) -> None:
        """Block the calling thread until `now()` has reached `instant`, never shorter."""
        ...

    def timers(self) -> Timers | None:
        """A cheaper way to wake tasks of the running event loop; None: there is none here."""
        ...

    def store(self, group: str, url: str) -> Any:  # noqa: ANN401 - of any kind
        """The store to use in place of the one at a URL, whose clock is another one. None: use that one.

        Args:
            group: the kind of store, as for `intervalq._backends.backend`.
            url: a URL, not a path.
        """
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

    def block_until(self, instant: int) -> None:
        """See `Clock.block_until`."""
        while (left := instant - self.now()) > 0:
            if left > _SPIN:
                time.sleep((left - _SPIN) / 1e6)

    def timers(self) -> Timers | None:
        """See `Clock.timers`."""
        return timers_of(asyncio_loop())

    def store(self, group: str, url: str) -> None:
        """See `Clock.store`: stores are what their URLs say."""


class CurrentClock:
    """Which clock queues use: that of the context, else that of the process. Tests put virtual ones here."""

    def __init__(self) -> None:
        self.of_process: Clock = SystemClock()
        self._of_context: ContextVar[Clock | None] = ContextVar("intervalq_clock", default=None)

    def get(self) -> Clock:
        """The clock to use here."""
        return self._of_context.get() or self.of_process

    def set(self, clock: Clock) -> Token[Clock | None]:
        """Use another clock in this context, until `reset`."""
        return self._of_context.set(clock)

    def reset(self, token: Token[Clock | None]) -> None:
        """Use the clock from before `set` again."""
        self._of_context.reset(token)


CLOCK: Final = CurrentClock()
