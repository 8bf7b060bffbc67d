"""Which settings queues with keys under one rate can have, and how many slots a key has in a turn."""

from __future__ import annotations

from dataclasses import replace

from intervalq._spec.commands import Common
from intervalq._spec.record import Settings, State


def shares(settings: Settings) -> bool:
    """Whether keys can be under one rate with these settings: no slot is granted together with others."""
    return settings.burst == 1 and not settings.max_running


def is_plain(settings: Settings) -> bool:
    """Whether a key can have these settings: it has only a pace and limits, none of them with an edge."""
    return shares(settings) and all(limit.edge is None for limit in settings.limits)


def weighted(known: Common, state: State | None) -> Common:
    """What a sender knows, with the weight in the record of its key, if that has one."""
    if state is None or not state.weight or known.own_pace:
        return known
    return replace(known, weight=state.weight)
