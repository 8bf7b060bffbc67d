"""Bugs derived from docs/promises.md alone: each of them would break one promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from intervalq import rules
from intervalq._shard.conversation import Conversation
from intervalq._shard.grants import GrantRange
from intervalq._shard.store_time import StoreTime
from intervalq._spec import configure
from intervalq._timing.estimates import StoreClock
from intervalq.rules import Advance, Answer, Configure, Finish, HighWaterMark, State, Units
from planted.planting import bug, instead

_ADVANCE: Final = rules._advance
_BOUNDED: Final = StoreTime.bounded
_CONFIGURE: Final = configure.configured
_FINISH: Final = rules._finish
_GIVE_BACK: Final = rules._give_back
_HEAL: Final = rules._heal
_INIT: Final = Conversation.__init__
_LEARN: Final = StoreClock.learn
_RECHECK: Final = rules._recheck
_SETTLE: Final = rules.settle
_TAKE: Final = rules._take

# --- spacing ------------------------------------------------------------------------------------------


@bug("error-halved", "stalls", 3)
def _() -> Iterator[None]:
    """A shard believes that its estimate of the store's clock is twice as good as it is."""

    def learn(self: StoreClock, sent: int, received: int, now: int) -> None:
        quarter = (received - sent) // 4
        _LEARN(self, sent + quarter, received - quarter, now)

    yield from instead(StoreClock, "learn", learn)


@bug("drift-ignored", "drift", 5)
def _() -> Iterator[None]:
    """A shard believes that its estimate of the store's clock stays as good for ever."""
    low_high = property(lambda self: (self._low, self._high))
    with (
        mock.patch.object(StoreClock, "_widened", lambda self, _: low_high.__get__(self)),
        mock.patch.object(StoreClock, "surely", lambda self, reading: reading - self._low),
    ):
        yield from instead(StoreClock, "perhaps", lambda self, reading: reading - self._high)


@bug("perhaps-late", "stalls", 8)
def _() -> Iterator[None]:
    """A job begins unless it is certainly late, instead of only if it is certainly not late."""

    def bounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        if granted.readings != self.clock.answers and state is not None:
            _BOUNDED(self, granted, state, at).before += self.clock.error(at)
        return granted

    yield from instead(StoreTime, "bounded", bounded)


@bug("moved-too-far", "late", 0)
def _() -> Iterator[None]:
    """Slots that a late start moves may end up one interval beyond the end of the last of them."""

    def closes(self: GrantRange) -> int:
        return (self.last + self.step if self.moves else self.instant) + self.before

    yield from instead(GrantRange, "closes", property(closes))


@bug("cost-takes-one", "calm", 15)
def _() -> Iterator[None]:
    """The slot after a job that costs several slots comes one interval after the first of these."""

    def take(
        state: State, command: Advance, costs: tuple[int, ...], units: tuple[Units, ...], answer: Answer
    ) -> tuple[State, Answer]:
        state, answer = _TAKE(state, command, costs, units, answer)
        if answer.count:
            more = sum(costs[: answer.count]) - answer.count
            state = replace(state, due=state.due - more * state.settings.interval)
        return state, answer

    yield from instead(rules, "_take", take)


@bug("granted-given-back", "interrupted", 62)
def _() -> Iterator[None]:
    """A slot that was granted, and is asked about again too late, is given to others."""

    def advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
        earliest = state.clock(answer.now) - state.tolerance - state.credit
        if command.generation == state.generation:
            over = tuple(slot for slot in command.slots if slot.due < earliest)
            state = _GIVE_BACK(state, over)
        return _ADVANCE(state, command, answer)

    yield from instead(rules, "_advance", advance)


@bug("healed-without-slot", "failover", 134)
def _() -> Iterator[None]:
    """A record that lost tickets continues from the right ticket, but from the slot of an earlier one."""

    def heal(state: State, mark: HighWaterMark | None) -> tuple[State, bool]:
        return _HEAL(state, None if mark is None else mark._replace(due=state.due))

    yield from instead(rules, "_heal", heal)


@bug("old-burst", "changed", 2)
def _() -> Iterator[None]:
    """When the burst changes, slots that were already handed out, or are in the past, are not moved."""

    def changed(state: State, command: Configure) -> State:
        after = _CONFIGURE(state, command)
        return replace(after, revoked_through=state.revoked_through, due=state.due)

    yield from instead(configure, "configured", changed)


# --- holds --------------------------------------------------------------------------------------------


@bug("hold-ends-when-seen", "calm", 0)
def _() -> Iterator[None]:
    """A pause ends when somebody next asks about the queue, instead of at its end."""

    def settle(state: State, now: int) -> State:
        after = _SETTLE(state, now)
        if state.held_since is not None and after.held_since is None and now >= state.last_now:
            after = replace(after, held_total=state.held_total + now - state.held_since)
        return after

    yield from instead(rules, "settle", settle)


@bug("slots-stay-in-a-hold", "calm", 3)
def _() -> Iterator[None]:
    """Slots don't move while the queue is paused, so all that came due meanwhile are used when it resumes."""

    def recheck(state: State, now: int) -> State:
        return replace(_RECHECK(state, now), held_total=state.held_total)

    yield from instead(rules, "_recheck", recheck)


# --- the limit of running jobs ------------------------------------------------------------------------


@bug("one-more-running", "long", 0)
def _() -> Iterator[None]:
    """One job more than `max_running` may run."""
    yield from instead(
        State, "full", property(lambda self: 0 < self.settings.max_running < len(self.running))
    )


@bug("leases-not-renewed", "long", 0)
def _() -> Iterator[None]:
    """A job that runs for longer than its first lease no longer counts."""

    def finish(state: State, command: Finish, now: int) -> State:
        return _FINISH(state, replace(command, running=()), now)

    yield from instead(rules, "_finish", finish)


@bug("leases-for-ever", "long", 8)
def _() -> Iterator[None]:
    """The jobs of a dead process count as running for ever."""

    def settle(state: State, now: int) -> State:
        return replace(_SETTLE(state, now), running=state.running)

    yield from instead(rules, "settle", settle)


@bug("leases-not-moved", "long", 8)
def _() -> Iterator[None]:
    """When the store's clock is set back, leases still end at the same reading of the clock as before."""

    def settle(state: State, now: int) -> State:
        after = _SETTLE(state, now)
        kept = {ticket: until for ticket, until in state.running.items() if until > now}
        return replace(after, running=kept) if now < state.last_now else after

    yield from instead(rules, "settle", settle)


@bug("finish-of-another-record", "anew", 58)
def _() -> Iterator[None]:
    """The end of a job frees the lease of the same ticket number in a record that was created anew."""

    def finish(state: State, command: Finish, now: int) -> State:
        return _FINISH(state, replace(command, generation=state.generation), now)

    yield from instead(rules, "_finish", finish)


# --- progress and fairness ----------------------------------------------------------------------------


@bug("lookahead-ignored", "calm", 48)
def _() -> Iterator[None]:
    """A process takes tickets for all of its jobs, so that other processes have to wait for them."""

    def init(self: Conversation, **more: Any) -> None:
        _INIT(self, **{**more, "lookahead": None})

    yield from instead(Conversation, "__init__", init)
