"""Adapts the interval of a record to a server's limit: it shortens gradually, and a cut lengthens it."""

from __future__ import annotations

from dataclasses import replace

from intervalq._spec.auto import SETTLED, Pace, cut, interval_at, is_early
from intervalq._spec.commands import Hold
from intervalq._spec.configure import revoke_all
from intervalq._spec.record import FOREVER, State


def grown(state: State, clock: int) -> State:
    """The record with the interval for the next slots, which may be shorter than that of the last ones.

    If nobody took a free slot, the curve is delayed by the idle time. The tolerance shrinks with the
    interval: the next slots move back by the difference, because the job in the last slot still has the old
    tolerance.
    """
    auto, pace, settings = state.settings.auto, state.pace, state.settings
    if auto is None or pace is None:
        return state
    idle = clock - state.credit - state.due - settings.interval
    if idle > 0:
        pace = pace._replace(cut_at=pace.cut_at + idle)
        state = replace(state, pace=pace)
    interval = interval_at(auto, pace, max(state.due, clock))
    if interval >= settings.interval:
        return state
    after = replace(state, settings=replace(settings, interval=interval))
    return replace(after, due=min(FOREVER, state.due + state.tolerance - after.tolerance))


def refused(state: State, command: Hold) -> tuple[State, int]:
    """The record after a server may have refused a start, and for how long to hold it.

    If the refused ticket was issued after the last cut, the interval becomes longer, and ungranted tickets
    are revoked, as when somebody configures a longer interval.
    """
    auto, pace, refusal = state.settings.auto, state.pace, command.refusal
    if auto is None or pace is None or refusal is None or command.generation != state.generation:
        return state, command.length
    if not pace.cut_ticket < refusal.ticket <= state.ticket:
        return state, command.length
    length = max(command.length, SETTLED) if is_early(pace, refusal) else command.length
    before = state.settings.interval
    pace = Pace(*cut(auto, pace, before, refusal), state.clock(state.last_now), state.ticket)
    state = replace(state, pace=pace, settings=replace(state.settings, interval=pace.base))
    return revoke_all(state) if pace.base > before else state, length
