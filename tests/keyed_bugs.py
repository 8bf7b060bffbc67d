"""Planted bugs of keys under one rate, each with what it breaks, and the first schedule that finds it.

`python tests/keyed_bugs.py [NAME] [SCHEDULES]` searches for that schedule again, in this many schedules.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

from intervalq import keyed
from intervalq._keys.store import KeyStore
from intervalq._queue import options
from intervalq.keyed import Common
from intervalq.rules import FOREVER, Advance, Settings, Slot, State
from keyed_schedules import verdict

_ADVANCE: Final = keyed._advance
_ASKING: Final = keyed._asking
_KNOWN: Final = KeyStore._known
_MOVED: Final = keyed._moved
_PACED: Final = keyed._paced
_PLACES: Final = keyed._places
_TOLERANCE: Final = keyed._tolerance


class Bug(NamedTuple):
    """A planted bug."""

    promise: str
    """What docs/promises.md or docs/pacing.md says, which it breaks."""
    seed: int
    """The first schedule that finds it."""
    owner: object
    name: str
    broken: Callable[..., Any]


def _stays(state: State, length: int, slots: object = ()) -> State:
    del length, slots
    return state


def _far(common: State, command: Advance, known: Common, reach: int) -> Advance:
    del reach
    return _ASKING(common, command, known, FOREVER)


def _of_all(state: State | None, command: Any, pace: Settings, known: Common, tolerance: int) -> Any:
    return _PACED(state, command, pace, replace(known, own_pace=False), tolerance)


def _as_if_granted(
    common: State, asking: Advance, known: Common, wanted: tuple[tuple[Slot, ...], int], now: int
) -> Any:
    common, got = _PLACES(common, asking, known, wanted, now)
    return common, got._replace(granted=len(wanted[0]))


def _light(self: KeyStore, command: Any) -> Common:
    return replace(_KNOWN(self, command), weight=1)


def _for_ever(common: Settings, own: int) -> Settings:
    return Settings(own or common.interval, tolerance=common.tolerance)


def _goes_on(state: State, common: State, command: Advance, known: Common, now: int) -> int:
    return _MOVED(state, common, replace(command, take=0), known, now)


def _own_slot(self: KeyStore, state: State, until: int) -> int:
    del self, until
    return state.due


BUGS: Final = {
    "a key does not wait for its common slot": Bug(
        "starts of all keys at least the common interval minus the tolerance", 0, keyed, "set_back", _stays
    ),
    "slots are granted that the common queue has not granted": Bug(
        "both are granted in one atomic step", 8, keyed, "_places", _as_if_granted
    ),
    "places are granted however far ahead": Bug(
        "a pause of the queue stops all keys", 52, keyed, "_asking", _far
    ),
    "a key has the common pace instead of its own": Bug(
        "starts of one key are at least its interval minus the tolerance apart", 3, keyed, "_paced", _of_all
    ),
    "a key may begin much later than its common slot allows": Bug(
        "minus the tolerance, which is the common one for both", 13, keyed, "_tolerance",
        lambda common, pace: 8 * _TOLERANCE(common, pace),
    ),
    "a key takes its whole backlog in a turn": Bug(
        "keys that wait take turns of equal size", 8, keyed, "_is_alone", lambda *_: True
    ),
    "weights are forgotten on the way to the store": Bug(
        "or by their weights", 8, KeyStore, "_known", _light
    ),
    "a process forgets its places": Bug(
        "a key asks again when its last slot is about to come", 0, KeyStore, "_keep", lambda *_: None
    ),
    "a pause counts once more for tickets that a key takes after it": Bug(
        "a pause of the queue holds all keys, and resume ends that", 5, keyed, "_moved", _goes_on
    ),
    "a quote of a key ignores the other keys": Bug(
        "the seconds until a job would begin if it were added now", 0, KeyStore, "free", _own_slot
    ),
    "a quote of a key counts a pause of all keys for its own pace, too": Bug(
        "the seconds until a job would begin if it were added now", 5, KeyStore, "own_clock",
        lambda self, state, until: state,
    ),
    "idle keys stay in the store": Bug(
        "a key that is idle leaves nothing behind", 0, options, "pace_of", _for_ever
    ),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open."""
    bug = BUGS[name]
    with mock.patch.object(bug.owner, bug.name, bug.broken):
        yield


def is_found(name: str, seed: int) -> bool:
    """Whether a schedule finds a bug; a crash counts as well."""
    with planted(name):
        try:
            return bool(verdict(seed))
        except Exception:  # noqa: BLE001 - whatever it breaks
            return True


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    names = [name for name in BUGS if sys.argv[1:2] in ([], [""], [name])]
    for each_name in names:
        most = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
        print(next((seed for seed in range(most) if is_found(each_name, seed)), None), each_name, flush=True)
