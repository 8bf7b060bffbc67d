"""The slots of one shard: tickets it has not asked about, slots it may use, and what it gives back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from intervalq.rules import Slot


@dataclass(frozen=True, slots=True)
class Go:
    """A slot that was told to go."""

    slot: Slot
    instant: int
    """The slot on the store's clock, in microseconds."""
    steps: int
    """How many steps of the store's clock were seen when it was told."""

    @property
    def ticket(self) -> int:
        """The slot's ticket."""
        return self.slot.ticket

    @property
    def due(self) -> float:
        """The slot on the store's clock, in seconds since 1970."""
        return self.instant / 1e6


class Slots:
    """See the module. All in slot order, and those told to go before the others."""

    def __init__(self) -> None:
        self.tickets: deque[Slot] = deque()
        self.granted: deque[Go] = deque()
        self.unused: list[Slot] = []
        """To be given back with the next question."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.tickets or self.unused)

    def coming(self) -> list[Slot]:
        """All that jobs may still begin in."""
        return [*(go.slot for go in self.granted), *self.tickets]

    def drop(self, gone: Iterable[int], void: int) -> None:
        """Tickets that were answered for, and those up to `void`, which are dead and keep nobody waiting."""
        gone = {*gone}
        self.tickets = deque(slot for slot in self.tickets if slot.ticket > void and slot.ticket not in gone)

    def pass_by(self) -> None:
        """The next ticket will not be used."""
        self.unused.append(self.tickets.popleft())

    def pass_all(self) -> int:
        """No ticket will be used; how many there were."""
        self.unused += self.tickets
        passed = len(self.tickets)
        self.tickets.clear()
        return passed

    def given_back(self) -> tuple[Slot, ...]:
        """What goes back with a question; it is the question's now."""
        back, self.unused = tuple(sorted(self.unused, key=attrgetter("ticket"))), []
        return back

    def give_all_back(self) -> tuple[Slot, ...]:
        """Nobody waits any more: everything goes back."""
        self.unused += self.coming()
        back = self.given_back()
        self.forget()
        return back

    def forget(self) -> None:
        """The record that they are of is gone."""
        self.tickets.clear()
        self.granted.clear()
        self.unused.clear()
