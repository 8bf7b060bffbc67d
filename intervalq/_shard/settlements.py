"""The real costs of jobs, known after they began, and refunds of unused slots, on their way to the store.

They go with the shard's next request. If there is none for a 64th of the window, a second at most, they get a
request of their own.

Units below the estimate are sent once: without an answer, the store may have them, and subtracting them twice
would be too much. Units beyond the estimate are sent until there is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from intervalq._shard.store_time import StoreTime
from intervalq._spec import standing
from intervalq._timing.clock import Clock
from intervalq.errors import StoreUnavailable
from intervalq.rules import FOREVER, MAX_TICKETS, STARTS, Advance, Answer, Limit, Settled, Slot, State

MAX_WAIT: Final = 1_000_000
"""How long settled costs may wait for a request that they can go with, in microseconds."""


_RIDE: Final = 20_000
"""How much longer settled costs wait for such a request if it is sent that soon, in microseconds."""

_LOOK: Final = 60_000
"""Microseconds between two looks whether the next slot may come sooner, while what they show changes."""

_TWICE: Final = 8
"""The maximum number of times that the time between looks is doubled while nothing changes: up to fifteen
seconds."""


def _rest(in_vain: int) -> int:
    """How long to wait before the next look, in microseconds.

    It soon comes to a second. Then it grows slowly: jobs of seconds settle soon, those of minutes much later.
    """
    return _LOOK << min(in_vain, 4 + in_vain // 8, _TWICE)


class _Known(NamedTuple):
    """The difference between what the job of a slot really took and its ticket's estimate, by unit."""

    due: int
    lag: int
    own: tuple[int, int] | None
    more: Mapping[str, int]


class Settlements:
    """Settled costs of one shard that no answer of the store has confirmed yet."""

    def __init__(self, clock: Clock, *, are_usual: bool) -> None:
        self.at = FOREVER
        """When a request is sent for these alone, on the process's own clock."""
        self.are_usual = are_usual
        """Whether jobs may take less than their estimates. This is assumed from the start, except for keys:
        its only effect is that tickets are taken when their slots are near, but a key could get less than its
        share that way."""
        self._clock = clock
        self._waiting: list[_Known] = []
        self._sent: list[_Known] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent)

    def add(self, slot: Settled, more: Mapping[str, int], limits: Sequence[Limit]) -> None:
        """Record by how much the job of a slot differed from its estimate, by unit."""
        self.are_usual = self.are_usual or min(more.values()) < 0
        self._add(slot, more, limits)

    def refund(self, slot: Settled, taken: Mapping[str, int], limits: Sequence[Limit]) -> None:
        """Record that nobody uses a slot whose ticket took these units."""
        if taken:
            self._add(slot, {unit: -units for unit, units in taken.items()}, limits)

    def _add(self, slot: Settled, more: Mapping[str, int], limits: Sequence[Limit]) -> None:
        self._waiting.append(_Known(slot.due, slot.lag, slot.own, more))
        self.at = min(self.at, self._clock.now() + patience([each for each in limits if each.unit in more]))

    def alone_at(self, at: int, question: float) -> float:
        """When to send a request for these alone, if the next one about slots is sent at this instant."""
        return question if self.at <= at < question <= at + _RIDE else self.at

    def take(self, counted: Sequence[str]) -> tuple[Settled, ...]:
        """The differences to send with a request, each in the order of these units."""
        self._sent, self._waiting = self._waiting[:MAX_TICKETS], self._waiting[MAX_TICKETS:]
        self.at = self._clock.now() if self._waiting else FOREVER
        return tuple(
            [
                Settled(due, lag, tuple([more.get(unit, 0) for unit in counted]), own)
                for due, lag, own, more in self._sent
            ]
        )

    def answered(self) -> None:
        """Note that the request was answered."""
        self._sent = []

    def failed(self) -> None:
        """Note that no answer came: the store may or may not have the differences."""
        again = [
            known._replace(more=beyond)
            for known in self._sent
            if (beyond := {unit: some for unit, some in known.more.items() if some > 0})
        ]
        self._waiting, self._sent = [*again, *self._waiting], []
        if again:
            self.at = self._clock.now()

    def hurry(self) -> None:
        """Allow a request for the differences alone from now on.

        Those in flight need no further request unless theirs fails.
        """
        self.at = self._clock.now() if self._waiting else FOREVER

    def troubled(self, trouble: Exception) -> None:
        """After an error, forget the differences: they may be its cause.

        If the store was only unreachable, they are kept for the next request.
        """
        if not isinstance(trouble, StoreUnavailable):
            self.forget()
        self.at = FOREVER

    def forget(self) -> None:
        """Forget all differences, because their record is gone."""
        self._waiting, self._sent, self.at = [], [], FOREVER


