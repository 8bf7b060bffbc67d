"""What a store knows of its server's clock, from the instants at which the server stored messages."""

from __future__ import annotations

from typing import Final

_DRIFT: Final = 2_000
"""Two clocks run apart by at most a 2,000th (the 500 ppm that NTP may slew by)."""

_FRESH: Final = 100_000
"""How old, in microseconds, the last instant may be: by then drift has cost 100 us of accuracy."""


class ServerClock:
    """Bounds of the server's clock in terms of our own: it was read between sending and receiving."""

    def __init__(self) -> None:
        self._low = self._high = self._at = 0
        self.known = False

    def learn(self, sent: int, received: int, now: int) -> None:
        """Record that it read `now`, truncated to a microsecond, between two readings of our own clock."""
        low, high = now - received, now - sent + 1
        if self.known:
            drift = (received - self._at) // _DRIFT + 1
            narrowed = max(low, self._low - drift), min(high, self._high + drift)
            if narrowed[0] <= narrowed[1]:  # otherwise the clock was stepped, which voids earlier readings
                low, high = narrowed
        self._low, self._high, self._at, self.known = low, high, received, True

    def is_fresh(self, at: int) -> bool:
        """Whether it needn't be read again yet."""
        return self.known and at - self._at < _FRESH

    def earliest(self, at: int) -> int:
        """The earliest time that it may show when our own clock reads `at`."""
        return at + self._low - abs(at - self._at) // _DRIFT - 1

    def latest(self, at: int) -> int:
        """The latest time that it may show when our own clock reads `at`."""
        return at + self._high + abs(at - self._at) // _DRIFT + 1
