"""A wait that ends at an instant, or as soon as somebody says that things have changed."""

from __future__ import annotations

import math

import anyio

from intervalq._clock import Clock


class Nap:
    """One task naps, any may wake it. A wake-up while it is awake ends its next nap at once: none is lost."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._woken = False

    def wake(self) -> None:
        """End the present nap, or the next one."""
        self._woken = True
        if self._scope is not None:
            self._scope.cancel()

    async def until(self, instant: float, clock: Clock) -> None:
        """Nap until `clock` shows `instant` (infinity: until woken)."""
        if not self._woken:
            with anyio.CancelScope() as self._scope:
                if math.isinf(instant):
                    await anyio.sleep_forever()
                else:
                    await clock.sleep_until(math.ceil(instant))
            self._scope = None
        self._woken = False
