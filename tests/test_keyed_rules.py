"""Laws of keys under one rate, for every sequence of commands: what must never happen on either level."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq import keyed, rules
from intervalq._spec.windows import of_each
from intervalq.keyed import Common, KeyedAnswer, Place, apply_keyed
from intervalq.rules import Advance, Command, Drop, Limit, Slot, State
from intervalq.testing.keyed import KeyedSource, taken


class Start(NamedTuple):
    """A grant: a job of a key may begin at `at`, or up to the tolerance later."""

    key: str
    ticket: tuple[str, int]
    at: int
    length: int
    step: int
    units: tuple[int, ...]
    """What it takes of each of the common limits."""
    place: tuple[int, int]
    """Its common slot, and the lag of the common record at the grant."""
    own_units: tuple[int, ...]
    """What it takes of each limit of the key."""
    own_slot: tuple[int, int]
    """Its slot, and the lag of the key's record at the grant."""
    latest: int


def grants(command: Advance, made: KeyedAnswer) -> list[Slot]:
    listed = [slot for slot in command.slots if slot.ticket in made.answer.granted]
    return [*listed, *taken(command, made)[: made.answer.begun]]


class Observer:
    """Judges the granted times, without knowing how the rules compute them."""

    def __init__(self, own_pace: bool) -> None:
        self.starts: list[Start] = []
        self.own_pace = own_pace

    def see(self, key: str, command: Command, known: Common, answer: KeyedAnswer) -> None:
        state, common, got = answer.answer.state, answer.common, answer.answer
        if isinstance(command, Drop) or known.release:  # its starts are over, or won't be used
            self.starts = [start for start in self.starts if start.key not in {key, f"{key}, given back"}]
        if not isinstance(command, Advance) or got.refused or state is None or common is None:
            return
        self._settle(key, known, command if command.generation == state.generation else Advance())
        back = {(command.generation, slot.ticket) for slot in command.release}
        self.starts = [
            start._replace(key=f"{key}, given back") if start.key == key and start.ticket in back else start
            for start in self.starts
        ]  # it won't be used, and only its common slot is lost
        assert state.tolerance <= max(1, common.tolerance)
        places = dict(answer.places)
        limits, own = common.settings.limits, state.settings.limits
        granted = grants(command, answer)
        assert {slot.ticket for slot in granted} <= {*places}, "granted without a common slot"
        made = [
            Start(
                key,
                (state.generation, slot.ticket),
                slot.due + state.held_total,
                slot.cost,
                state.settings.interval,
                tuple(of_each(limits, slot.cost, slot.units[len(own) :])),
                (places[slot.ticket].due, common.lag),
                tuple(of_each(own, slot.cost, slot.units)),
                (slot.due, state.lag),
                slot.due + state.held_total + state.tolerance,
            )
            for slot in granted
        ]
        again = {
            new.ticket for new in made
        }  # those granted before are granted anew, and moved with the others
        self.starts = [start for start in self.starts if start.key != key or start.ticket not in again]
        assert not made or common.held_since is None, "granted while the common queue is held"
        for new in made:
            self._common(
                new, common.settings.interval, first_at_once=got.at_once and new is made[0], now=got.now
            )
            if self.own_pace:
                self._own(new, first_at_once=got.at_once and new is made[0], now=got.now)
            self.starts.append(new)
        if made:
            since = min(made[0].at, got.now) if got.at_once else made[0].at
            self._limits(limits, since, self.starts)
            mine = [start for start in self.starts if start.key == key]  # the key has back what it gave back
            self._limits(own, since, [start._replace(units=start.own_units) for start in mine])
        self.starts = self.starts[-200:]

    def _settle(self, key: str, known: Common, command: Advance) -> None:
        """What was settled counts as if it had been known."""
        own = {(each.due, each.lag): each.more for each in command.settled}
        self.starts = [
            start._replace(own_units=tuple(map(sum, zip(start.own_units, more, strict=False))))
            if start.key == key and (more := own.get(start.own_slot))
            else start
            for start in self.starts
        ]
        real = {(each.due, each.lag): each.more for each in known.settled}
        self.starts = [
            start._replace(units=tuple(map(sum, zip(start.units, more, strict=False))))
            if (more := real.get(start.place))
            else start
            for start in self.starts
        ]

    def _limits(self, limits: tuple[Limit, ...], since: int, starts: list[Start]) -> None:
        """No window that ends with a start has more than its limit allows, however late others begin."""
        for place, limit in enumerate(limits):
            for last in starts:
                if last.at < since or not last.units[place]:
                    continue
                begins = last.at - limit.window
                if limit.edge is not None:
                    begins = last.at - (last.at - limit.edge) % limit.window - 1
                counted = sum(
                    min(limit.most, start.units[place])
                    for start in starts
                    if start.at <= last.at
                    and start.latest > begins
                    and (limit.edge is None or start.at > begins)
                )
                assert counted <= limit.most, f"{counted} of {limit} until {last}"

    def _common(self, new: Start, interval: int, *, first_at_once: bool, now: int) -> None:
        for old in self.starts:
            one, other = sorted((old, new), key=lambda start: start.at)
            assert other.at >= one.at + one.length * interval, f"the common pace: {old}, {new}"
            if first_at_once and one is old:
                assert now >= old.at + old.length * interval, f"at once, too soon after {old}: {new} at {now}"

    def _own(self, new: Start, *, first_at_once: bool, now: int) -> None:
        for old in self.starts:
            if old.key == new.key and old.ticket != new.ticket:
                one, other = sorted((old, new), key=lambda start: start.at)
                assert other.at >= one.at + one.length * new.step, f"the key's pace: {old}, {new}"
                if first_at_once and one is old:
                    assert now >= old.at + old.length * new.step, f"at once, too soon after {old}: {new}"


