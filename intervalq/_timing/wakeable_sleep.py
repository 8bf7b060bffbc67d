"""A sleep that ends at an instant, or as soon as another task wakes it."""

from __future__ import annotations

import math

import anyio

from intervalq._timing.backends import Waker, wakers
from intervalq._timing.clock import Clock
from intervalq._timing.timers import Timers


class WakeableSleep:
    """A sleep that one task awaits and any task can interrupt.

    Wake-ups are sticky: one that comes while nobody sleeps ends the next sleep at once. A sleep may end
    slightly early, as timers may: check the clock after it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: Timers | None = None
        self._waker: Waker | None = None
        self._scope: anyio.CancelScope | None = None
        self._woken = False

    @property
    def is_on(self) -> bool:
        """Whether its task is sleeping."""
        return self._waker is not None or self._scope is not None

    def wake(self) -> None:
        """End the present sleep, or the next one."""
        if self._woken:
            return
        self._woken = True
        if self._waker is not None:
            if not self._waker.done():
                self._waker.set_result(None)
        elif self._scope is not None:
            self._scope.cancel()

    async def until(self, instant: float) -> bool:
        """Sleep until `instant` (infinity: until woken). Returns whether no wake-up ended the sleep."""
        if self._woken:
            self._woken = False
            return False
        try:
            if math.isinf(instant):
                self._waker = wakers()()
                await self._waker
            elif (timers := self._clock.timers()) is not None:
                self._timers, self._waker = timers, wakers()()
                await timers.wait(self._waker, math.ceil(instant))
            else:
                with anyio.CancelScope() as self._scope:
                    await self._clock.sleep_until(math.ceil(instant))
            return not self._woken
        finally:
            self._waker = self._scope = None
            self._woken = False

    def end(self) -> None:
        """Release the event loop's timer; the next sleep makes another."""
        if self._timers is not None:
            self._timers.tidy()
