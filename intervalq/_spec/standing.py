"""How full the windows of limits are, which of them binds, and when tickets that come next would have slots.

Pure functions that change nothing: for `inspect`, and for refusing late jobs. `windows` has the rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from intervalq._spec import windows
from intervalq._spec.commands import Advance
from intervalq._spec.record import Limit, Slot, State, Units, Usage
from intervalq._spec.windows import of_each, windows_of


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

    For each limit, this computes when the last ticket could come if there were only this limit, and does the
    same for the pace. The one with the latest slot decides.
    """
    if state.due <= clock:
        return _latest([(each.free, each.limit) for each in standings(state, clock)], clock)
    tickets = state.ticket - max(state.current, state.revoked_through)
    step = state.settings.interval
    latest = max(clock, state.current_due + step) + (tickets - 1) * step
    found = _latest([(_alone(state, place, clock), limit) for place, limit in _numbered(state)], latest)
    if found is not None or state.due <= latest + tickets * step:
        return found
    return _reserved(state, clock)


def _latest(slots: list[tuple[int, Limit]], after: int) -> Limit | None:
    """The limit with the latest slot, if that is after an instant."""
    at, limit = max(slots, key=lambda slot: slot[0], default=(after, None))
    return limit if at > after else None


def _numbered(state: State) -> list[tuple[int, Limit]]:
    return list(enumerate(state.settings.limits))


def _alone(state: State, place: int, clock: int) -> int:
    """When the last of the units ahead would have room if nothing but this limit delayed them."""
    use, at = state.usage[place], clock
    usage = (*state.usage[:place], Usage(use.used), *state.usage[place + 1 :])
    window = windows_of(replace(state, usage=usage))[place]
    for _, units in use.ahead:
        at = window.earliest(units, at)
        window.take(units, at)
    return at


def _reserved(state: State, clock: int) -> Limit | None:
    """The limit whose estimates explain the place of the last ticket, if nothing that counts now does.

    What was settled since is not in the record. So this is the limit that is fullest, of those that the last
    ticket counts in.
    """
    shares = [
        (each.taken / each.limit.most, place)
        for place, each in enumerate(standings(state, clock))
        if (ahead := state.usage[place].ahead) and ahead[-1][0] >= state.due
    ]
    return state.settings.limits[max(shares)[1]] if shares else None


def may_move(state: State, command: Advance) -> bool:
    """Whether slots of the sender may come sooner: not those of keys, which have places in another record.

    Nor where jobs have leases: a leased slot can be granted again, and nobody knows then where its units are.
    """
    settings = state.settings
    if (
        not settings.limits
        or settings.auto is not None
        or settings.max_running
        or state.held_since is not None
    ):
        return False
    return command.reach >= 0 and command.apart is None


def valid(state: State, command: Advance) -> tuple[Slot, ...]:
    """The listed slots that can be granted while the queue isn't held.

    One of them is the last granted slot, also after it came sooner: only the one where it was is gone then.
    Not if it costs more: the interval may have changed, so that the one where it was would end there now.
    """
    last, revoked, moved = state.ticket, state.revoked_through, (state.current, state.current_due, 1)

    def was_moved(slot: Slot) -> bool:
        return slot[:3] == moved and may_move(state, command)

    return tuple([slot for slot in command.slots if revoked < slot.ticket <= last or was_moved(slot)])


def leased(state: State, command: Advance) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The listed slots that have leases: those that can be granted again in a full queue, and the others.

    A slot can't if the interval changed, and it would end behind the last granted one. Nor if the queue was
    held since its units were counted: it would come later by the length of the hold, but its units stay.
    """
    step, last = state.settings.interval, state.current_due
    slots = [slot for slot in command.slots if slot.ticket in state.running and slot.ticket <= state.current]

    def is_free(slot: Slot) -> bool:
        return slot.due + (slot.cost - 1) * step <= last and _counts_in_place(state, slot)

    again = tuple([slot for slot in slots if is_free(slot)])
    return again, tuple([slot for slot in slots if slot not in again])


def _counts_in_place(state: State, slot: Slot) -> bool:
    """Whether the units of a granted slot count where it is on the queue's clock.

    They don't if a hold has ended since, or if they were prolonged. If that is so for any cell of later
    slots, these may be merged with the slot's own.
    """
    lag, limits = state.lag, state.settings.limits
    for limit, use, units in zip(limits, state.usage, of_each(limits, slot.cost, slot.units), strict=True):
        end = windows.end_of_cell(limit, slot.due)
        used = [(at, due) for at, _, due in use.used if due >= end]
        is_known = any(due == end for _, due in used) or any(each == end for each, _ in use.ahead)
        if units and not (is_known and all(at == due + lag for at, due in used)):
            return False
    return True


def sooner(state: State, slot: Slot, clock: int, notice: int) -> tuple[State, int, bool] | None:
    """The soonest slot for the next ticket to be granted; None: it is another one, or has the soonest.

    Its slot was chosen by what all jobs before it were estimated to take. They may have taken less. Behind
    the last granted slot, only this ticket and later ones count, and no other slot comes before its own. So
    any instant in between at which the windows have room is free. A window that contains later slots, too,
    contains the slot where it was, so it has the same units as before.

    Returns the record that counts the ticket there, the slot, and whether nothing delayed it.
    """
    settings = state.settings
    if not max(state.current, state.revoked_through) + 1 == slot.ticket <= state.ticket:
        return None
    counted = windows.give_back(state, slot)
    before, free = windows.revoke(counted), state.current_due + settings.interval
    due = max(free, clock + max(0, notice - state.tolerance) - state.credit)
    found, dues, has_room = windows.fit(before, (slot.cost,), (slot.units,), due, clock)
    if not dues or dues[0] >= slot.due:
        return None
    usage = list[Usage]()
    for use, all_of, some in zip(found.usage, counted.usage, before.usage, strict=True):
        ahead = use.ahead
        for end, units in all_of.ahead[len(some.ahead) :]:
            ahead = windows.put(ahead, end, units)
        usage.append(use._replace(ahead=ahead))
    last = dues[0] + (slot.cost - 1) * settings.interval if slot.ticket == state.ticket else state.due
    return replace(found, usage=tuple(usage), due=last), dues[0], free <= clock and has_room


def placed(state: State, slot: Slot) -> Slot:
    """A slot where it was just granted: one that came sooner is the last granted one, see `Advance.ahead`."""
    if not slot.ticket == state.current <= state.revoked_through:
        return slot
    due = state.current_due - (slot.cost - 1) * state.settings.interval
    return slot._replace(due=min(slot.due, due))


def soonest(state: State, slot: Slot, clock: int, *, only: str | None = None) -> int:
    """The earliest instant for an ungranted ticket if those before it come as soon as windows have room.

    This knows what they take together in each cell, so it is about right. `only`: by limits of this unit.
    """
    first, step = max(state.current, state.revoked_through) + 1, state.settings.interval
    free = max(clock, state.current_due + step)
    taken = of_each(state.settings.limits, slot.cost, slot.units)
    latest = free + max(0, slot.ticket - first) * step
    before = windows.revoke(state)
    for place, window in enumerate(windows_of(before)):
        if only is not None and window.limit.unit != only:
            continue
        at, last = free, windows.end_of_cell(window.limit, slot.due)
        for end, units in state.usage[place].ahead[len(before.usage[place].ahead) :]:
            others = units - taken[place] if end == last else units
            if end <= last and others > 0:
                at = window.earliest(others, at)
                window.take(others, at)
        latest = max(latest, window.earliest(taken[place], at))
    return latest


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