class World:
    """The records of some keys, and the common one."""

    def __init__(self) -> None:
        self.common: State | None = None
        self.states: dict[str, State | None] = {}

    def do(self, key: str, command: Command, known: Common, now: int) -> KeyedAnswer:
        state, self.common, answer = apply_keyed(self.states.get(key), self.common, command, known, now)
        self.states[key] = state
        return answer


def judge(seed: int, steps: int = 120) -> None:
    """The shards of all keys may send anything, and it may arrive in any order."""
    source, world = KeyedSource(seed, steps_back=False, overruns=False), World()
    observer = Observer(source.own_pace)
    for _ in range(steps):
        key, command, known, now = source.next()
        if known is None:
            if isinstance(command, rules.Configure | Drop | Advance):
                continue  # these change the settings that the observer judges by
            world.common, _ = rules.apply(world.common, command, now)
            continue
        if isinstance(command, rules.Configure):
            continue
        answer = world.do(key, command, known, now)
        observer.see(key, command, known, answer)
        source.learn(key, command, answer)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_starts_are_spaced_on_both_levels(seed: int) -> None:
    judge(seed)


def _no_set_back(state: State, length: int, slots: object = ()) -> State:
    del length, slots
    return state


def _all_granted(
    common: State, asking: Advance, known: Common, wanted: tuple[tuple[Slot, ...], int], now: int
) -> tuple[State, keyed._Got]:
    common, got = _PLACES(common, asking, known, wanted, now)
    return common, got._replace(granted=len(wanted[0]))


_PLACES, _TOLERANCE = keyed._places, keyed._tolerance

BUGS: dict[str, tuple[str, object]] = {
    "a key does not wait for its common slot": ("set_back", _no_set_back),
    "a turn has slots that don't follow each other": ("_directly_follows", lambda *_: True),
    "slots are granted that the common queue has not granted": ("_places", _all_granted),
    "a key may begin later than its common slot allows": (
        "_tolerance",
        lambda common, pace: 10 * _TOLERANCE(common, pace),
    ),
    "any place will do for a slot": (
        "_known_places",
        lambda common, known, run: (
            tuple([place.slot for place in known.places])[: len(run)]
            if known.generation == common.generation
            else ()
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = BUGS[bug]
    monkeypatch.setattr(keyed, name, broken)

    def many() -> None:
        for seed in range(300):
            judge(seed)

    with pytest.raises(AssertionError):
        many()


def test_a_place_of_a_dropped_record_of_the_key_is_not_granted_again() -> None:
    """The new record has tickets with the same numbers."""
    pace = rules.Settings(10_000)
    known = Common(record="api", settings=pace, own_pace=False, nonce="c")
    state, common, _ = apply_keyed(None, None, Advance(settings=pace, nonce="b"), known, 1_000_000)
    common, granted = rules.apply(common, Advance(generation="c", take=3, reach=100_000), 1_000_000)
    place = granted.taken[-1]
    assert common is not None
    assert common.current == place.ticket
    told = replace(known, generation="c", places=(Place(1, place),))
    command = Advance(settings=pace, generation="shared:a", take=1, reach=1_000)
    _, _, made = apply_keyed(state, common, command, told, 1_000_100)
    assert made.places == (Place(1, Slot(place.ticket + 1, place.due + 10_000)),)
