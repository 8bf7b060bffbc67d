"""The record that the log of a queue on NATS leads to."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Configure,
    HighWaterMark,
    Hold,
    Reclaim,
    Settings,
    Slot,
    State,
)
from intervalq.testing.commands import CommandSource
from intervalq_stores.nats._queue.log import Gap, beginning, fold, increment, plain
from intervalq_stores.nats._queue.step import (
    BEGIN,
    ONE,
    Entry,
    Full,
    Plain,
    Position,
    entries,
    fingerprint,
    granting,
    others,
)
from stores.nats_steps import NOW, SECOND, TAKE, backlog


class Log:
    """A counter on a server, and the model: the rules, one command after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.value = 0

    def add(self, step: Plain | Full, number: int = 7, at: int = NOW) -> Entry:
        more = step.increment if isinstance(step, Plain) else fingerprint(number)
        self.value += more
        self.entries.append(Entry(len(self.entries) + 1, at, more, self.value, step))
        return self.entries[-1]


def started() -> Log:
    log = Log()
    log.add(Full(Advance(settings=Settings(SECOND), nonce="g", take=2), None, False))
    log.add(Plain(NOW, 3, 0, "g", ()))
    log.add(Plain(NOW, 1, 0, "g", (Slot(2, NOW),)))
    return log


def test_sums() -> None:
    log = started()
    value = log.value
    assert (others(value), granting(value), entries(value), value & ONE - 1) == (7, 2, 3, 4)
    log.add(Plain(None, 5, 0, "g", ()))
    assert (others(log.value), granting(log.value), entries(log.value), log.value & ONE - 1) == (7, 2, 4, 9)
    log.add(Full(Hold(), None, False), 2**48)
    assert (others(log.value), entries(log.value), log.value & ONE - 1) == (7 + 2**48, 5, 9)


def test_what_a_log_comes_to() -> None:
    log = started()
    position, answer = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(answer, Answer)
    assert position.state == answer.state
    assert position[1:] == (log.value, 3)
    assert (answer.granted, answer.first, answer.count) == ((2,), Slot(6, NOW + 5 * SECOND), 1)
    assert position.state is not None
    assert (position.state.ticket, position.state.current) == (6, 2)
    half, _ = fold(BEGIN, log.entries[:2], "nats://x")
    assert fold(half, log.entries[2:], "nats://x") == (position, answer), "from wherever it is read"


def test_missing_entries_are_seen() -> None:
    log = started()
    for missing in range(2):
        with pytest.raises(Gap):
            fold(BEGIN, log.entries[:missing] + log.entries[missing + 1 :], "nats://x")
    hold = log.add(Full(Hold(), None, False))
    with pytest.raises(Gap):
        fold(BEGIN, [*log.entries[:2], hold], "nats://x")
    first, _ = fold(BEGIN, log.entries[:1], "nats://x")
    other = Log()
    other.add(log.entries[0].step, 8)
    other.add(log.entries[1].step)
    with pytest.raises(Gap):
        fold(first, other.entries[1:], "nats://x")  # as many entries, but of another log
    with pytest.raises(Gap):
        beginning(log.entries[1:])
    assert beginning(log.entries) == log.entries


def test_a_reset_needs_nothing_from_before() -> None:
    log = started()
    reset = log.add(
        Full(Advance(settings=Settings(SECOND), nonce="h", generation="g", take=1), NOW + 5, True)
    )
    after = log.add(Plain(NOW + 5, 1, 0, "h", ()))
    for read in (log.entries, log.entries[2:], log.entries[3:]):
        position, answer = fold(BEGIN, beginning(read), "nats://x")
        assert position.state is not None
        assert position.state.generation == "h"
        assert isinstance(answer, Answer)
        assert answer.first == Slot(2, NOW + 5 + 2 * SECOND), "after one quiet interval"
    assert beginning(log.entries) == [reset, after]


def test_a_plain_increment_without_a_place_changes_nothing() -> None:
    log = Log()
    log.add(Plain(NOW, 2, 0, "g", ()))
    assert fold(BEGIN, log.entries, "nats://x") == (Position(None, log.value, 1), None)
    for stop in (Hold(length=SECOND), Configure(max_running=2)):
        log = started()
        log.add(Full(stop, None, False))
        before, _ = fold(BEGIN, log.entries, "nats://x")
        for _ in range(2):
            log.add(Plain(NOW + 2 * SECOND, 2, SECOND, "g", (Slot(3, NOW + SECOND),)))
        position, answer = fold(BEGIN, log.entries, "nats://x")
        assert position.state == before.state
        assert answer is None


