"""The places of a key's tickets, and what slots took of limits that nobody will use.

What a place has taken of the common limits is refunded as a job's unused estimate is: see `Settled`. That
must be certain to count still. So a place isn't refunded if it may have been revoked before it was granted,
or if the step that replaced it may have taken it back. `State.lag` of when it was issued finds the first of
the cells that it may be in; if it is in a later one, units count for longer than they should, never for less.

What a granted slot has taken of the key's own limits is refunded, too, where it was first granted: see
`intervalq._spec.keys.fixed`. If it was granted again since, it counts in a later cell, or nowhere any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from intervalq._spec.windows import of_each
from intervalq.rules import Limit, Settled, Slot, State, Units


class _Unused(NamedTuple):
    """A slot that nobody will use."""

    place: Slot
    """Its place, with what it took of the common limits."""
    own: tuple[int, int] | None
    """`due` and `lag` in the key's record when it was first granted; None: it wasn't, or nobody knows."""
    units: Units
    """What it took of the key's own limits."""


class Places:
    """The common slots of one key's tickets."""

    def __init__(self) -> None:
        self.known: dict[int, Slot] = {}
        """Those of tickets that may be asked for again, by the key's tickets."""
        self._granted: dict[int, Slot] = {}  # those of granted tickets before these
        self._unused: list[_Unused] = []
        self._lags: dict[int, int] = {}  # by the common tickets
        self._doubtful: set[int] = set()  # common tickets that a step without an answer may have taken back
        self._fixed: dict[int, int] = {}  # by the key's tickets: `lag` of its record when they were granted
        self._limits: tuple[tuple[Limit, ...], ...] = ()  # the key's own, and the common ones

    def forget(self) -> None:
        """Forget all, because their record is gone."""
        self.known, self._granted, self._unused, self._lags = {}, {}, [], {}
        self._doubtful, self._fixed = set(), {}

    def forget_tickets(self) -> None:
        """Forget which tickets have them, because the key's record is gone: others get the same numbers."""
        self.known, self._granted, self._fixed = {}, {}, {}
        self._unused = [each._replace(own=None) for each in self._unused]

    def doubt(self) -> None:
        """Note that no answer came to a request about the known places."""
        self._doubtful |= {place.ticket for place in self.known.values()}

    def unused(self, slot: Slot, own: int) -> None:
        """Note that nobody will use a ticket; `own` is the number of the key's own limits."""
        lag = self._fixed.pop(slot.ticket, None)
        self._left(slot, own, None if lag is None else (slot.due, lag))

    def _left(self, slot: Slot, own: int, fixed: tuple[int, int] | None) -> None:
        """Note that nobody will use the place of a ticket, and where the ticket itself counts in vain."""
        place = self.known.pop(slot.ticket, None) or self._granted.pop(slot.ticket, None)
        if place is not None and place.ticket not in self._doubtful:
            self._unused.append(_Unused(place._replace(units=slot.units[own:]), fixed, slot.units[:own]))

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
                self._left(slot, own, None)

    def granted(self, tickets: Iterable[int], lag: int) -> None:
        """Note tickets that were granted, and `State.lag` of the key's record then."""
        for ticket in tickets:
            self._fixed.setdefault(ticket, lag)

    def learn(
        self, places: Mapping[int, Slot], first: int, common: State, own: tuple[Limit, ...] = ()
    ) -> None:
        """Remember the places of an answer; tickets before the first one won't be asked for again."""
        limits = own, common.settings.limits
        if any(limits):
            self._granted |= {ticket: place for ticket, place in self.known.items() if ticket < first}
        self.known = {ticket: place for ticket, place in self.known.items() if ticket >= first}
        self.known |= places
        alive = [*self.known.values(), *self._granted.values(), *(each.place for each in self._unused)]
        self._lags = {place.ticket: self._lags.get(place.ticket, common.lag) for place in alive}
        self._doubtful &= {*self._lags}
        if limits != self._limits:
            self._limits, self._granted, self._unused, self._fixed = limits, {}, [], {}

    def keep_from(self, first: int) -> None:
        """Forget the places of granted tickets before this one: their slots were used."""
        self._granted = {ticket: place for ticket, place in self._granted.items() if ticket >= first}
        self._fixed = {ticket: lag for ticket, lag in self._fixed.items() if ticket >= first}

    def refunds(self, common: State) -> tuple[Settled, ...]:
        """What unused slots took, as far as it certainly counts: to be sent once."""
        found: list[Settled] = []
        waiting: list[_Unused] = []
        for each in self._unused:
            if each.place.ticket > common.current:
                waiting.append(each)  # until it can't be revoked any more
                continue
            counted = each.own is not None, each.place.ticket > common.revoked_through
            taken = [
                units if counts else 0
                for counts, limits, some in zip(
                    counted, self._limits, (each.units, each.place.units), strict=True
                )
                for units in of_each(limits, each.place.cost, some)
            ]
            if any(taken):
                more = tuple([-units for units in taken])
                found.append(Settled(each.place.due, self._lags[each.place.ticket], more, each.own))
        self._unused = waiting
        return tuple(found)
