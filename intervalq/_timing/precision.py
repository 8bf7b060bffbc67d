"""How much of a wait is spent looking at the clock, where timers are too late for a slot."""

from __future__ import annotations

import math
from typing import Final

SHARE: Final = 0.1
"""The part of a processor that a process may spend on looking at the clock, unless more is asked for."""

_MEMORY: Final = 1_000_000
"""Over how long the share is measured, in microseconds."""

_MAX_LOOK: Final = 5_000
"""The longest look before one slot, in microseconds: timers that are later than that are not helped by it."""


_MAX_TYPICAL: Final = 4
"""The longest look in terms of how late the process usually wakes. What is later than that is no timer, but
other work on the machine."""


class Looking:
    """How much one process has been looking at the clock of late: shared by all of its queues."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._at = 0

    def share(self, at: int) -> float:
        """The part of a processor that went into it, over about the last second."""
        self._spent *= math.exp(min(0, self._at - at) / _MEMORY)
        self._at = at
        return self._spent / _MEMORY

    def add(self, at: int, micros: int) -> None:
        """So much was spent."""
        self.share(at)
        self._spent += micros


PROCESS: Final = Looking()


class Precision:
    """How long before a slot one queue begins to look at the clock. It looks longer the more slots it misses.

    Args:
        share: the part of a processor that may go into it, 0 to 1; 0: none.
        looking: what it is measured by.
    """

    def __init__(self, share: float = SHARE, looking: Looking = PROCESS) -> None:
        self.share = share
        """As given; with 0 nothing is done to be in time."""
        self._looking = looking
        self._look = 0

    @property
    def looks(self) -> bool:
        """Whether it looks at the clock at all."""
        return self._look > 0

    def look(self, at: int) -> int:
        """How long before the next slot to stop sleeping, in microseconds; 0: not at all.

        Less and less as the share is used up: a shorter look helps more than none.
        """
        if not self._look:
            return 0
        left = 1 - self._looking.share(at) / self.share
        return int(self._look * min(1.0, max(0.0, 2 * left)))

    def looked(self, at: int, micros: int) -> None:
        """A wait ended with so much of it."""
        self._looking.add(at, micros)

    def missed(self, typical: int, *, looked: bool = False) -> None:
        """A job came too late for its slot.

        Args:
            typical: how late the process usually wakes.
            looked: it had woken before the slot, and looked at the clock: the processor was taken from it. It
                is taken the sooner, the more of it is used; so a shorter look helps.
        """
        if looked:
            self._look //= 2
        elif self.share:
            longer = min(self._look + self._look // 2, _MAX_TYPICAL * typical)
            self._look = min(_MAX_LOOK, max(2 * typical, longer))

    def kept(self) -> None:
        """A slot was used in time: a little less may do."""
        if self._look:
            self._look -= max(1, self._look // 128)
