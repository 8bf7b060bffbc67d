"""The laws of the pacing, for every sequence of commands."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    State,
)
from intervalq.testing import CommandSource


class Observer:
    """Judges sequences by what must never happen, without knowing how the rules prevent it."""

    def __init__(self) -> None:
        self.generation: str | None = None
        self.issued: dict[
            int, tuple[int, int]
        ] = {}  # ticket -> its slot, and the interval it was issued with
        self.used: dict[int, int] = {}  # ticket -> its slot: granted, and not given back since
        self.missed: set[int] = set()  # a shard that was told so asks for a new ticket, not for this one
        self.clock: int | None = None

    def see(
        self, before: State | None, command: Command, now: int, after: State | None, answer: Answer
    ) -> None:
        if after is None:
            self.__init__()  # type: ignore[misc] # a dropped queue begins again
            return
        is_kept = after is not before
        if before is not None and rules.lapses(rules.settle(before, now)) <= now:
            before = None  # a request that is delivered twice may give the next record the same generation
        if before is None or after.generation != self.generation:
            self.__init__()  # type: ignore[misc]
            self.generation = after.generation
        if is_kept:  # if no record is kept, its reading of the clock isn't either
            self._clock_goes_on(after, answer.now)
        if before is not None and before.generation == after.generation:
            for counter in ("ticket", "current", "revoked_through"):
                assert getattr(after, counter) >= getattr(before, counter), f"{counter} went back"
        if isinstance(command, Advance) and not answer.refused and answer.state is not None:
            self._advance(before, command, now, answer)
        self._spacing()

    def _clock_goes_on(self, state: State, now: int) -> None:
        clock = state.clock(max(now, state.last_now)) + state.late_total  # late grants set it back
        assert self.clock is None or clock >= self.clock, "the queue's clock went back"
        self.clock = clock

    def _advance(self, before: State | None, command: Advance, now: int, answer: Answer) -> None:
        state = answer.state
        assert state is not None
        known = command.generation == state.generation
        if known:
            for slot in command.release:
                self.used.pop(slot.ticket, None)
        settled = None if before is None else rules.settle(before, now)
        if settled is not None and settled.generation == state.generation and settled.held_since is not None:
            full = settled.held_until <= now and known
            allowed = settled.running if full else {}  # as far as the store knows, they are running
            assert set(answer.granted) <= set(allowed), "granted while held"
            assert not answer.begun, "granted while held"
        assert set(answer.granted).isdisjoint(answer.missed)
        assert known or not answer.granted, "a ticket of a lost record was granted"
        began = settled is None or settled.held_since is None
        clock = now - state.held_total if began else state.clock(now)  # before a hold that this step began
        for slot in command.slots:
            if slot.ticket in answer.granted:
                by = (
                    state if settled is None else settled
                )  # an automatic interval gets shorter after the grants
                assert clock <= slot.due + by.tolerance + by.credit, "granted too late"
                if slot.ticket not in self.missed:
                    due = slot.due
                    if slot.ticket == state.current:  # it may have come sooner: the record says where it is
                        due = min(due, state.current_due - (slot.cost - 1) * state.settings.interval)
                    self.used[slot.ticket] = due
        self.missed.update(answer.missed)
        for number, slot in enumerate(answer.taken):
            assert slot.ticket not in self.issued, "a ticket was issued twice"
            assert slot.due + state.tolerance + state.credit >= clock + command.notice, "no notice"
            self.issued[slot.ticket] = (slot.due, state.settings.interval)
            if number < answer.begun:
                self.used[slot.ticket] = slot.due
        assert answer.count <= command.take + max(1, len(answer.missed))

    def _spacing(self) -> None:
        tickets = sorted(self.used)
        for earlier, later in pairwise(tickets):
            interval = self.issued[later][1] if later in self.issued else 0
            gap = self.used[later] - self.used[earlier]
            assert gap >= interval, f"tickets {earlier} and {later} were granted {gap} apart, not {interval}"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_sequence_of_commands_keeps_the_laws(seed: int) -> None:
    """Spacing, counters, holds, clocks that step back, lost answers and lost records are checked together."""
    source, observer = CommandSource(seed), Observer()
    state: State | None = None
    for _ in range(80):
        command, now = source.next(state)
        before = state
        state, answer = rules.apply(state, command, now)
        observer.see(before, command, now, state, answer)
        source.learn(answer)
        if state is not None:
            assert State.from_dict(state.to_dict()) == state
            assert state.current <= state.ticket
            stops = state.held_until > state.last_now or state.full
            assert (state.held_since is None) == (not stops)
            if rules.lapses(state) < FOREVER:
                gone = state.clock(rules.lapses(state))
                assert gone > state.due + state.credit + state.settings.interval, "forgotten while it matters"
