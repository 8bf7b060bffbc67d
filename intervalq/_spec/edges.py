"""Limits with fixed windows: holds move slots, but not the edges between windows. Pure functions.

A slot is chosen by the room in the window that it lies in. If a hold would move ungranted slots across an
edge, or if they wait for an edge that passes during the hold, they are revoked, and the tickets that replace
them are counted in the windows as they are then. Granted slots don't move in a hold, nor do their units.

A late grant moves granted slots. It isn't given if any of them would then count in another window.

Edges are on the store's clock as it reads now. If that was set back into a window whose beginning is
forgotten, nothing fits into the rest of that window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intervalq._spec import windows
from intervalq._spec.configure import revoke_all
from intervalq._spec.record import FOREVER, Limit, Slot, State, Usage


def moved(state: State, length: int) -> State:
    """Prepare the record for a hold of this length, which moves its slots (back, if it is negative).

    If slots that aren't granted have to be counted anew, they are revoked.
    """
    if max(state.current, state.revoked_through) == state.ticket:
        return state
    pairs = zip(state.settings.limits, state.usage, strict=True)
    if not any(_is_among_edges(state, limit, use, length) for limit, use in pairs):
        return state
    return revoke_all(windows.changed(state, lambda _, limit, use: _stayed(state, limit, use)))


def stepped(state: State, now: int) -> State:
    """Prepare the record for a store's clock that was set back, and reads `now`."""
    state = moved(state, now - state.last_now)
    late, end = windows.lateness(state), state.last_now + state.stepped

    def known(_: int, limit: Limit, use: Usage) -> Usage:
        if limit.edge is None:
            return use
        kept = late + (state.last_now - late - limit.edge) % limit.window
        if (now - limit.edge) % limit.window <= kept:
            return use
        return Usage(windows.put_used(use.used, (end, limit.most, -FOREVER)), use.ahead)

    return windows.changed(state, known)


def are_passed(state: State, slots: Sequence[Slot], length: int) -> bool:
    """Whether a unit would count in another window if the queue's clock were set back by this length.

    Args:
        state: the record.
        slots: the slots that would be granted late.
        length: how far the clock would be set back.
    """
    after = replace(state, held_total=state.held_total + length)
    for limit, use in zip(state.settings.limits, state.usage, strict=True):
        if limit.edge is not None:
            ends = {windows.end_of_cell(limit, slot.due) for slot in slots} | {end for end, _ in use.ahead}
            now, then = windows.expiry(limit, state), windows.expiry(limit, after)
            if any(now(end) != then(end) + length for end in ends):
                return True
    return False


def _is_among_edges(state: State, limit: Limit, use: Usage, length: int) -> bool:
    """Whether an edge lies between the first slot, or the start of the hold, and the end of the last slot."""
    if limit.edge is None or not use.ahead:
        return False
    first = min(use.ahead[0][0] - limit.block, state.clock(state.last_now)) + min(0, length)
    last = use.ahead[-1][0] + limit.jitter + windows.lateness(state) + max(0, length)
    at = first + state.held_total + 1
    return at + (limit.edge - at) % limit.window < last + state.held_total


def _stayed(state: State, limit: Limit, use: Usage) -> Usage:
    """Keep the units of granted slots in their windows, and drop those of the others."""
    last = windows.end_of_granted(limit, use, state.current_due)
    return use if limit.edge is None else windows.stayed(use, last, state.lag)
