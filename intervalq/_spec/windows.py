"""Limits in addition to the interval: at most some units in any window of a given length. Pure functions.

A ticket takes units of each limit when it is issued, at its slot. They count until the slot is a window old,
so a new slot is the earliest instant at which its units fit in with all that count then.

Units are kept in cells of a 192nd of the window, and count until the end of their cell is a window old: exact
in the direction that matters, and a 192nd of a limit is wasted at most. Each limit has two lists. The units
of slots that may still be used lie *ahead*, on the queue's clock, so a hold moves them with their slots. Once
a slot is over, its units are *used*: they lie on the store's clock, and age in real time even while the queue
is held. A job may begin late by the tolerance, the credit of a burst, and its process's error about the
store's clock, so the windows are longer by these.

A job may take more or fewer units than its ticket did. The difference is settled in the slot's cell, and the
windows are then as if it had been known.

The windows of a limit with an edge are fixed: its units count until the first edge that neither a late job
nor its call can have passed. `edges` describes what holds do to them.

Whatever isn't known exactly counts for longer than it should, never for less: a slot that was never used, or
a cell that was merged with a later one. In a full queue (`max_running`), a slot is granted again only where
its units count: if the queue had room meanwhile, the slots behind it were placed by where it was before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TypeAlias

from intervalq._spec.record import (
    CELLS,
    FOREVER,
    MAX_CELLS,
    STARTS,
    HighWaterMark,
    Limit,
    Settings,
    Settled,
    Slot,
    State,
    Units,
    Usage,
)

Cells: TypeAlias = tuple[tuple[int, int], ...]
UsedCells: TypeAlias = tuple[tuple[int, int, int], ...]


def lateness(state: State) -> int:
    """How long after its slot a job may begin: by the tolerance, saved-up credit, and the error of clocks.

    With an automatic interval, this is its maximum, so that units needn't move with the interval.
    """
    if state.settings.auto is not None:
        state = replace(state, settings=replace(state.settings, interval=state.settings.auto.slowest))
    return state.tolerance + state.credit + 2 * state.error


def kept(state: State) -> int:
    """How long after its slot a unit may still count; 0 without limits."""
    return max((_span(limit, state) + limit.block for limit in state.settings.limits), default=0)


def end_of_cell(limit: Limit, due: int) -> int:
    """The end of the cell that contains an instant. A window has 64 blocks, and each of them three cells."""
    begin, cell = due // limit.block * limit.block, -(-limit.block // CELLS)
    return min(FOREVER, begin + limit.block, begin + ((due - begin) // cell + 1) * cell)


def end_of_granted(limit: Limit, use: Usage, current_due: int) -> int:
    """The end of the last cell ahead that may contain the last granted slot.

    In earlier versions a cell was as long as a block, and their shards may use the same record.
    """
    block = min(FOREVER, (current_due // limit.block + 1) * limit.block)
    return block if any(end == block for end, _ in use.ahead) else end_of_cell(limit, current_due)


def fresh(settings: Settings, now: int, *, was_lost: bool) -> tuple[Usage, ...]:
    """The usage of a new record: none, or everything if it replaces a lost record."""
    return tuple(Usage(used=((now, limit.most, now),)) if was_lost else Usage() for limit in settings.limits)


def age(state: State) -> State:
    """Let slots that are over count by the store's clock, and forget units that no window contains any more.

    Units of slots behind the last granted one are kept: if that one is granted late, these slots come again.
    """
    if not state.settings.limits:
        return state
    clock, late, lag = state.clock(state.last_now), lateness(state), state.lag

    def aged(_: int, limit: Limit, use: Usage) -> Usage:
        over = [cell for cell in use.ahead if cell[0] + late <= clock]
        used = use.used
        for end, units in over:
            used = put_used(used, (end + lag, units, end))
        ends = expiry(limit, state)
        kept = tuple(
            cell for cell in used if ends(cell[0] - lag) > clock - late or cell[2] > state.current_due
        )
        return Usage(kept, use.ahead[len(over) :])

    return changed(state, aged)


def hold(state: State) -> State:
    """The record when a hold begins: granted slots stay where they are, so their units do, too.

    Other slots move, and with them the cells that they share with granted ones.
    """
    lag = state.lag
    are_others = max(state.current, state.revoked_through) < state.ticket

    def held(_: int, limit: Limit, use: Usage) -> Usage:
        last = state.current_due if are_others else end_of_cell(limit, state.current_due)
        return stayed(use, last, lag)

    return changed(state, held)


def stayed(use: Usage, last: int, lag: int) -> Usage:
    """The usage after slots in the cells up to the last one stayed where they are, by the store's clock."""
    used = use.used
    for end, units in use.ahead:
        if end <= last:
            used = put_used(used, (end + lag, units, end))
    return Usage(used, tuple(cell for cell in use.ahead if cell[0] > last))


