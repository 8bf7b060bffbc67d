"""Plain increments of a counter have the same effect as the rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    MAX_TICKETS,
    Advance,
    Command,
    Finish,
    HighWaterMark,
    Hold,
    Resume,
    Settings,
    Slot,
    State,
)
from intervalq.testing.commands import CommandSource
from intervalq_stores.nats._queue.log import fold, increment, is_over, plain
from intervalq_stores.nats._queue.step import (
    Entry,
    Plain,
    Position,
)
from stores.nats_steps import ASKED, NOW, SECOND, TAKE, backlog


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_plain_increment_does_what_the_rules_do(seed: int) -> None:
    """This holds whenever a command may be sent as one, and whenever it arrives."""
    source, random = CommandSource(seed), Random(seed)
    model: State | None = None
    for number in range(40):
        command, now = source.next(model)
        if isinstance(command, Advance) and random.random() < 0.6:  # as are most that shards send
            command = replace(command, attach=False, release=(), costs=(), error=0)
        after, answer = rules.apply(model, command, now)
        if model is not None and (step := plain(model, command, now, now)) is not None:
            assert increment(model, step) == (after, answer), f"step {number}"
            early = now - random.randint(1, 300)
            step = plain(model, command, early, now)
            if step is None:
                assert isinstance(command, Advance)
                assert command.ahead is not None, "its slots may be too far ahead then"
                continue
            for at in {now, random.randint(early, now), early}:
                if at >= model.last_now:
                    check_alike(model, step, command, at)
                    check_alike(with_others(model, random), step, command, at)
        model = after
        source.learn(answer)


def with_others(state: State, random: Random) -> State:
    """What plain entries of others may do to a record before one's own arrives."""
    theirs = random.randint(1, 5)
    use = Slot(state.ticket, state.due, random.randint(1, 3))
    step = Plain(state.last_now, theirs, 0, state.generation, random.choice(((), (use,))))
    after, _ = increment(state, step)
    counted, _ = increment(state, Plain(None, 0, 0, None, ()), theirs)
    assert (after.ticket, after.due) == (counted.ticket, counted.due)
    return after


