"""A new record, and other settings for a queue that is in use, as pure functions.

A limit is identified by its unit and its window. One that stays, perhaps with another maximum or jitter,
keeps what it counted. A new one takes over what another limit of its unit counted: the one with the next
longer window, else with the next shorter one. Without such a limit, it counts from now on. Units that move
into other cells move up: they count for longer than before, never for less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

from intervalq._spec import windows
from intervalq._spec.auto import Auto, Pace
from intervalq._spec.commands import Advance, Command, Configure
from intervalq._spec.record import FOREVER, STARTS, Limit, Settings, Slot, State, Units, Usage
from intervalq._spec.windows import UsedCells, changed, end_of_cell, put, put_used


def fresh(command: Command, settings: Settings, now: int) -> State:
    """A new record."""
    if not command.nonce:
        raise ValueError("a command that may create a record needs a nonce")
    # If the sender knows an earlier record, that one was lost, and a job may have begun just now: start with
    # one quiet interval, without burst credit. Otherwise the queue is new and has been idle.
    due = now if command.generation is not None else now - settings.burst * settings.interval
    usage = windows.fresh(settings, now, was_lost=command.generation is not None)
    pace = None
    if settings.auto is not None:
        settings, pace = _adapting(settings, settings.auto, Pace(0, settings.interval, now, 0))
    return State(
        generation=command.nonce, settings=settings, due=due, current_due=due, last_now=now, usage=usage,
        pace=pace,
    )  # fmt: skip


def prolong(state: State, length: int) -> State:
    """Count granted slots for longer: their jobs may begin later than the present settings allow.

    They aren't granted again (see `standing.leased`). Nothing else may be ahead: slots that aren't
    granted were revoked.
    """
    lag = state.lag

    def prolonged(_: int, __: Limit, use: Usage) -> Usage:
        used: UsedCells = ()
        for end, units, due in (*use.used, *((end + lag, units, end) for end, units in use.ahead)):
            used = put_used(used, (end + length, units, due))
        return Usage(used)

    return changed(state, prolonged)


def revoke_all(state: State) -> State:
    """The record without tickets that aren't granted."""
    return replace(windows.revoke(state), revoked_through=state.ticket, due=state.current_due)


def configured(state: State, command: Configure) -> State:
    """The record with other settings."""
    old = state.settings
    limits = old.limits if command.limits is None else command.limits
    new = Settings(
        old.interval if command.interval is None else command.interval,
        old.burst if command.burst is None else command.burst,
        old.max_running if command.max_running is None else command.max_running,
        old.tolerance,
        old.ephemeral,
        old.limits,
    )
    pace, auto = state.pace, command.auto or (old.auto if command.interval is None else None)
    if auto is None:
        pace = None
    else:
        began = Pace(0, new.interval, state.clock(state.last_now), state.ticket)
        new, pace = _adapting(new, auto, pace if pace is not None and command.interval is None else began)
    running = state.running if new.max_running else {}
    weight = state.weight if command.weight is None else command.weight
    after = replace(state, settings=new, running=running, pace=pace, weight=weight)
    early = windows.lateness(state) - windows.lateness(after) if old.limits else 0
    if new.interval > old.interval or new.burst != old.burst or early or limits != old.limits:
        # The slots handed out may be too close together for the new settings; or, with more credit, a slot
        # that was already missed, and whose place is taken, would count as in time again; or jobs in granted
        # slots may begin later than the units of a new one allow for.
        after = revoke_all(after)
    if early:
        # If jobs may begin later from now on, those in granted slots may not: slots behind them are granted.
        after = prolong(after, max(1, early))
    return after if limits == old.limits else _respread(after, limits)


def _adapting(settings: Settings, auto: Auto, pace: Pace) -> tuple[Settings, Pace]:
    """Settings whose interval adapts between these bounds, and where it begins."""
    interval = max(auto.fastest, min(auto.slowest, settings.interval))
    pace = pace if pace.peak else pace._replace(base=min(pace.base, auto.slowest))
    return replace(settings, interval=interval, auto=auto), pace


def _respread(state: State, limits: tuple[Limit, ...]) -> State:
    """The record with new limits, whose cells get what was counted for the old ones."""
    usage = tuple([_usage(limit, state) for limit in limits])
    settings = replace(state.settings, limits=limits)
    return replace(state, settings=settings, usage=usage, stepped=state.stepped if limits else 0)


def _usage(limit: Limit, state: State) -> Usage:
    known = [
        each for each in zip(state.settings.limits, state.usage, strict=True) if each[0].unit == limit.unit
    ]
    if not known:
        return Usage()
    # The next longer window has seen all that counts, a shorter one only a part of it.
    source, use = min(
        known, key=lambda each: (each[0].window < limit.window, abs(each[0].window - limit.window))
    )
    if source.block == limit.block:
        return use
    ahead: tuple[tuple[int, int], ...] = ()
    for end, units in use.ahead:  # of granted slots only: if limits change, the others are revoked
        ahead = put(ahead, end_of_cell(limit, min(end - 1, state.current_due)), units)
    used = [
        (end, units, due if due == -FOREVER else end_of_cell(limit, due - 1)) for end, units, due in use.used
    ]
    return Usage(tuple(used), ahead)


def reordered(command: Advance, before: tuple[str, ...], after: Sequence[Limit]) -> Advance:
    """The command with its units in the order of the limits `after`; they are given in the order of `before`.

    A ticket takes nothing of limits whose units it doesn't name, except its cost of limits that count starts.
    """
    if before == tuple([limit.unit for limit in after]):
        return command

    def slots(several: tuple[Slot, ...]) -> tuple[Slot, ...]:
        return tuple([slot._replace(units=ordered(slot.cost, slot.units, before, after)) for slot in several])

    units = [
        ordered(cost, each, before, after)
        for cost, each in zip(chain(command.costs, repeat(1)), command.units, strict=False)
    ]
    settled = [each._replace(more=ordered(0, each.more, before, after)) for each in command.settled]
    return replace(
        command,
        release=slots(command.release),
        slots=slots(command.slots),
        units=tuple(units),
        settled=tuple(settled),
    )


def ordered(cost: int, units: Units, before: tuple[str, ...], after: Sequence[Limit]) -> Units:
    """The units of a ticket in the order of the limits `after`; they are given in the order of `before`."""
    taken = {STARTS: cost} | dict(zip(before, chain(units, repeat(0)), strict=False))
    return tuple([taken.get(limit.unit, 0) for limit in after]) if units else ()