def set_back(state: State, length: int, slots: Sequence[Slot] = ()) -> State:
    """The record after the queue's clock was set back: slots that were over lie ahead again.

    Cells that were prolonged stay where they are: there they count for longer.

    Args:
        state: the record.
        length: how far the clock was set back.
        slots: the slots that are granted late now. Their units may have been forgotten, or, if they were
            granted before, be fixed where the slots were: see `keys.fixed`.
    """
    over, limits = state.clock(state.last_now) - lateness(state), state.settings.limits

    def again(place: int, limit: Limit, use: Usage) -> Usage:
        ahead, back = use.ahead, [cell for cell in use.used if over < cell[2] >= cell[0] - state.lag]
        for _, units, end in back:
            ahead = put(ahead, end, units)
        use, known = Usage(tuple([x for x in use.used if x not in back])), {end for end, _ in ahead}
        for slot in slots:
            units, at = of_each(limits, slot.cost, slot.units)[place], slot.due + state.lag
            fixed = fixed_cell(limit, use, at - length) if units and slot.ticket <= state.current else None
            if fixed is not None:
                cell = end_of_cell(limit, at), units, -FOREVER
                use = Usage(put_used(added(use.used, fixed, -units), cell))
            elif (end := end_of_cell(limit, slot.due)) not in known:
                ahead = put(ahead, end, units)
        return use._replace(ahead=ahead)

    return changed(state, again)


def fit(
    state: State,
    costs: Sequence[int],
    units: Sequence[Units],
    due: int,
    clock: int,
    *,
    apart: int | None = None,
) -> tuple[State, list[int], bool]:
    """Find slots for new tickets from `due` on, one behind the other, where every limit has room for them.

    Returns the record that counts them, their slots (none beyond the last instant that a store can hold), and
    whether the first ticket would have had room when the queue's clock read `clock`. For `apart` see
    `Advance`.
    """
    limits, step, dues = state.settings.limits, state.settings.interval, list[int]()
    windows = windows_of(state)
    soonest = min(due, clock)
    for cost, taken in zip(costs, chain(units, repeat(())), strict=False):
        each = [*zip(windows, of_each(limits, cost, taken), strict=True)]
        if not dues:
            soonest = max([window.earliest(some, soonest) for window, some in each])
            due = max(due, soonest)
        free = max([window.earliest(some, due) for window, some in each])
        if free + cost * step > FOREVER or (apart is not None and len(dues) >= apart and free > due):
            break
        due = free
        for window, some in each:
            window.take(some, due)
        dues.append(due)
        due += cost * step
    return replace(state, usage=tuple(window.usage for window in windows)), dues, soonest <= clock


def windows_of(state: State) -> list[Window]:
    """The windows of all limits, in their order."""
    are_others = max(state.current, state.revoked_through) < state.ticket
    last = state.current_due if are_others else FOREVER
    pairs = zip(state.settings.limits, state.usage, strict=True)
    return [Window(limit, use, expiry(limit, state), state.lag, last) for limit, use in pairs]


