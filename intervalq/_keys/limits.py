"""Limits of the common queue as the shard of a key has them: like limits of its own, on the key's clock."""

from __future__ import annotations

from dataclasses import replace

from intervalq._spec.configure import reordered
from intervalq.rules import Advance, Answer, Command, Limit, Settings, State, Usage


def common_order(command: Command, common: Settings | None) -> Command:
    """The command with its units in the order of the common limits, which others may have changed."""
    if not isinstance(command, Advance) or command.settings is None or common is None:
        return command
    return reordered(command, units_of(command.settings.limits), common.limits)


def units_of(limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """The units of limits, in their order."""
    return tuple([limit.unit for limit in limits])


def of_key(command: Command) -> Command:
    """The command as it is for the record of the key, which has no limits."""
    if command.settings is None or not command.settings.limits:
        return command
    command = replace(command, settings=replace(command.settings, limits=()))
    return replace(command, settled=()) if isinstance(command, Advance) else command


def of_shard(answer: Answer, common: State | None) -> Answer:
    """The answer as it is for the shard of the key: its record has the common limits."""
    state = answer.state
    if state is None or common is None or not common.settings.limits:
        return answer
    behind = common.held_total - state.held_total
    usage = tuple(
        [
            Usage(
                tuple([(end, units, due + behind) for end, units, due in use.used]),
                tuple([(end + behind, units) for end, units in use.ahead]),
            )
            for use in common.usage
        ]
    )
    settings = replace(state.settings, limits=common.settings.limits)
    return replace(answer, state=replace(state, settings=settings, usage=usage, stepped=common.stepped))