class Looks:
    """Decides when to ask whether the slot of a shard's next ticket may come sooner, because jobs took less.

    Only the next ticket of all shards can come sooner. A shard that may not have it yet asks at the instant
    at which it could have it by the last answer; otherwise, the more tickets there are before its own, the
    less often it asks.

    Args:
        are_made: whether to ask at all.
    """

    def __init__(self, *, are_made: bool = False) -> None:
        self._are_made = are_made
        self._heard_at = -FOREVER
        self._in_vain = 0  # requests in a row that showed nothing new
        self._idle = 0  # the same, but for room that becomes known with the next ticket
        self._took = 0  # how long after their slots jobs of this shard were settled, at most; 0: none was
        self._found: tuple[State, Slot, int, int] | None = None  # what `_soonest` found

    def now(self) -> Looks:
        """The same without a history, for a request that is sent anyway: it may ask this, too."""
        return Looks(are_made=self._are_made)

    def next(self, state: State, slot: Slot, time: StoreTime, at: int, *, lead: int, alone: bool) -> float:
        """When to ask whether a slot that waits for a window may come sooner; infinity: not.

        Args:
            state: the record.
            slot: the slot of the next ticket.
            time: the store's clock.
            at: the process's own clock.
            lead: how long before it comes to request its grant.
            alone: whether only this shard can have anything to settle.
        """
        limits = state.settings.limits
        if not self._are_made or state.held_since is not None:
            return math.inf
        settled = [limit for limit in limits if limit.unit != STARTS]
        if time.comes(slot, state) <= at + _LOOK:
            return math.inf
        least, due = self._soonest(state, slot, state.clock(time.clock.latest(at)))
        others = _before(state, slot)
        again, look = math.inf, _rest(self._in_vain)
        if settled and not alone and least + _LOOK < slot.due:
            again = self._heard_at + _rest(max(self._in_vain, self._idle)) * (1 + others)
            last = time.clock.surely(state.current_due + state.held_total)
            if self._took and again > last + 2 * self._took + patience(settled):  # all have settled
                again = max(again, self._heard_at + (_LOOK << _TWICE))
        if due + _LOOK * (1 + others) > slot.due:
            return again
        # The store may find less room, since only it knows its clock, and others may not have begun yet.
        anew = look if others else time.lead() << min(self._in_vain, _TWICE)
        comes = time.comes(slot._replace(due=due), state) - lead
        return min(again, max(comes, self._heard_at + anew))

    def _soonest(self, state: State, slot: Slot, clock: int) -> tuple[int, int]:
        """See `standing.soonest`: by limits of starts alone, and by all of them."""
        before = self._found
        if before is None or before[0] is not state or before[1] != slot:
            least = standing.soonest(state, slot, clock, only=STARTS)
            self._found = found = state, slot, least, standing.soonest(state, slot, clock)
            is_next = _before(state, slot) == 0
            falls = before is not None and before[1] == slot and found[3] < before[3]
            if falls or before is None or before[1] != slot or (is_next and _before(before[0], slot) > 0):
                self._in_vain = 0
            if falls:
                self._idle = 0
            return found[2:]
        return before[2:]

    def answered(self, question: Advance, answer: Answer, at: int) -> None:
        """Note the answer to a request, which may have asked this."""
        self._heard_at = at
        if question.slots and not (answer.granted or answer.missed):
            self._in_vain += 1
            self._idle += 1

    def settled(self, took: int) -> None:
        """Note how long after its slot the job of one was settled, in microseconds."""
        self._took, self._idle = max(took, self._took - self._took // 8), 0


def _before(state: State, slot: Slot) -> int:
    """How many tickets before this one may still be granted."""
    return slot.ticket - max(state.current, state.revoked_through) - 1


class Issued:
    """What an ordinary queue's limits count for the tickets of one shard, until their slots have been used.

    A slot that nobody will use is refunded only if it certainly still counts, so not if it may have been
    revoked before it was granted. `State.lag` of when it was issued finds the first of the cells that it may
    be in; if it is in a later one, units count for longer than they should, never for less.
    """

    def __init__(self) -> None:
        self._lags: dict[int, int] = {}
        self._granted: set[int] = set()
        self._counted: tuple[str, tuple[Limit, ...]] | None = None  # by these limits of this record

    def took(self, tickets: Sequence[int], granted: Iterable[int], first: int, state: State) -> None:
        """Note new tickets, which tickets are granted, and the first one whose use is still open."""
        if _counted(state) != self._counted:  # what was counted before is counted differently now, or gone
            self._lags, self._granted, self._counted = {}, set(), _counted(state)
        if not state.settings.limits:
            return
        self._lags = {ticket: lag for ticket, lag in self._lags.items() if ticket >= first}
        self._lags |= dict.fromkeys(tickets, state.lag)
        self._granted = {ticket for ticket in (*self._granted, *granted) if ticket >= first}

    def refundable(self, slot: Slot, state: State) -> Settled | None:
        """The slot in the form of `Settled`; None: it isn't refunded."""
        lag = self._lags.pop(slot.ticket, None) if _counted(state) == self._counted else None
        counts = slot.ticket in self._granted or state.revoked_through < slot.ticket <= state.current
        return None if lag is None or not counts else Settled(slot.due, lag, ())


def _counted(state: State) -> tuple[str, tuple[Limit, ...]]:
    """What tickets count in: a record that is created again has other tickets with the same numbers."""
    return state.generation, state.settings.limits


def patience(limits: Sequence[Limit]) -> int:
    """How long a difference for these limits may wait at most: the length of their shortest block."""
    return min([MAX_WAIT, *(limit.block for limit in limits)])
