"""Limits of a key under a common rate: the units of its granted slots stay where they are. Pure functions.

While a key waits for others, its clock is set back, by a whole window if the others have used up the common
limits. The slots that it has used must not move along with those that are still to come. So the units of a
slot are fixed when it is granted: they lie in cells of the store's clock, whatever happens to the key's own.

A slot may be granted again, later: then its units move along, and count once. For this, they must be where
the key's clock says. So a step that sets this clock back moves the units of all granted slots that it lists,
and the others that were granted before can't be granted again.
"""

from __future__ import annotations

from collections.abc import Sequence

from intervalq._spec.record import FOREVER, Limit, Settled, Slot, State, Usage
from intervalq._spec.windows import (
    added,
    changed,
    end_of_cell,
    expiry,
    fixed_cell,
    lateness,
    of_each,
    put_used,
    without,
)


def fix(state: State, slots: Sequence[Slot], current: int) -> State:
    """Count granted slots where they are by the store's clock, so that nothing moves them any more.

    Args:
        state: the record of a key.
        slots: the slots that are granted now.
        current: the highest ticket granted before: slots up to this one are fixed already.
    """
    lag, limits = state.lag, state.settings.limits

    def fixed(place: int, limit: Limit, use: Usage) -> Usage:
        for slot in slots:
            units = of_each(limits, slot.cost, slot.units)[place]
            if units and slot.ticket > current:
                cell = end_of_cell(limit, slot.due + lag), units, -FOREVER
                use = Usage(put_used(use.used, cell), without(use.ahead, end_of_cell(limit, slot.due), units))
        return use

    return changed(state, fixed)


def settle(state: State, settled: Sequence[Settled]) -> State:
    """Correct the units of slots whose jobs' real costs are known now: see `windows.settle`."""
    if not settled:
        return state
    over = state.clock(state.last_now) - lateness(state)

    def corrected(place: int, limit: Limit, use: Usage) -> Usage:
        ends = expiry(limit, state)
        for due, lag, each, _ in settled:
            end, more = end_of_cell(limit, due + lag), each[place] if place < len(each) else 0
            if not more or ends(end - state.lag) <= over:
                continue
            part = fixed_cell(limit, use, due + lag)
            if part is not None:
                use = use._replace(used=added(use.used, part, more))
            elif more > 0:
                use = use._replace(used=put_used(use.used, (end, more, -FOREVER)))
        return use

    return changed(state, corrected)
