"""Keys under one rate: which settings they can have, and how their records say that they are such keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from intervalq._spec import configure
from intervalq._spec.commands import Common
from intervalq._spec.record import Settings, State

_OWN: Final = "own:"
_SHARED: Final = "shared:"
"""How the generation of a key's record begins, if the key has a pace of its own, or none. This needs no
field: every store keeps generations as they are."""


def shares(settings: Settings) -> bool:
    """Whether keys can be under one rate with these settings: no slot is granted together with others."""
    return settings.burst == 1 and not settings.max_running


def is_plain(settings: Settings) -> bool:
    """Whether a key can have these settings: it has only a pace and limits, none of them with an edge."""
    return shares(settings) and all(limit.edge is None for limit in settings.limits)


def has_own_pace(state: State) -> bool | None:
    """Whether a key under one rate has a pace of its own; None: this isn't the record of such a key."""
    if state.generation.startswith(_OWN):
        return True
    return False if state.generation.startswith(_SHARED) else None


def generation_of(nonce: str, *, own_pace: bool) -> str:
    """The generation of the record of a key under one rate."""
    return (_OWN if own_pace else _SHARED) + nonce


def taken_over(state: State, *, own_pace: bool) -> State:
    """The record of a key. If it was used without the common rate so far, tickets of that time are void."""
    if has_own_pace(state) is not None:
        return state
    generation = generation_of(state.generation, own_pace=own_pace)
    return replace(configure.revoke_all(state), generation=generation)


def as_recorded(known: Common, state: State | None) -> Common:
    """What a sender knows, with the kind of pace and the weight that the record of its key has."""
    own_pace = None if state is None else has_own_pace(state)
    if state is None or own_pace is None:
        return known
    weight = known.weight if own_pace else state.weight or known.weight
    if (own_pace, weight) == (known.own_pace, known.weight):
        return known
    return replace(known, own_pace=own_pace, weight=weight)
