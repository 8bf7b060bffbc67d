"""Planted bugs of keys under one rate and of their limits, each with the judge and the seed that find it.

`python tests/keyed_bugs.py [NAME] [SEEDS]` searches for the first such seed again, among this many.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from unittest import mock

from intervalq import keyed
from intervalq._keys import each, limits, store
from intervalq._keys.places import Places
from intervalq._keys.store import KeyStore
from intervalq._keys.view import CommonView
from intervalq._queue import options
from intervalq._spec import windows
from intervalq._spec.keys import fixed
from intervalq.keyed import Common
from intervalq.rules import FOREVER, Advance, Command, Limit, Settings, Settled, Slot, State, Usage
from intervalq.testing.virtual import Stuck
from keyed_schedules import verdict
from keyed_window_oracle import Records, run
from simulation.messages import result_of
from window_oracle import SECOND

_ASKING: Final = keyed._asking
_FIXED_CELL: Final = windows.fixed_cell
_GIVE_BACK: Final = windows.give_back
_KNOWN: Final = KeyStore._known
_MOVED: Final = keyed._moved
_OF_KEY: Final = limits.of_key
_PACE_OF: Final = each.pace_of
_PACED: Final = keyed._paced
_PLACES: Final = keyed._places
_REFUNDS: Final = Places.refunds
_SETTLE: Final = fixed.settle
_SET_BACK: Final = windows.set_back
_TOLERANCE: Final = keyed._tolerance
_WAITING: Final = keyed._waiting
_WINDOWS_OF: Final = windows.windows_of


def exceeded(seed: int) -> list[str]:
    """The limits that one run of the oracle exceeded."""
    return run(seed).over()


def lapsed(seed: int) -> list[str]:
    """What the common limit doesn't count of a key's jobs, which begin before and after its record lapsed.

    The tickets of the new record have the same numbers.
    """
    records, took = Records(), (100 + seed,)
    limits = (Limit(10 * took[0], 3_600 * SECOND, "tokens"),)
    keys = KeyStore(
        records, "q", Settings(1_000, limits=limits), own_pace=False, weight=1, view=CommonView(),
        on_mismatch="adopt",
    )  # fmt: skip
    settings, generation = Settings(1_000, ephemeral=True, limits=limits), None
    for nonce in ("old", "new"):
        slots: list[Slot] = []
        for take in (4, 0, 0, 0, 0, 0):
            command = Advance(
                settings=settings, generation=generation, nonce=nonce, slots=tuple(slots[:1]), take=take,
                units=(took,) * take,
            )  # fmt: skip
            answer = result_of(keys.apply("q:a", command, None))
            assert answer.state is not None
            generation = answer.state.generation
            slots += [slot._replace(units=took) for slot in answer.taken]
            slots = slots[answer.begun + len(answer.granted) :]
            records.now += 1_000
        assert (generation, slots) == (f"shared:{nonce}", [])
        records.now += 600 * SECOND
    common = records.states["q"]
    assert common is not None
    ((used, ahead),) = common.usage
    counted = sum(units for _, units, *_ in (*used, *ahead))
    return [] if counted == 8 * took[0] else [f"{counted} units count of eight jobs of {took[0]}"]


class Bug(NamedTuple):
    """A planted bug."""

    promise: str
    """What docs/promises.md or docs/pacing.md says, which it breaks."""
    seed: int
    """The first seed at which its judge finds it."""
    owner: object
    name: str
    broken: Callable[..., Any]
    judge: Callable[[int], list[str]] = verdict
    """Returns the broken promises of the schedule with a seed."""


def _stays(state: State, length: int, slots: object = ()) -> State:
    del length, slots
    return state


def _far(common: State, command: Advance, known: Common, reach: int) -> Advance:
    del reach
    return _ASKING(common, command, known, FOREVER)


def _of_all(state: State | None, command: Any, pace: Settings, known: Common, tolerance: int) -> Any:
    state, command = _PACED(state, command, pace, known, tolerance)
    if state is not None:
        state = replace(state, settings=replace(state.settings, interval=pace.interval))
    if command.settings is not None:
        command = replace(command, settings=replace(command.settings, interval=pace.interval))
    return state, command


def _as_if_granted(
    common: State, asking: Advance, known: Common, wanted: tuple[tuple[Slot, ...], int], now: int
) -> Any:
    common, got = _PLACES(common, asking, known, wanted, now)
    return common, got._replace(granted=len(wanted[0]))


def _light(self: KeyStore, command: Any) -> Common:
    return replace(_KNOWN(self, command), weight=1)


def _for_ever(common: Settings, interval: int, own: tuple[Limit, ...]) -> Settings:
    return replace(_PACE_OF(common, interval, own), ephemeral=False)


def _goes_on(state: State, common: State, command: Advance, known: Common, now: int) -> int:
    return _MOVED(state, common, replace(command, take=0), known, now)


def _own_slot(self: KeyStore, state: State, until: int) -> int:
    del self, until
    return state.due


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


_LIMIT: Final = "no window has more than its limit"

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
    "slots of a key move past the places that other processes have for them": Bug(
        "keys take turns at what is left", 777_162, keyed, "_is_next", lambda *_: True,
        partial(verdict, limited=True),
    ),
    "a quote of a key ignores the other keys": Bug(
        "the seconds until a job would begin if it were added now", 0, KeyStore, "free", _own_slot
    ),
    "a quote of a key counts a pause of all keys for its own pace, too": Bug(
        "the seconds until a job would begin if it were added now", 5, KeyStore, "for_forecasts",
        lambda self, state, until: state,
    ),
    "idle keys stay in the store": Bug(
        "a key that is idle leaves nothing behind", 0, options, "pace_of", _for_ever
    ),
    "a slot that is granted again no longer counts": Bug(
        _LIMIT, 14, windows, "set_back", _vanishing, exceeded
    ),
    "what is settled of a key's limits counts twice": Bug(
        _LIMIT, 118, fixed, "settle", _settled_twice, exceeded
    ),
    "it is settled in the cell behind": Bug(
        _LIMIT, 417, fixed, "fixed_cell", _settled_elsewhere, exceeded
    ),
    "it is settled in the order of the common limits": Bug(
        _LIMIT, 6, store, "of_key", _in_wrong_order, exceeded
    ),
    "units stay behind when the clock is set back": Bug(
        _LIMIT, 17, windows, "set_back", lambda state, *_: state, exceeded
    ),
    "granted slots stay behind when they come again": Bug(
        _LIMIT, 101, keyed, "_waiting",
        lambda state, length, again, current: _WAITING(state, length, (), 0), exceeded,
    ),
    "another common tolerance changes nothing": Bug(
        _LIMIT, 59, keyed, "_with_settings",
        lambda state, settings: replace(state, settings=settings), exceeded,
    ),
    "a slot that may still be granted late counts by the store's clock": Bug(
        _LIMIT, 361, windows, "windows_of", _by_the_stores_clock, exceeded
    ),
    "what nobody uses is refunded twice": Bug(
        _LIMIT, 57, Places, "refunds", _refunded_twice, exceeded
    ),
    "tickets have the places of those of a record that is gone": Bug(
        _LIMIT, 0, KeyStore, "_is_anew", lambda *_: False, lapsed
    ),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open."""
    bug = BUGS[name]
    with mock.patch.object(bug.owner, bug.name, bug.broken):
        yield


def is_found(name: str, seed: int) -> bool:
    """Whether its judge finds a bug at a seed.

    A failed assertion counts, and so does a schedule that never ends. Any other error shows that the bug
    can't be planted any more.
    """
    with planted(name):
        try:
            return bool(BUGS[name].judge(seed))
        except (AssertionError, Stuck):
            return True


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    names = [name for name in BUGS if sys.argv[1:2] in ([], [""], [name])]
    for each_name in names:
        count = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
        print(next((seed for seed in range(count) if is_found(each_name, seed)), None), each_name, flush=True)
