"""How long before a slot to stop sleeping and poll the clock, if timers are too late for it."""

from __future__ import annotations

import math
from typing import Final

SHARE: Final = 0.1
"""The share of a processor that a process may spend on polling the clock, by default."""

_MEMORY: Final = 1_000_000
"""The time over which the share is measured, in microseconds."""

_MAX_LOOK: Final = 5_000
"""The longest polling before one slot, in microseconds: it doesn't help against timers that are later."""


_MAX_TYPICAL: Final = 4
"""The longest polling, as a multiple of how late the process usually wakes. What is later than that is not
caused by timers, but by other work on the machine."""


class Looking:
    """How much a process has recently polled the clock; shared by all of its queues."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._at = 0

    def share(self, at: int) -> float:
        """The share of a processor that was spent on polling in about the last second."""
        self._spent *= math.exp(min(0, self._at - at) / _MEMORY)
        self._at = at
        return self._spent / _MEMORY

    def add(self, at: int, micros: int) -> None:
        """Add time that was spent."""
        self.share(at)
        self._spent += micros


PROCESS: Final = Looking()


class Precision:
    """How long before a slot one queue begins to poll the clock: the longer, the more slots it misses.

    Args:
        share: the share of a processor that may be spent on it, 0 to 1; 0: none.
        looking: measures the time that was spent.
    """

    def __init__(self, share: float = SHARE, looking: Looking = PROCESS) -> None:
        self.share = share
        """The share of a processor that it may use; with 0, it never polls the clock."""
        self._looking = looking
        self._look = 0

    @property
    def looks(self) -> bool:
        """Whether it polls the clock at all."""
        return self._look > 0

    def look(self, at: int) -> int:
        """How long before the next slot to stop sleeping, in microseconds; 0: not at all.

        It gets shorter as the share is used up: a shorter polling helps more than none.
        """
        if not self._look:
            return 0
        left = 1 - self._looking.share(at) / self.share
        return int(self._look * min(1.0, max(0.0, 2 * left)))

    def looked(self, at: int, micros: int) -> None:
        """Note that a wait ended with this much polling."""
        self._looking.add(at, micros)

    def missed(self, typical: int, *, looked: bool = False) -> None:
        """Note that a job came too late for its slot.

        Args:
            typical: how late the process usually wakes.
            looked: whether the process had woken before the slot and was polling the clock, so that the
                kernel preempted it. The more processor time it uses, the sooner that happens, so polling for
                a shorter time helps.
        """
        if looked:
            self._look //= 2
        elif self.share:
            longer = min(self._look + self._look // 2, _MAX_TYPICAL * typical)
            self._look = min(_MAX_LOOK, max(2 * typical, longer))

    def kept(self) -> None:
        """Note that a slot was used in time, so that a little less polling may be enough."""
        if self._look:
            self._look -= max(1, self._look // 128)
