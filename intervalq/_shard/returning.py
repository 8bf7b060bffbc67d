"""Whether a caller comes back in time for a ticket that was taken ahead for it.

A shard with one caller that comes again and again would send two requests per job: for a ticket, and for the
grant of its slot. If others keep the queue busy, and the caller has been back before the slot of the next
ticket came near, that ticket is taken with the request for the previous grant: one request per job. If the
caller stays away, the slot stays empty.
"""

from __future__ import annotations

from typing import Final

from intervalq._shard.store_time import StoreTime
from intervalq.rules import State

_ENOUGH: Final = 3
"""How many times in a row the caller must come back first: an unsteady one wastes one slot in this many."""


class Returning:
    """The behaviour of a shard's only caller so far."""

    def __init__(self) -> None:
        self.ticket = 0
        """The ticket that was taken ahead and is still unused; 0: none."""
        self._times = 0

    @property
    def is_likely(self) -> bool:
        """Whether to take the next ticket before anybody wants it."""
        return self._times >= _ENOUGH

    def came(self, time: StoreTime, state: State | None, at: int) -> None:
        """Note that a caller came while nobody waited: in time for the next ticket's slot, or not."""
        if state is not None:
            in_time = time.clock.surely(state.due + state.held_total) - at > time.together(state)
            self._times = self._times + 1 if in_time else 0
            self.ticket = 0

    def took(self, ticket: int) -> None:
        """Note that a ticket was taken ahead."""
        self.ticket = ticket

    def stayed_away(self) -> None:
        """Note that nobody came before the grant of its slot had to be requested."""
        self._times = self.ticket = 0
