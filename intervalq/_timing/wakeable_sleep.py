"""A wait that ends at an instant, or as soon as somebody says that things have changed."""

from __future__ import annotations

import math

import anyio

from intervalq._timing.backends import Bell, bells
from intervalq._timing.clock import Clock
from intervalq._timing.timers import Alarms


class Nap:
    """One task naps, any may wake it. A wake-up while it is awake ends its next nap at once: none is lost.

    A nap may end a moment early where timers do: look at the clock after it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alarms: Alarms | None = None
        self._bell: Bell | None = None
        self._scope: anyio.CancelScope | None = None
        self._woken = False

    @property
    def is_on(self) -> bool:
        """Whether its task naps just now."""
        return self._bell is not None or self._scope is not None

    def wake(self) -> None:
        """End the present nap, or the next one."""
        if self._woken:
            return
        self._woken = True
        if self._bell is not None:
            if not self._bell.done():
                self._bell.set_result(None)
        elif self._scope is not None:
            self._scope.cancel()

    async def until(self, instant: float) -> None:
        """Nap until the clock shows `instant` (infinity: until woken)."""
        if self._woken:
            self._woken = False
            return
        try:
            if math.isinf(instant):
                self._bell = bells()()
                await self._bell
            elif (alarms := self._clock.alarms()) is not None:
                self._alarms, self._bell = alarms, bells()()
                await alarms.wait(self._bell, math.ceil(instant))
            else:
                with anyio.CancelScope() as self._scope:
                    await self._clock.sleep_until(math.ceil(instant))
        finally:
            self._bell = self._scope = None
            self._woken = False

    def end(self) -> None:
        """Nobody naps any more for now: let go of what the event loop keeps for it."""
        if self._alarms is not None:
            self._alarms.tidy()
