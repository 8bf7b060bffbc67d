"""What time alone does to a record: holds and leases end, units age, and an idle record lapses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from intervalq._spec import edges, windows
from intervalq._spec.record import FOREVER, State

IDLE_KEPT: Final = 60_000_000
"""How long an idle ephemeral record is kept after its last slot, in microseconds."""

WEIGHT_KEPT: Final = 7 * 24 * 3_600_000_000
"""The same, if the record has a weight: somebody set it, and expects it after a weekend, too."""


def settle(state: State, now: int) -> State:
    """The record as of `now`: backward steps of the clock are absorbed, and expired holds ended."""
    back = state.last_now - now
    if back > 0:
        # The store's clock was set back. All instants on it move with it, so the queue's clock simply goes
        # on: it neither repeats a time nor stands still for the length of the step.
        state = edges.stepped(state, now)
        state = replace(
            state,
            held_total=state.held_total - back,
            stepped=state.stepped + back if state.settings.limits else 0,
            held_since=None if state.held_since is None else state.held_since - back,
            held_until=state.held_until - back if 0 < state.held_until < FOREVER else state.held_until,
            error_until=state.error_until - back if state.error else 0,
            running={ticket: until - back for ticket, until in state.running.items()},
        )
    state = replace(state, last_now=now)
    if state.held_since is not None:
        end = max(state.held_until, _full_until(state))
        if end <= now:
            # The hold ended at its own end, not when a command noticed it.
            state = resumed(state, end)
    if state.error and state.error_until <= now:
        state = replace(state, error=0, error_until=0)
    if state.held_until and state.held_until <= now:
        state = replace(state, held_until=0)
    if state.running:
        running = {ticket: until for ticket, until in state.running.items() if until > now}
        state = replace(state, running=running)
    return windows.age(state)


def resumed(state: State, now: int) -> State:
    """The record after its hold ended: from now on, its clock goes on."""
    if state.held_since is None:
        return state
    length = now - state.held_since
    state = edges.moved(state, length)
    return replace(state, held_total=state.held_total + length, held_since=None)


def lapses(state: State) -> int:
    """When the record may be forgotten, on the store's clock; FOREVER unless it is ephemeral and idle.

    From then on a new record would treat every job exactly as this one does: no outstanding slot can still be
    used, no start is less than an interval ago, and all burst credit has come back.
    """
    if not state.settings.ephemeral or state.held_since is not None or state.running:
        return FOREVER
    slots = state.due + state.held_total + (state.settings.burst + 1) * state.settings.interval
    kept = WEIGHT_KEPT if state.weight else IDLE_KEPT
    return min(FOREVER, slots + windows.kept(state) + kept)


def _full_until(state: State) -> int:
    """When enough leases will have expired for another job to run, if no job ends before; 0: one may run."""
    if not state.full:
        return 0
    return sorted(state.running.values())[len(state.running) - state.settings.max_running]
