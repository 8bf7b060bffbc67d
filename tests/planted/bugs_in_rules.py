"""Bugs planted in the rules, and so in what the store does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from intervalq import rules
from intervalq._shard.answers import Answers
from intervalq._shard.conversation import Conversation
from intervalq._shard.grants import GrantRange
from intervalq._spec import configure
from intervalq._timing.clock import CLOCK
from intervalq.rules import FOREVER, Advance, Answer, Command, Configure, HighWaterMark, Slot, State, Units
from planted.planting import bug, instead

_APPLY: Final = rules.apply
_ADVANCE: Final = rules._advance
_SETTLE: Final = rules.settle
_USE: Final = rules._use
_CONFIGURE: Final = configure.configured
_ASK: Final = Conversation._ask
_RANGE: Final = Answers._range
_TAKE: Final = rules._take
_USABLE: Final = rules._usable
_HEAL: Final = rules._heal
_SET_BACK_FOR: Final = rules._set_back_for


@bug("no-notice", "interrupted", 27)
def _() -> Iterator[None]:
    """New slots come before the answer that reports them can arrive."""

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


@bug("clock-runs-on", "calm", 47)
def _() -> Iterator[None]:
    """A hold doesn't stop the queue's clock."""

    def settle(state: State, now: int) -> State:
        after = _SETTLE(state, now)
        return replace(after, held_since=now) if after.held_since is not None else after

    yield from instead(rules, "settle", settle)


@bug("hold-ignored", "calm", 4)
def _() -> Iterator[None]:
    """A held queue goes on granting slots."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        since = state.held_since
        state, answer = _ADVANCE(replace(state, held_since=None), command, answer)
        return replace(state, held_since=since), answer

    yield from instead(rules, "_advance", advance)


@bug("heal-goes-back", "failover", 0)
def _() -> Iterator[None]:
    """A record takes over what a shard knows, even if that is less than the record has."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        if command.high_water_mark is not None and command.generation == state.generation:
            state = replace(state, ticket=command.high_water_mark.ticket, due=command.high_water_mark.due)
        return _ADVANCE(state, command, answer)

    yield from instead(rules, "_advance", advance)


@bug("not-healed", "failover", 15)
def _() -> Iterator[None]:
    """A record that lost writes issues the same tickets again, whatever its shards know."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        return _ADVANCE(state, replace(command, high_water_mark=None), answer)

    yield from instead(rules, "_advance", advance)


@bug("step-not-absorbed", "clock", 2)
def _() -> Iterator[None]:
    """When the store's clock is set back, the queue's clock goes back as well."""

    def settle(state: State, now: int) -> State:
        return _SETTLE(replace(state, last_now=min(state.last_now, now)), now)

    yield from instead(rules, "settle", settle)


@bug("missed-granted", "stalls", 0)
def _() -> Iterator[None]:
    """A slot that is asked about too late is granted, and used at once, whoever has the next slot."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        clock = state.clock(answer.now)
        slots = tuple(Slot(slot.ticket, max(slot.due, clock)) for slot in command.slots)
        return _ADVANCE(state, replace(command, slots=slots), answer)

    def range_(self: Answers, first: Slot, state: State, **more: Any) -> GrantRange:
        made = _RANGE(self, first, state, **more)
        made.last += max(0, self._time.clock.latest(CLOCK.get().now()) - made.instant)
        return made

    with mock.patch.object(Answers, "_range", range_):
        yield from instead(rules, "_advance", advance)


@bug("gap-ignored", "stalls", 2)
def _() -> Iterator[None]:
    """A slot is granted late although another shard has a later one."""
    yield from instead(rules, "_are_last", lambda _, slots: bool(slots))


@bug("late-for-nothing", "calm", 22)
def _() -> Iterator[None]:
    """A slot is granted late, and the queue's clock is not set back for it."""

    def use(state: State, command: Advance, now: int, *, known: bool) -> tuple[State, Any]:
        after, grants = _USE(state, command, now, known=known)
        if grants.at_once:
            after = replace(after, held_total=state.held_total)
        return after, grants

    yield from instead(rules, "_use", use)


@bug("set-back-short", "slow", 40)
def _() -> Iterator[None]:
    """A late grant leaves no time for its answer to arrive."""

    def set_back_for(state: State, slots: Sequence[Slot], notice: int, now: int) -> State:
        del notice
        return _SET_BACK_FOR(state, slots, 0, now)

    yield from instead(rules, "_set_back_for", set_back_for)


