"""Planted bugs in the limits of keys and of their queue, each with the first run of the oracle that finds it.

`python tests/keyed_window_bugs.py [NAME] [RUNS]` searches for that run again, in this many runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

from intervalq import keyed
from intervalq._keys import limits, store
from intervalq._keys.places import Places
from intervalq._spec import windows
from intervalq._spec.keys import fixed
from intervalq.rules import Advance, Command, Limit, Settled, Slot, State, Usage
from keyed_window_oracle import run

_FIXED_CELL: Final = windows.fixed_cell
_GIVE_BACK: Final = windows.give_back
_OF_KEY: Final = limits.of_key
_SET_BACK: Final = windows.set_back
_SETTLE: Final = fixed.settle
_REFUNDS: Final = Places.refunds
_WAITING: Final = keyed._waiting
_WINDOWS_OF: Final = windows.windows_of


class Bug(NamedTuple):
    """A planted bug."""

    seed: int
    """The first run that finds it."""
    owner: object
    name: str
    broken: Callable[..., Any]


def _vanishing(state: State, length: int, slots: Sequence[Slot] = ()) -> State:
    again = [slot for slot in slots if slot.ticket <= state.current]
    before = replace(state, held_total=state.held_total - length)
    for slot in again:
        before = _GIVE_BACK(before, slot)
    return _SET_BACK(replace(before, held_total=state.held_total), length)


def _settled_twice(state: State, settled: Sequence[Settled]) -> State:
    return _SETTLE(_SETTLE(state, settled), settled)


def _settled_elsewhere(limit: Limit, use: Usage, at: int) -> int | None:
    found = _FIXED_CELL(limit, use, at)
    return found if found is None else min(found + 1, len(use.used) - 1)


def _in_wrong_order(command: Command) -> Command:
    if isinstance(command, Advance):
        settled = tuple([each._replace(more=each.more[::-1]) for each in command.settled])
        command = replace(command, settled=settled)
    return _OF_KEY(command)


def _by_the_stores_clock(state: State) -> list[windows.Window]:
    return _WINDOWS_OF(replace(state, revoked_through=state.ticket))


def _refunded_twice(places: Places, common: State) -> tuple[Settled, ...]:
    return _REFUNDS(places, common) * 2


BUGS: Final = {
    "a slot that is granted again no longer counts": Bug(14, windows, "set_back", _vanishing),
    "what is settled of a key's limits counts twice": Bug(118, fixed, "settle", _settled_twice),
    "it is settled in the cell behind": Bug(199, fixed, "fixed_cell", _settled_elsewhere),
    "it is settled in the order of the common limits": Bug(6, store, "of_key", _in_wrong_order),
    "units stay behind when the clock is set back": Bug(17, windows, "set_back", lambda state, *_: state),
    "granted slots stay behind when they come again": Bug(
        101, keyed, "_waiting", lambda state, length, again, current: _WAITING(state, length, (), 0)
    ),
    "another common tolerance changes nothing": Bug(
        59, keyed, "_with_settings", lambda state, settings: replace(state, settings=settings)
    ),
    "a slot that may still be granted late counts by the store's clock": Bug(
        361, windows, "windows_of", _by_the_stores_clock
    ),
    "what nobody uses is refunded twice": Bug(16, Places, "refunds", _refunded_twice),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open."""
    bug = BUGS[name]
    with mock.patch.object(bug.owner, bug.name, bug.broken):
        yield


def is_found(name: str, seed: int) -> bool:
    """Whether a run finds a bug; a crash counts as well."""
    with planted(name):
        try:
            return bool(run(seed).over())
        except AssertionError:
            return True


if __name__ == "__main__":
    names = [name for name in BUGS if sys.argv[1:2] in ([], [""], [name])]
    for each_name in names:
        most = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
        print(next((seed for seed in range(most) if is_found(each_name, seed)), None), each_name, flush=True)
