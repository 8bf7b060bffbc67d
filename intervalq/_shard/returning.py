"""Whether a caller comes back in time for a ticket that is taken ahead of it.

A shard with one caller that comes again and again would ask twice a job: for a ticket, and about its slot.
Where others keep the queue busy, and the caller was back before the next ticket's slot came near, that ticket
is taken with the question about the slot before: one question a job. If it stays away, its slot stays empty.
"""

from __future__ import annotations

from typing import Final

_ENOUGH: Final = 3
"""So many times in a row it has to come back first: who comes and goes wastes one slot in so many."""


class Returning:
    """What the only caller of a shard did so far."""

    def __init__(self) -> None:
        self.ticket = 0
        """What was taken ahead, and nobody came for yet; 0: nothing."""
        self._times = 0

    @property
    def is_likely(self) -> bool:
        """Whether to take the next ticket before anybody wants it."""
        return self._times >= _ENOUGH

    def came(self, *, in_time: bool) -> None:
        """Somebody came while nobody waited: before the slot that the next ticket had, or not."""
        self._times = self._times + 1 if in_time else 0
        self.ticket = 0

    def took(self, ticket: int) -> None:
        """A ticket was taken ahead."""
        self.ticket = ticket

    def stayed_away(self) -> None:
        """Nobody came before it had to be asked about."""
        self._times = self.ticket = 0
