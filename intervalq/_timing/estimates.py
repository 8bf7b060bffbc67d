"""Estimates of the store's clock and of round trips, made from the store's answers."""

from __future__ import annotations

from collections import deque
from typing import Final

DRIFT: Final = 2_000
"""Two clocks drift apart by at most a 2,000th (NTP may slew by 500 ppm), so bounds widen with age."""

_GRAIN: Final = 1
"""Both clocks are read in whole microseconds."""


def _drift(age: int) -> int:
    """How far two clocks drift apart, rounded up, so that the sum over many short ages is not too small."""
    return -(-age // DRIFT)


class StoreClock:
    """Bounds of the store's clock in terms of the local one.

    The store read its clock somewhere between sending and receiving, which bounds the offset between the two
    clocks by the length of the round trip (Cristian's algorithm). Each answer narrows the bounds, age widens
    them; an answer that contradicts them shows that the store's clock was stepped, and replaces them.
    """

    def __init__(self) -> None:
        self._low = self._high = self._at = 0
        self.known = False
        self.steps = 0
        """How many steps of the store's clock were detected."""
        self.answers = 0
        """How many answers were taken into account."""

    def learn(self, sent: int, received: int, now: int) -> None:
        """Take into account that the store's clock read `now` between two readings of the local one."""
        low, high = now - received - _GRAIN, now - sent + _GRAIN + _drift(received - sent)
        if self.known:
            widened = self._widened(received)
            if max(low, widened[0]) <= min(high, widened[1]):
                low, high = max(low, widened[0]), min(high, widened[1])
            else:
                self.steps += 1
        self._low, self._high, self._at, self.known = low, high, received, True
        self.answers += 1

    def narrow(self, other: StoreClock, at: int) -> None:
        """Take over what another estimate of the same clock knows, unless it contradicts this one.

        A contradiction shows a step of the store's clock, which the next answer will show here, too.
        """
        if not other.known:
            return
        low, high = other._widened(at)
        if self.known:
            mine = self._widened(at)
            low, high = max(low, mine[0]), min(high, mine[1])
            if low > high or (low, high) == mine:
                return
        self._low, self._high, self._at, self.known = low, high, at, True
        self.answers += 1

    def earliest(self, at: int) -> int:
        """The store's clock reads at least this when the local one reads `at`."""
        return at + self._widened(at)[0]

    def latest(self, at: int) -> int:
        """The store's clock reads at most this when the local one reads `at`."""
        return at + self._widened(at)[1]

    def error(self, at: int) -> int:
        """How far apart the two bounds are, in microseconds."""
        low, high = self._widened(at)
        return high - low

    def surely(self, reading: int) -> int:
        """Local time from which the store's clock has certainly reached `reading`."""
        guess = reading - self._low
        age = max(0, guess - self._at)
        return guess + age // (DRIFT - 1) + 1 if age else guess

    def perhaps(self, reading: int) -> int:
        """Local time from which the store's clock may have reached `reading`."""
        guess = reading - self._high
        return guess + -max(0, guess - self._at) // (DRIFT + 1)

    def _widened(self, at: int) -> tuple[int, int]:
        drift = _drift(abs(at - self._at))
        return self._low - drift, self._high + drift


class Recent:
    """The most recent durations of one kind, such as round trips, and their quantiles."""

    _KEPT: Final = 32

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=self._KEPT)

    def add(self, micros: int) -> None:
        """Add a duration."""
        self._recent.append(micros)

    def typical(self) -> int:
        """The median; 0: there were none yet."""
        ordered = sorted(self._recent)
        return ordered[len(ordered) // 2] if ordered else 0

    def quick(self) -> int:
        """The lower quartile; while there are only a few durations, the median."""
        ordered = sorted(self._recent)
        return ordered[len(ordered) // 4] if len(ordered) > 8 else self.typical()

    def slow(self) -> int | None:
        """Nearly all of them were no longer than this; None: there were none yet.

        The longest one of 32 is left out, because a single stall of the machine doesn't predict the next.
        """
        ordered = sorted(self._recent)
        if not ordered:
            return None
        return ordered[-2] if len(ordered) > 8 else ordered[-1]
