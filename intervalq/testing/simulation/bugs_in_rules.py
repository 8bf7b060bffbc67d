"""Bugs planted in the rules: in what the store does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from unittest import mock

from intervalq import rules
from intervalq._shard.connection import Link
from intervalq._shard.grants import Run
from intervalq.rules import Advance, Answer, Command, Configure, Settings, Slot, State
from intervalq.testing.simulation.planting import bug, instead

_APPLY: Final = rules.apply
_ADVANCE: Final = rules._advance  # noqa: SLF001
_SETTLE: Final = rules.settle
_FRESH: Final = rules._fresh  # noqa: SLF001
_CONFIGURE: Final = rules._configure  # noqa: SLF001
_RUN: Final = Link.run


@bug("no-notice", "calm", 5)
def _() -> Iterator[None]:
    """New slots are nearer than the answer that tells of them."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        return _ADVANCE(state, replace(command, notice=-command.notice), answer)

    yield from instead(rules, "_advance", advance)


@bug("slots-crowd", "calm", 0)
def _() -> Iterator[None]:
    """An idle queue forgets when its last job began."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        if state.ticket == state.current:
            state = replace(state, due=state.due - state.settings.interval)
        return _ADVANCE(state, command, answer)

    yield from instead(rules, "_advance", advance)


@bug("clock-runs-on", "calm", 22)
def _() -> Iterator[None]:
    """A hold doesn't stop the queue's clock."""

    def settle(state: State, now: int) -> State:
        after = _SETTLE(state, now)
        return replace(after, held_since=now) if after.held_since is not None else after

    yield from instead(rules, "settle", settle)


@bug("hold-ignored", "calm", 4)
def _() -> Iterator[None]:
    """A held queue goes on telling slots to go."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        since = state.held_since
        state, answer = _ADVANCE(replace(state, held_since=None), command, answer)
        return replace(state, held_since=since), answer

    yield from instead(rules, "_advance", advance)


@bug("heal-goes-back", "failover", 0)
def _() -> Iterator[None]:
    """A record is healed to what a shard knows, also when that is less."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        if command.mark is not None and command.generation == state.generation:
            state = replace(state, ticket=command.mark.ticket, due=command.mark.due)
        return _ADVANCE(state, command, answer)

    yield from instead(rules, "_advance", advance)


@bug("not-healed", "failover", 56)
def _() -> Iterator[None]:
    """A record that lost writes issues the same tickets again, whatever its shards know."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        return _ADVANCE(state, replace(command, mark=None), answer)

    yield from instead(rules, "_advance", advance)


@bug("step-not-absorbed", "clock", 2)
def _() -> Iterator[None]:
    """When the store's clock is set back, the queue's clock goes back as well."""

    def settle(state: State, now: int) -> State:
        return _SETTLE(replace(state, seen=min(state.seen, now)), now)

    yield from instead(rules, "settle", settle)


@bug("missed-granted", "stalls", 2)
def _() -> Iterator[None]:
    """A slot that is asked about too late is told to go, and its job begins at once."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        clock = state.clock(answer.now)
        slots = tuple(Slot(slot.ticket, max(slot.due, clock)) for slot in command.slots)
        return _ADVANCE(state, replace(command, slots=slots), answer)

    def run(self: Link, first: Slot, count: int = 0, *, likely: bool = False) -> Run:
        made = _RUN(self, first, count, likely=likely)
        made.last += max(0, self.store_clock.latest(self.clock.now()) - made.instant)
        return made

    with mock.patch.object(Link, "run", run):
        yield from instead(rules, "_advance", advance)


@bug("freed-not-dead", "calm", 7)
def _() -> Iterator[None]:
    """Slots that are given back are free, also where later ones are taken already."""

    def give_back(state: State, slots: tuple[Slot, ...]) -> State:
        for slot in slots:
            state = replace(state, due=min(state.due, slot.due - state.settings.interval))
        return state

    yield from instead(rules, "_give_back", give_back)


@bug("void-ignored", "calm", 1)
def _() -> Iterator[None]:
    """Tickets that were voided may still be used, beside those that took their place."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        void = state.void
        state, answer = _ADVANCE(replace(state, void=0), command, answer)
        return replace(state, void=void), answer

    yield from instead(rules, "_advance", advance)


@bug("generation-ignored", "failover", 211)
def _() -> Iterator[None]:
    """Tickets of a record that is gone are good for the one made anew."""

    def apply(state: State | None, command: Command, now: int) -> tuple[State | None, Answer]:
        if state is not None and command.generation is not None:
            command = replace(command, generation=state.generation)
        return _APPLY(state, command, now)

    yield from instead(rules, "apply", apply)


@bug("no-quiet-interval", "failover", 19)
def _() -> Iterator[None]:
    """A record that is made anew doesn't wait for what may have begun a moment ago."""

    def fresh(command: Command, settings: Settings, now: int) -> State:
        return _FRESH(replace(command, generation=None), settings, now)

    yield from instead(rules, "_fresh", fresh)


@bug("old-rate", "calm", 18)
def _() -> Iterator[None]:
    """When the interval grows, the tickets that are out keep their slots."""

    def configure(state: State, command: Configure) -> State:
        return replace(_CONFIGURE(state, command), void=state.void, due=state.due)

    yield from instead(rules, "_configure", configure)


@bug("dead-waited-for", "crashes", 0)
def _() -> Iterator[None]:
    """Tickets must be used one after the other, without a gap: those of a dead process are waited for."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        turn = tuple(slot for slot in command.slots if slot.ticket <= state.current + 1)
        return _ADVANCE(state, replace(command, slots=turn), answer)

    yield from instead(rules, "_advance", advance)