class Window:
    """The room of one limit, for consecutive slots.

    Slots behind the `last` granted one may still be granted late, and move the new ones along. So their units
    count where the slots are on the queue's clock, even if they are over and this clock was held since then.
    """

    def __init__(self, limit: Limit, use: Usage, expiry: Callable[[int], int], lag: int, last: int) -> None:
        self.usage = use
        self.limit = limit
        self._expiry = expiry
        over = [(max(end - lag, due) if due > last else end - lag, units) for end, units, due in use.used]
        self._cells = sorted([*over, *use.ahead])
        self._first = 0  # the first cell that still counts
        self.counted = sum(units for _, units in self._cells)

    def earliest(self, units: int, at: int) -> int:
        """The first instant from `at` on with room for the units; later calls may not go back in time."""
        units = min(units, self.limit.most)
        while self._first < len(self._cells):
            end, counted = self._cells[self._first]
            until = self._expiry(end)
            if until > at:
                if units == 0 or self.counted + units <= self.limit.most:
                    break
                at = until
            self._first += 1
            self.counted -= counted
        return at

    def take(self, units: int, due: int) -> None:
        """Count units at a slot; later calls may not have an earlier slot."""
        if units:
            end = end_of_cell(self.limit, due)
            self.usage = self.usage._replace(ahead=put(self.usage.ahead, end, units))
            self._cells.append((end, units))
            self.counted += units


def give_back(state: State, slot: Slot) -> State:
    """Stop counting the units of a slot that won't be used."""
    taken = of_each(state.settings.limits, slot.cost, slot.units)

    def returned(place: int, limit: Limit, use: Usage) -> Usage:
        fixed = fixed_cell(limit, use, slot.due + state.lag) if slot.ticket <= state.current else None
        if fixed is not None:
            return use._replace(used=added(use.used, fixed, -taken[place]))
        return use._replace(ahead=without(use.ahead, end_of_cell(limit, slot.due), taken[place]))

    return changed(state, returned)


def fixed_cell(limit: Limit, use: Usage, at: int) -> int | None:
    """The place of the cell in which the slot at this instant, on the store's clock, was fixed."""
    if limit.edge is not None:
        return None
    end = end_of_cell(limit, at)
    return next((i for i, cell in enumerate(use.used) if cell[0] == end and cell[2] == -FOREVER), None)


def settle(state: State, settled: Sequence[Settled]) -> State:
    """Correct the units of slots whose jobs' real costs are known now, as far as these units still count.

    Holds may have split the cell of a slot. The slot is in the first part that was over after its grant.
    """
    if not settled:
        return state
    over = state.clock(state.last_now) - lateness(state)

    def corrected(place: int, limit: Limit, use: Usage) -> Usage:
        ends = expiry(limit, state)
        for due, lag, each, _ in settled:
            end, more = end_of_cell(limit, due), each[place] if place < len(each) else 0
            if not more or ends(end + lag - state.lag) <= over:
                continue
            part = next(
                (i for i, cell in enumerate(use.used) if cell[2] == end and cell[0] >= end + lag), None
            )
            if part is not None:
                use = use._replace(used=added(use.used, part, more))
            elif more < 0:
                use = use._replace(ahead=without(use.ahead, end, -more))
            elif end > over or any(cell[0] == end for cell in use.ahead):
                use = use._replace(ahead=put(use.ahead, end, more))
            else:
                use = use._replace(used=put_used(use.used, (end + state.lag, more, end)))
        return use

    return changed(state, corrected)


def revoke(state: State) -> State:
    """Stop counting the units of all slots behind the last granted one."""

    def revoked(_: int, limit: Limit, use: Usage) -> Usage:
        last = end_of_granted(limit, use, state.current_due)
        return use._replace(ahead=tuple(cell for cell in use.ahead if cell[0] <= last))

    return changed(state, revoked)