@bug("late-before-it-came", "taken", 13)
def _() -> Iterator[None]:
    """A slot that has not come yet is granted late, because it will soon be over."""

    def are_late(state: State, command: Advance, slots: tuple[Slot, ...], now: int) -> bool:
        if command.until is None or not rules._are_last(state, slots):
            return False
        return now - state.held_total + command.notice > slots[0].due + state.tolerance + state.credit

    yield from instead(rules, "_are_late", are_late)


@bug("late-in-a-pause", "late", 139)
def _() -> Iterator[None]:
    """With `max_running`, a granted slot is granted again, late, even while the queue is paused."""

    def usable(state: State, command: Advance, now: int, *, known: bool) -> tuple[tuple[Slot, ...], ...]:
        return _USABLE(replace(state, held_until=0), command, now, known=known)

    yield from instead(rules, "_usable", usable)


@bug("late-forgotten", "failover", 389)
def _() -> Iterator[None]:
    """A record that lost writes doesn't learn of the late grants among them."""

    def heal(state: State, mark: HighWaterMark | None) -> tuple[State, bool]:
        return _HEAL(state, None if mark is None else mark._replace(late_total=0))

    yield from instead(rules, "_heal", heal)


@bug("copy-granted-late", "interrupted", 19)
def _() -> Iterator[None]:
    """A delayed copy of a question is granted late as well."""

    def use(state: State, command: Advance, now: int, *, known: bool) -> tuple[State, Any]:
        mark = HighWaterMark(0, 0, state.late_total)
        until = None if command.until is None else FOREVER
        return _USE(state, replace(command, high_water_mark=mark, until=until), now, known=known)

    yield from instead(rules, "_use", use)


@bug("new-at-once", "stalls", 2)
def _() -> Iterator[None]:
    """A new slot may be used at once even if the slot before it is not over."""

    def take(
        state: State, command: Advance, costs: tuple[int, ...], units: tuple[Units, ...], answer: Answer
    ) -> tuple[State, Answer]:
        state, answer = _TAKE(state, command, costs, units, answer)
        return state, replace(answer, at_once=answer.at_once or answer.begun > 0)

    yield from instead(rules, "_take", take)


@bug("freed-not-dead", "calm", 75)
def _() -> Iterator[None]:
    """Slots that are given back become free even if later ones are already taken."""

    def give_back(state: State, slots: tuple[Slot, ...]) -> State:
        for slot in slots:
            state = replace(state, due=min(state.due, slot.due - state.settings.interval))
        return state

    yield from instead(rules, "_give_back", give_back)


@bug("revocation-ignored", "calm", 18)
def _() -> Iterator[None]:
    """Revoked tickets may still be used, beside those that replaced them."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        void = state.revoked_through
        state, answer = _ADVANCE(replace(state, revoked_through=0), command, answer)
        return replace(state, revoked_through=void), answer

    yield from instead(rules, "_advance", advance)


@bug("generation-ignored", "failover", 107)
def _() -> Iterator[None]:
    """Tickets of a lost record are valid for the record that replaced it."""

    def apply(state: State | None, command: Command, now: int) -> tuple[State | None, Answer]:
        if state is not None and command.generation is not None:
            command = replace(command, generation=state.generation)
        return _APPLY(state, command, now)

    yield from instead(rules, "apply", apply)


@bug("old-rate", "calm", 18)
def _() -> Iterator[None]:
    """When the interval grows, tickets that were already issued keep their slots."""

    def changed(state: State, command: Configure) -> State:
        return replace(_CONFIGURE(state, command), revoked_through=state.revoked_through, due=state.due)

    yield from instead(configure, "configured", changed)


@bug("dead-waited-for", "crashes", 0)
def _() -> Iterator[None]:
    """Tickets must be used one after the other, without a gap, so those of a dead process are waited for."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        turn = tuple(slot for slot in command.slots if slot.ticket <= state.current + 1)
        return _ADVANCE(state, replace(command, slots=turn), answer)

    async def ask(self: Conversation, question: Advance, speculative: int = 0) -> None:
        await _ASK(self, question, speculative)
        if not {*question.slots}.isdisjoint(self._grants.tickets):
            await self._clock.sleep_until(self._clock.now() + 500_000)

    with mock.patch.object(Conversation, "_ask", ask):
        yield from instead(rules, "_advance", advance)


@bug("end-of-row-forgotten", "reclaims", 17)
def _() -> Iterator[None]:
    """Of several slots that are granted at once, the last but one counts as the last that is used."""

    def take(
        state: State, command: Advance, costs: tuple[int, ...], units: tuple[Units, ...], answer: Answer
    ) -> tuple[State, Answer]:
        after, answer = _TAKE(state, command, costs, units, answer)
        if answer.begun > 1 and after.current_due > state.current_due:
            after = replace(after, current_due=after.current_due - after.settings.interval)
        return after, answer

    yield from instead(rules, "_take", take)
