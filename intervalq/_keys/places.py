"""The places of a key's tickets, and what places took of common limits that nobody will use.

What a place has taken is refunded as a job's unused estimate is: see `Settled`. That must be certain to count
still. So a place isn't refunded if it may have been revoked before it was granted, or if the step that
replaced it may have taken it back. `State.lag` of when it was issued finds the first of the cells that it may
be in; if it is in a later one, units count for longer than they should, never for less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intervalq._spec.windows import of_each
from intervalq.rules import Limit, Settled, Slot, State


class Places:
    """The common slots of one key's tickets."""

    def __init__(self) -> None:
        self.known: dict[int, Slot] = {}
        """Those of tickets that may be asked for again, by the key's tickets."""
        self._granted: dict[int, Slot] = {}  # those of granted tickets before these
        self._unused: list[Slot] = []  # with what they took of the common limits
        self._lags: dict[int, int] = {}  # by the common tickets
        self._doubtful: set[int] = set()  # common tickets that a step without an answer may have taken back
        self._limits: tuple[Limit, ...] = ()

    def forget(self) -> None:
        """Forget all, because their record is gone."""
        self.known, self._granted, self._unused, self._lags = {}, {}, [], {}
        self._doubtful = set()

    def forget_tickets(self) -> None:
        """Forget which tickets have them, because the key's record is gone: others get the same numbers."""
        self.known, self._granted = {}, {}

    def doubt(self) -> None:
        """Note that no answer came to a request about the known places."""
        self._doubtful |= {place.ticket for place in self.known.values()}

    def unused(self, slot: Slot, own: int) -> None:
        """Note that nobody will use a ticket; `own` is the number of the key's own limits."""
        place = self.known.pop(slot.ticket, None) or self._granted.pop(slot.ticket, None)
        if place is not None and place.ticket not in self._doubtful:
            self._unused.append(place._replace(units=slot.units[own:]))

    def replaced(self, asked: Sequence[Slot], places: Mapping[int, Slot], own: int) -> None:
        """Note which of the places of these slots are given up, because an answer has others for them."""
        new = [place.ticket for ticket, place in places.items() if self.known.get(ticket) != place]
        last = min(new, default=0) - 1
        for slot in reversed(asked):
            before = self.known.get(slot.ticket)
            if before is None or places.get(slot.ticket, before) == before:
                continue
            if before.ticket == last:  # the step may have taken it back
                last -= 1
            else:
                self.unused(slot, own)

    def learn(self, places: Mapping[int, Slot], first: int, common: State) -> None:
        """Remember the places of an answer; tickets before the first one won't be asked for again."""
        if common.settings.limits:
            self._granted |= {ticket: place for ticket, place in self.known.items() if ticket < first}
        self.known = {ticket: place for ticket, place in self.known.items() if ticket >= first}
        self.known |= places
        alive = [*self.known.values(), *self._granted.values(), *self._unused]
        self._lags = {place.ticket: self._lags.get(place.ticket, common.lag) for place in alive}
        self._doubtful &= {*self._lags}
        if common.settings.limits != self._limits:
            self._limits, self._granted, self._unused = common.settings.limits, {}, []

    def keep_from(self, first: int) -> None:
        """Forget the places of granted tickets before this one: their slots were used."""
        self._granted = {ticket: place for ticket, place in self._granted.items() if ticket >= first}

    def refunds(self, common: State) -> tuple[Settled, ...]:
        """What unused places took, as far as it certainly counts: to be sent once."""
        found: list[Settled] = []
        waiting: list[Slot] = []
        for place in self._unused:
            if place.ticket > common.current:
                waiting.append(place)  # until it can't be revoked any more
            elif place.ticket > common.revoked_through:
                taken = of_each(self._limits, place.cost, place.units)
                more = tuple([-units for units in taken])
                found.append(Settled(place.due, self._lags[place.ticket], more))
        self._unused = waiting
        return tuple(found)