def test_slots_that_can_not_be_used_are_left_alone() -> None:
    """Their tickets were revoked in transit, or are of another record, so their owner asks again, in full."""
    log = started()
    log.add(Full(Reclaim(), None, False))
    log.add(Plain(NOW, 1, 0, "g", (Slot(3, NOW + SECOND), Slot(9, NOW))))
    log.add(Plain(NOW, 2, 0, "other", (Slot(7, NOW + SECOND),)))
    position, answer = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(answer, Answer)
    assert (answer.granted, answer.missed, answer.count) == ((), (), 2)
    assert position.state is not None
    assert (position.state.ticket, position.state.current) == (9, 2)


def test_slots_that_are_too_far_ahead_by_then_are_left_alone() -> None:
    """The queue's clock was set back between the sender's last look and its entry."""
    state = replace(backlog(), ticket=5, current=2, current_due=NOW - SECOND, due=NOW + 4 * SECOND)
    step = plain(state, replace(TAKE, take=0, slots=(Slot(3, NOW + 5),), ahead=9), NOW, NOW)
    assert step is not None
    assert increment(state, step)[1].granted == (3,)
    for back, granted in ((4, (3,)), (5, ())):
        later = replace(state, held_total=back, late_total=back)
        assert increment(later, step)[1].granted == granted
    granted_before = replace(state, held_total=5, late_total=5, current=3)
    assert increment(granted_before, step)[1].granted == (3,)


def test_new_slots_are_granted_ahead_only_behind_tickets_that_the_sender_knows() -> None:
    state = replace(backlog(), due=NOW, ticket=5)
    take = replace(TAKE, take=2, reach=9 * SECOND, notice=SECOND, high_water_mark=HighWaterMark(5, NOW, 0))
    step = plain(state, take, NOW, NOW)
    assert step is not None
    assert increment(state, step)[1].begun == 2
    assert increment(state, step, taken=1)[1].begun == 0
    soon = replace(state, ticket=6, due=NOW - SECOND // 2)
    assert increment(soon, step)[1].begun == 1, "what is next is granted to whoever comes"


def test_what_can_not_be_done_is_void_for_all() -> None:
    log = started()
    log.add(Full(Configure(max_running=2), None, False))
    before, _ = fold(BEGIN, log.entries, "nats://x")
    log.add(Full(Advance(generation="g", slots=(Slot(3, NOW + SECOND),), lease=FOREVER), None, False))
    position, outcome = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(outcome, Exception)
    assert position.state == before.state
    ahead = HighWaterMark(9, NOW + 9 * SECOND, FOREVER + 1)
    for command, at in (
        (Advance(generation="g", high_water_mark=ahead), NOW - SECOND),
        (Advance(generation="g", error=1), FOREVER - 1),
    ):
        log = started()
        before, _ = fold(BEGIN, log.entries, "nats://x")
        log.add(Full(command, at, False))
        position, outcome = fold(BEGIN, log.entries, "nats://x")
        assert isinstance(outcome, Exception)
        assert position.state == before.state
    empty = Log()
    empty.add(Full(Advance(settings=Settings(SECOND), nonce=""), None, False))
    position, outcome = fold(BEGIN, empty.entries, "nats://x")
    assert isinstance(outcome, ValueError)
    assert position.state is None


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_logs_come_to_what_the_rules_say(seed: int) -> None:
    """Senders write plain entries with old knowledge; the rest of a cut log leads to the same record."""
    source, random = CommandSource(seed), Random(seed)
    log = Log()
    model: State | None = None
    known: State | None = None
    for _ in range(30):
        command, now = source.next(model)
        step = plain(known, command, now, now) if known is not None else None
        if step is not None and (known == model or random.random() < 0.5):
            log.add(step, at=now)
        else:
            log.add(Full(command, now if random.random() < 0.5 else None, False), random.getrandbits(40), now)
        before = model
        position, answer = fold(BEGIN, log.entries, "nats://x")
        if step is None or known == before:
            model, expected = rules.apply(model, command, now)
            assert position.state == model
            assert answer == expected
        model = position.state
        known = model if random.random() < 0.8 else known
        if isinstance(answer, Answer):
            source.learn(answer)
    cut = random.randint(0, 29)
    half, _ = fold(BEGIN, log.entries[:cut], "nats://x")
    assert fold(half, log.entries[cut:], "nats://x")[0].state == model