def heal(state: State, mark: HighWaterMark) -> State:
    """Count what the record has lost: one start for each ticket, and of other units the whole limit."""

    def lost(limit: Limit) -> int:
        return min(limit.most, mark.ticket - state.ticket) if limit.unit == STARTS else limit.most

    return changed(
        state,
        lambda _, limit, use: use._replace(ahead=put(use.ahead, end_of_cell(limit, mark.due), lost(limit))),
    )


def changed(state: State, change: Callable[[int, Limit, Usage], Usage]) -> State:
    """The record with other usage, in the order of its limits."""
    limits = state.settings.limits
    if not limits:
        return state
    pairs = enumerate(zip(limits, state.usage, strict=True))
    return replace(state, usage=tuple(change(place, limit, use) for place, (limit, use) in pairs))


def of_each(limits: Sequence[Limit], cost: int, units: Units) -> list[int]:
    """The units that a ticket takes of each limit. One without units takes its cost of limits of starts."""
    if not units:
        return [cost if limit.unit == STARTS else 0 for limit in limits]
    return [taken for _, taken in zip(limits, chain(units, repeat(0)), strict=False)]


def _span(limit: Limit, state: State) -> int:
    """How long units count after the end of their cell; in fixed windows, an upper bound."""
    return limit.window + limit.jitter + lateness(state) + state.error


def expiry(limit: Limit, state: State) -> Callable[[int], int]:
    """The time until which the units of a cell count, given its end; both on the queue's clock."""
    span = _span(limit, state)
    if limit.edge is None:
        return lambda end: end + span
    edge, window, held_total, error = limit.edge, limit.window, state.held_total, state.error
    late = limit.jitter + lateness(state)

    def until(end: int) -> int:
        at = end + held_total + late
        return at + (edge - at) % window - held_total + error

    return until


def put(cells: Cells, end: int, units: int) -> Cells:
    """Add units to the cell with this end, capped at the last instant that a store can hold."""
    if not units:
        return cells
    end = min(FOREVER, end)
    place = bisect_left(cells, (end,))
    if place < len(cells) and (cells[place][0] == end or len(cells) >= MAX_CELLS):
        return (*cells[:place], (cells[place][0], cells[place][1] + units), *cells[place + 1 :])
    if len(cells) >= MAX_CELLS:  # there is no room: the cell that ends later counts for both
        return (*cells[:-1], (end, cells[-1][1] + units))
    return (*cells[:place], (end, units), *cells[place:])


def put_used(cells: UsedCells, cell: tuple[int, int, int]) -> UsedCells:
    """Add a cell of slots that have passed."""
    cell = min(FOREVER, cell[0]), cell[1], cell[2]
    place = bisect_left(cells, cell[:1])
    if place < len(cells) and (cells[place][0] == cell[0] or len(cells) >= MAX_CELLS):
        end, units, due = cells[place]
        return (*cells[:place], (end, units + cell[1], max(due, cell[2])), *cells[place + 1 :])
    if len(cells) >= MAX_CELLS:  # there is no room: the cell that ends later counts for both
        _, units, due = cells[-1]
        return (*cells[:-1], (cell[0], units + cell[1], max(due, cell[2])))
    return (*cells[:place], cell, *cells[place:])


def added(cells: UsedCells, place: int, more: int) -> UsedCells:
    """Add units to a cell, or subtract them; a cell without any left is removed."""
    end, units, due = cells[place]
    left = ((end, units + more, due),) if units + more > 0 else ()
    return (*cells[:place], *left, *cells[place + 1 :])


def without(cells: Cells, end: int, units: int) -> Cells:
    """Subtract units from the cell with this end; if it was merged with another one, they stay counted."""
    return tuple(
        (each, counted - units if each == end else counted)
        for each, counted in cells
        if each != end or counted > units
    )
