"""What a shard of `window_oracle` does about slots that nobody will use, as `Answers` of a real one."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from intervalq._shard.settlements import Issued
from intervalq.rules import STARTS, Advance, Answer, Limit, Settled, Slot, State


class Unused:
    """The slots of one shard that stay unused, and their refunds."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.empty: list[Slot] = []
        self.refunded = 0
        self._issued = Issued()
        self._seen: State | None = None

    def note(
        self, command: Advance, answer: Answer, state: State, alive: Iterable[Slot], *, was_lost: bool
    ) -> None:
        """Note the missed slots of an answer; a first answer may have been lost."""
        last = state.ticket - answer.count
        for slot in reversed(command.slots):
            if slot.ticket in answer.missed and slot.ticket == last:
                last -= 1
            elif slot.ticket in answer.missed and not was_lost:
                self.empty.append(slot)
        first = min([slot.ticket for slot in (*alive, *self.empty)], default=state.ticket + 1)
        new = [slot.ticket for slot in answer.taken]
        self._seen = state
        self._issued.took(new, [*answer.granted, *new[: answer.begun]], first, state)

    def refunds(self, limits: tuple[Limit, ...]) -> list[Settled]:
        """What unused slots took of these limits; sometimes it is sent later."""
        state, found = self._seen, list[Settled]()
        if state is None or self.dice.random() < 0.2:
            return []
        usual = tuple(int(limit.unit == STARTS) for limit in limits)
        for slot in self.empty:
            settled = self._issued.refundable(slot, state)
            if settled is not None and state.settings.limits == limits:
                found.append(settled._replace(more=tuple(-units for units in slot.units or usual)))
        self.refunded += len(found)
        self.empty = []
        return found
