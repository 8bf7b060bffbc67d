"""What the shard of a queue asks about its store, which may be that of a key under a common rate."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from intervalq.rules import Slot, State
from intervalq.store import Store

if TYPE_CHECKING:  # few queues have such keys
    from intervalq._keys.store import KeyStore


def keyed_on(store: Store) -> KeyStore | None:
    """The store, if it is that of a key under a common rate; None: it is that of an ordinary queue."""
    return cast("KeyStore", store) if hasattr(store, "is_of_key") else None


def behind(store: Store) -> Store:
    """The store that all shards share."""
    key = keyed_on(store)
    return store if key is None else key.behind


class _Tickets(Protocol):
    """The part of a shard's `Grants` that is needed here."""

    tickets: deque[Slot]


class Turn(NamedTuple):
    """What a shard must know of its next slot if other keys share the rate."""

    state: State | None
    """The record, with its clock set back as far as the common slot was moved."""
    size: int = 1
    """How many slots to request together at least: see `KeyStore.turn`."""
    behind: int | None = None
    """How long before the slot that of another key comes, see `KeyStore.behind_other`; None: none does."""
    is_placed: bool = False
    """Whether the ticket has its common slot already."""


def turn_of(store: Store, grants: _Tickets, state: State | None) -> Turn:
    """What the shard of a key knows of its next slot."""
    tickets, key = grants.tickets, keyed_on(store)
    if not tickets or key is None:
        return Turn(state)
    first = tickets[0]
    if state is not None and (length := key.moved(first, state)):
        state = replace(state, held_total=state.held_total + length)
    return Turn(state, key.turn(first.ticket), key.behind_other(first.ticket), key.has_place(first.ticket))