def check_alike(state: State, step: Plain, command: Command, at: int) -> None:
    """At any instant, the entry does what the rules do; but it may grant fewer of the new slots."""
    after, answer = rules.apply(state, command, at)
    found, reported = increment(state, step)
    assert after is not None
    unknown = step.now is None or step.now < at
    if unknown:
        assert step.now is not None or (answer.begun == 0 and not answer.granted), "it was to tell nobody"
        assert reported.begun <= answer.begun
        assert not reported.at_once or answer.at_once
        answer = replace(answer, begun=reported.begun, at_once=reported.at_once)
        after = replace(after, current=found.current, current_due=found.current_due, last_now=found.last_now)
    assert found == after
    assert reported == replace(answer, state=found, now=reported.now)


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (backlog(held_since=NOW), TAKE),
        (backlog(held_until=NOW + SECOND), TAKE),
        (backlog(settings=Settings(SECOND, max_running=3)), TAKE),
        (backlog(running={1: NOW + SECOND}), TAKE),
        (backlog(last_now=NOW + 1), TAKE),
        (backlog(due=NOW - SECOND - 1), TAKE),
        (backlog(settings=Settings(SECOND, ephemeral=True), due=NOW - 60 * SECOND), replace(TAKE, take=0)),
        (backlog(due=FOREVER - 20 * SECOND), TAKE),
        (backlog(), replace(TAKE, notice=10 * SECOND)),
        (backlog(), replace(TAKE, take=MAX_TICKETS + 1)),
        (backlog(), replace(TAKE, take=-1)),
        (backlog(), replace(TAKE, attach=True)),
        (backlog(), replace(TAKE, release=(Slot(10, NOW + 8 * SECOND),))),
        (backlog(), replace(TAKE, high_water_mark=HighWaterMark(11, NOW + 9 * SECOND))),
        (backlog(), replace(TAKE, high_water_mark=HighWaterMark(10, NOW + 8 * SECOND, 1))),
        (backlog(late_total=2), replace(TAKE, high_water_mark=HighWaterMark(10, NOW + 8 * SECOND, 1))),
        (backlog(), replace(TAKE, costs=(2,))),
        (backlog(), replace(TAKE, take=2, costs=(1, 3))),
        (backlog(), replace(TAKE, error=1)),
        (backlog(error=7, error_until=NOW), TAKE),
        (backlog(), replace(ASKED, notice=SECOND // 10 + 1)),
        (backlog(), replace(ASKED, slots=(Slot(3, NOW - 1), Slot(4, NOW + SECOND)), notice=SECOND // 10)),
        (backlog(), replace(TAKE, slots=(Slot(11, NOW + 9 * SECOND),))),
        (backlog(revoked_through=3), replace(TAKE, slots=(Slot(3, NOW + SECOND),))),
        (backlog(), replace(TAKE, slots=(Slot(3, NOW - SECOND),))),
        (backlog(), replace(TAKE, generation="h", slots=(Slot(3, NOW + SECOND),))),
        (backlog(), Hold()),
        (backlog(), Resume()),
        (backlog(), Finish(generation="g")),
    ],
)
def test_what_is_never_sent_as_a_plain_increment(state: State, command: Command) -> None:
    assert plain(state, command, NOW, NOW) is None
    assert plain(backlog(), TAKE, NOW, NOW) is not None


def test_what_may_be_true_by_the_time_it_arrives_counts() -> None:
    """Of the two bounds of the store's clock, the later one decides, and the earlier one is reported."""
    state = backlog(due=NOW)
    late = NOW + SECOND
    assert plain(state, TAKE, NOW, late) == Plain(NOW, 1, 0, "g", ()), "it may have come by then"
    assert plain(state, TAKE, NOW - 2, late - 1) == Plain(None, 1, 0, "g", ()), "it tells nobody to go"
    reaching = replace(TAKE, reach=1)
    assert plain(state, reaching, NOW - 2, late - 1) == Plain(NOW - 2, 1, 1, "g", ())
    assert plain(state, TAKE, NOW, late + 1) is None
    slot = replace(TAKE, take=0, slots=(Slot(3, NOW),))
    assert plain(state, slot, NOW, NOW + SECOND // 10) is not None
    assert plain(state, slot, NOW, NOW + SECOND // 10 + 1) is None
    assert plain(state, ASKED, NOW, NOW) is not None
    assert plain(state, ASKED, NOW, NOW + 1) is None, "it may be late by then"
    assert plain(state, replace(ASKED, until=None), NOW, NOW + 1) is not None
    ahead = replace(ASKED, slots=(Slot(3, NOW + 2),), notice=2 * SECOND)
    assert plain(state, ahead, NOW, NOW + 1) is not None
    assert plain(state, ahead, NOW, NOW + 2) is None, "it may have come by then"
    assert plain(state, replace(TAKE, notice=SECOND + SECOND // 10), NOW, NOW) is not None
    assert plain(state, replace(TAKE, notice=SECOND + SECOND // 10), NOW, NOW + 1) is None
    erring = backlog(error=7, error_until=NOW + 1)
    assert plain(erring, TAKE, NOW, NOW) is not None
    assert plain(erring, TAKE, NOW, NOW + 1) is None, "it is forgotten by then"
    same = replace(TAKE, costs=(1,), high_water_mark=HighWaterMark(10, NOW + 8 * SECOND, 5))
    assert plain(backlog(late_total=5), same, NOW, NOW) is not None


def test_slots_that_cost_several() -> None:
    """The last granted slot is taken to be the last one that its ticket owns."""
    use = Plain(NOW, 0, 0, "g", (Slot(3, NOW + SECOND, 4), Slot(4, NOW + 2 * SECOND)))
    for log in ([use], [use, Plain(NOW, 1, 0, "g", ())]):
        entries_, value = [], 5
        for number, step in enumerate(log):
            value += step.increment
            entries_.append(Entry(number + 1, NOW, step.increment, value, step))
        position, _ = fold(Position(backlog(), 5), entries_, "nats://x")
        assert position.state is not None
        assert (position.state.current, position.state.current_due) == (4, NOW + 4 * SECOND)


def test_a_burst_begins_at_once() -> None:
    """Slots may lie back because idle time was saved up, but not if the sender isn't certain of that."""
    state = backlog(settings=Settings(SECOND, burst=5), due=NOW - 2 * SECOND)
    for at, at_once in ((NOW, True), (NOW - SECOND, True), (NOW - SECOND - 1, False)):
        step = plain(state, replace(TAKE, reach=3 * SECOND), at, NOW)
        assert step is not None
        _, answer = increment(state, step)
        assert (answer.begun, answer.at_once) == (1, at_once)
    _, answer = increment(state, Plain(NOW, 1, 0, "g", (Slot(10, NOW),)))
    assert (answer.granted, answer.begun, answer.at_once) == ((10,), 1, False)


def test_new_slots_that_were_over_when_they_were_stored() -> None:
    end = NOW + 9 * SECOND + SECOND // 10
    state, answer = increment(backlog(), Plain(NOW, 1, 0, "g", ()))
    assert not is_over(replace(answer, now=end))
    assert is_over(replace(answer, now=end + 1))
    assert not is_over(replace(answer, now=end + 1, blur=1)), "not surely"
    assert not is_over(replace(answer, now=end + 1, begun=1)), "it was granted"
    assert not is_over(replace(answer, now=end + 1, first=None))
    credit = replace(state, settings=Settings(SECOND, burst=3), held_total=7)
    assert not is_over(replace(answer, now=NOW + 11 * SECOND + 300_007, state=credit))
    assert is_over(replace(answer, now=NOW + 11 * SECOND + 300_008, state=credit))
