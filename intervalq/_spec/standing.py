"""How full the windows of limits are, which of them binds, and when tickets that come next would have slots.

Pure functions that change nothing: for `inspect`, and for refusing late jobs. `windows` has the rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from intervalq._spec.record import Limit, State, Units, Usage
from intervalq._spec.windows import end_of_cell, of_each, windows_of


class Standing(NamedTuple):
    """How full a window is."""

    limit: Limit
    taken: int
    """The units that count now, including those of slots that lie ahead."""
    free: int
    """The instant at which one more unit fits, on the queue's clock."""


def standings(state: State, clock: int) -> list[Standing]:
    """How full each window is when the queue's clock reads `clock`."""
    found = list[Standing]()
    for window in windows_of(state):
        window.earliest(0, clock)
        found.append(Standing(window.limit, window.counted, window.earliest(1, clock)))
    return found


def binding(state: State, clock: int) -> Limit | None:
    """The limit that outstanding tickets wait for, or, without any, a job added now; None: no limit.

    For each limit, this computes where the units of the last cell ahead, and one more unit, would go without
    the interval and the other limits. If that isn't before this cell, they wait for the limit.
    """
    found: Limit | None = None
    latest = clock
    are_waiting = state.due > clock
    for place, (limit, use) in enumerate(zip(state.settings.limits, state.usage, strict=True)):
        last, units = use.ahead[-1] if are_waiting and use.ahead else (clock, 0)
        rest = Usage(use.used, use.ahead[:-1] if units else use.ahead)
        usage = (*state.usage[:place], rest, *state.usage[place + 1 :])
        at = windows_of(replace(state, usage=usage))[place].earliest(units + 1, clock)
        if at > latest and end_of_cell(limit, at) >= last:
            found, latest = limit, at
    return found


class NextSlots:
    """Slots for tickets that come next, one behind the other, as `windows.fit` will find them.

    Args:
        state: the record.
        due: the earliest instant for the first of them.
    """

    def __init__(self, state: State, due: int) -> None:
        self._limits, self._step = state.settings.limits, state.settings.interval
        self._windows = windows_of(state)
        self.due = due

    def next(self, cost: int, units: Units) -> int:
        """The slot of a ticket of this cost."""
        windows = zip(self._windows, of_each(self._limits, cost, units), strict=True)
        return max([window.earliest(some, self.due) for window, some in windows], default=self.due)

    def take(self, cost: int, units: Units, due: int) -> None:
        """Assign the found slot to the ticket."""
        for window, some in zip(self._windows, of_each(self._limits, cost, units), strict=True):
            window.take(some, due)
        self.due = due + cost * self._step

    def place(self, cost: int, units: Units) -> int:
        """Find a slot for the next ticket, and take it."""
        due = self.next(cost, units)
        self.take(cost, units, due)
        return due
