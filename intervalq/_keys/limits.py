"""Limits of a key and of all keys, as the key's shard has them: like limits of one queue, on its clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from intervalq._spec import windows
from intervalq._spec.configure import reordered
from intervalq.rules import Advance, Answer, Command, Limit, Settings, Settled, State, Units, Usage


class Counting(NamedTuple):
    """The clocks by which limits count a granted slot: see `Settled`."""

    behind: int
    """How far the record's clock (of a key: the common record's) was behind the store's at the grant."""
    lag: int
    """`State.lag` of this record at the grant."""
    own: tuple[int, int] | None = None
    """The same two values of the key's own record; None: the key has no limits of its own."""

    def settled(self, instant: int) -> Settled:
        """The slot at this instant, on the store's clock, as `Settled` has it."""
        own = None if self.own is None else (instant - self.own[0], self.own[1])
        return Settled(instant - self.behind, self.lag, (), own)


NOT_COUNTED: Final = Counting(0, 0)
"""For slots whose costs nobody settles."""


def in_order(command: Command, common: Settings | None) -> Command:
    """The command with its units in the order of both records' limits: others may change the common ones."""
    settings = command.settings
    if not isinstance(command, Advance) or settings is None or common is None:
        return command
    return reordered(command, units_of(settings.limits), (*settings.limits[: settings.own], *common.limits))


def units_of(limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """The units of limits, in their order."""
    return tuple([limit.unit for limit in limits])


def of_key(command: Command) -> Command:
    """The command as it is for the record of the key, which has only its own limits."""
    settings = command.settings
    if settings is None or not settings.limits:
        return command
    own = settings.own
    command = replace(command, settings=replace(settings, limits=settings.limits[:own], own=0))
    if not isinstance(command, Advance):
        return command
    settled = [Settled(*each.own, each.more[:own]) for each in command.settled if each.own is not None]
    return replace(command, settled=tuple([each for each in settled if any(each.more)]))


def of_common(command: Advance) -> tuple[Settled, ...]:
    """What the command settles of the common limits."""
    own = 0 if command.settings is None else command.settings.own
    return tuple([Settled(each.due, each.lag, each.more[own:]) for each in command.settled])


def common_units(units: Units, settings: Settings | None) -> Units:
    """What a slot of the key takes of the common limits."""
    return units[0 if settings is None else settings.own :]


def alone(state: State) -> State:
    """The record of the key as its shard has it, without the common limits."""
    own = state.settings.own
    settings = replace(state.settings, limits=state.settings.limits[:own], own=0)
    return replace(state, settings=settings, usage=state.usage[:own])


def room(state: State, taken: Units, clock: int) -> int:
    """The first instant, on the key's clock, at which no window of the key is full that a job takes of.

    There is room then for one unit of each, but perhaps too little for this job.
    """
    mine = alone(state)
    least = tuple([min(1, units) for units in taken[: state.settings.own]])
    return windows.fit(mine, (1,), (least,), clock, clock)[1][0]


def of_shard(answer: Answer, common: State | None) -> Answer:
    """The answer as it is for the shard of the key: its record has the limits of both records."""
    state = answer.state
    own = 0 if state is None else len(state.settings.limits)
    if state is None or not (own or (common is not None and common.settings.limits)):
        return answer
    limits, usage, stepped = state.settings.limits, state.usage, state.stepped
    if common is not None:
        stepped = stepped if own else common.stepped
        usage = (*usage, *_moved(common, common.held_total - state.held_total, stepped - common.stepped))
        limits = (*limits, *common.settings.limits)
    settings = replace(state.settings, limits=limits, own=own)
    return replace(answer, state=replace(state, settings=settings, usage=usage, stepped=stepped))


def _moved(common: State, behind: int, later: int) -> tuple[Usage, ...]:
    """What the common limits counted, on the clock of the key, and on that of the store."""
    return tuple(
        [
            Usage(
                tuple([(end + later, units, due + behind) for end, units, due in use.used]),
                tuple([(end + behind, units) for end, units in use.ahead]),
            )
            for use in common.usage
        ]
    )
