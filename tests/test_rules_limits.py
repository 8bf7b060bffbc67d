"""Examples at the limits of the rules: the last moment of each, and what never happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    LAYOUT,
    RENAMED,
    Advance,
    Answer,
    BadRecord,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Inspect,
    NewerRecord,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)
from rule_steps import do

SECOND = 1_000_000
T0 = 1_000_000_000 * SECOND
EACH_SECOND = Settings(interval=SECOND)
LIMITED = Settings(interval=SECOND, max_running=2)


def take(
    state: State | None, now: int, settings: Settings = EACH_SECOND, **more: Any
) -> tuple[State, Answer]:
    known = None if state is None else state.generation
    return do(state, Advance(settings=settings, nonce="g", generation=known, **{"take": 1, **more}), now)


def test_only_a_step_that_ends_a_hold_wakes() -> None:
    state, answer = take(None, T0)
    assert not answer.woken
    for command in (
        Advance(generation="g", take=1),
        Reclaim(),
        Configure(interval=2 * SECOND),
        Resume(),
        Finish(),
    ):
        assert not do(state, command, T0 + 1)[1].woken, command
    assert not rules.apply(state, Drop(), T0)[1].woken
    held, answer = do(state, Hold(length=10), T0)
    assert not answer.woken
    assert not do(held, Advance(generation="g", take=1), T0 + 9)[1].woken
    assert do(held, Advance(generation="g", take=1), T0 + 10)[1].woken, "the first to see that it has run out"
    assert do(held, Resume(), T0 + 1)[1].woken
    assert rules.apply(held, Drop(), T0 + 1)[1].woken


def test_a_look_changes_nothing_and_shows_what_is_now() -> None:
    state, _ = take(None, T0)
    held, _ = do(state, Hold(length=10), T0)
    after, answer = rules.apply(held, Inspect(), T0 + 20)
    assert after is held
    assert answer.state is not None
    assert (answer.state.held_total, answer.state.held_since, answer.now) == (10, None, T0 + 20)
    assert not answer.woken


def test_a_record_that_lapsed_wakes_nobody_and_is_shown_no_more() -> None:
    state, _ = take(None, T0, replace(EACH_SECOND, ephemeral=True))
    end = T0 + 2 * SECOND + 60 * SECOND
    assert rules.apply(state, Inspect(), end - 1)[1].state is not None
    assert rules.apply(state, Inspect(), end)[1] == Answer(state=None, now=end)
    assert rules.apply(state, Advance(take=1), end) == (state, Answer(state=None, now=end))
    held, _ = do(state, Hold(length=10), T0)
    assert not rules.apply(held, Drop(), end + 10)[1].woken


def test_an_idle_record_is_kept_for_a_minute_and_one_with_running_jobs_as_long_as_they_run() -> None:
    keyed = replace(LIMITED, ephemeral=True)
    state, _ = take(None, T0, keyed, lease=10**12)
    assert len(state.running) == 1
    assert rules.lapses(state) == FOREVER
    ended, _ = do(state, Finish(generation="g", ended=(1,)), T0 + SECOND)
    assert rules.lapses(ended) == T0 + 2 * SECOND + 60 * SECOND
    assert rules.lapses(replace(ended, due=FOREVER)) == FOREVER, "there is nothing after it"


def test_a_step_hands_out_a_thousand_tickets_at_most() -> None:
    _, answer = take(None, T0, take=1_001)
    assert answer.count == len(answer.taken) == 1_000
    _, answer = take(None, T0, take=1_000)
    assert answer.count == 1_000


def test_a_record_is_not_made_without_a_name_of_its_own() -> None:
    with pytest.raises(ValueError, match="nonce"):
        rules.apply(None, Advance(settings=EACH_SECOND, take=1), T0)


def test_a_job_of_a_lost_record_neither_ends_nor_renews_one_of_this() -> None:
    state, _ = take(None, T0, LIMITED, lease=10 * SECOND)
    for generation in ("lost", None):
        other = Finish(generation=generation, ended=(1,), running=(2,), lease=SECOND)
        assert do(state, other, T0 + 1)[0].running == state.running
    unlimited, _ = take(None, T0)
    after, _ = do(unlimited, Finish(generation="g", running=(1,), lease=SECOND), T0 + 1)
    assert after.running == {}, "without a limit nobody counts"


def test_slots_of_a_lost_record_are_dead_and_not_given_back() -> None:
    state, first = take(None, T0, take=3)
    lost = Advance(generation="lost", slots=first.taken[1:], release=first.taken[2:])
    after, answer = do(state, lost, T0 + 1)
    assert answer.missed == (2, 3)
    assert answer.taken == (Slot(4, T0 + 3 * SECOND), Slot(5, T0 + 4 * SECOND))
    assert after.ticket == 5


def test_a_ticket_above_those_that_were_issued_is_dead() -> None:
    state, _ = take(None, T0)
    ask = Advance(generation="g", slots=(Slot(2, T0 + SECOND),))
    assert do(state, ask, T0 + SECOND)[1].missed == (2,)
    state, _ = take(state, T0)
    assert do(state, ask, T0 + SECOND)[1].granted == (2,)


def test_a_mark_heals_only_what_is_behind_it() -> None:
    state, _ = take(None, T0, take=2)
    for mark in (HighWaterMark(2, T0 + 50 * SECOND), HighWaterMark(1, T0 + 50 * SECOND)):
        after, answer = do(state, Advance(generation="g", high_water_mark=mark), T0 + 1)
        assert not answer.healed
        assert after.due == T0 + SECOND
    after, answer = do(
        state, Advance(generation="other", high_water_mark=HighWaterMark(9, T0 + 50 * SECOND)), T0 + 1
    )
    assert not answer.healed
    assert after.ticket == 2
    after, answer = do(state, Advance(generation="g", high_water_mark=HighWaterMark(3, T0)), T0 + 1)
    assert answer.healed
    assert (after.ticket, after.due) == (3, T0 + SECOND), "what is later counts"
    held, _ = do(state, Hold(), T0)
    assert do(held, Advance(generation="g", high_water_mark=HighWaterMark(3, T0)), T0 + 1)[1].healed, (
        "in a hold, too"
    )


def test_a_void_ticket_is_not_given_back() -> None:
    state, first = take(None, T0, take=3)
    state, _ = do(state, Reclaim(), T0)
    after, _ = do(state, Advance(generation="g", release=first.taken[1:]), T0)
    assert (after.due, after.ticket, after.revoked_through) == (T0, 3, 3)


def test_a_configured_queue_keeps_what_was_not_changed() -> None:
    settings = Settings(SECOND, 3, 2, 7, ephemeral=True)
    state, _ = take(None, T0, settings, lease=SECOND)
    for change, expected in (
        (Configure(interval=2 * SECOND), replace(settings, interval=2 * SECOND)),
        (Configure(burst=5), replace(settings, burst=5)),
        (Configure(max_running=7), replace(settings, max_running=7)),
        (Configure(), settings),
    ):
        assert do(state, change, T0)[0].settings == expected


def test_new_settings_void_tickets_only_if_those_would_be_too_close() -> None:
    state, first = take(None, T0, take=3)
    ask = Advance(generation="g", slots=first.taken[1:2])
    for change, voided in (
        (Configure(interval=SECOND + 1), True),
        (Configure(burst=2), True),
        (Configure(interval=SECOND), False),
        (Configure(interval=SECOND - 1), False),
        (Configure(burst=1), False),
        (Configure(max_running=5), False),
    ):
        changed, _ = do(state, change, T0)
        _, answer = do(changed, ask, T0 + SECOND)
        assert bool(answer.missed) is voided, change


def test_without_a_limit_no_running_jobs_are_kept() -> None:
    state, _ = take(None, T0, LIMITED, take=2, reach=SECOND, lease=10 * SECOND)
    assert state.held_since == T0
    free, answer = do(state, Configure(max_running=0), T0 + 5)
    assert free.running == {}
    assert free.held_since is None
    assert answer.woken
    more, _ = do(state, Configure(max_running=3), T0 + 5)
    assert more.running == state.running
    assert more.held_total == 5


def test_a_lease_has_lapsed_at_its_very_end() -> None:
    state, _ = take(None, T0, LIMITED, lease=10)
    assert rules.settle(state, T0 + 9).running == {1: T0 + 10}
    assert rules.settle(state, T0 + 10).running == {}


def test_a_pause_has_ended_at_its_very_end() -> None:
    state, _ = do(take(None, T0)[0], Hold(length=10), T0)
    assert rules.settle(state, T0 + 9).held_until == T0 + 10
    over = rules.settle(state, T0 + 10)
    assert (over.held_until, over.held_since, over.held_total) == (0, None, 10)


def test_a_hold_ends_when_enough_leases_have_lapsed() -> None:
    two = Settings(SECOND, 5, 2)
    state, _ = take(None, T0, two, take=2, lease=10)
    state, _ = do(state, Finish(generation="g", running=(2,), lease=30), T0)
    assert sorted(state.running.values()) == [T0 + 10, T0 + 30]
    settled = rules.settle(state, T0 + 20)
    assert (settled.held_total, settled.held_since) == (10, None), "the first lapse makes room for a job"
    crowded = replace(state, running={1: T0 + 10, 2: T0 + 30, 3: T0 + 40})
    assert rules.settle(crowded, T0 + 29).held_since == T0
    assert rules.settle(crowded, T0 + 30).held_total == 30


def test_a_step_back_of_the_store_s_clock_moves_leases_and_pauses_along() -> None:
    state, _ = take(None, T0, LIMITED, lease=10)
    state, _ = do(state, Hold(length=50), T0)
    back = rules.settle(state, T0 - 1_000)
    assert back.running == {1: T0 - 990}
    assert back.held_until == T0 - 950
    assert back.held_since == T0 - 1_000
    assert back.last_now == T0 - 1_000
    forever, _ = do(state, Hold(), T0)
    assert rules.settle(forever, T0 - 1_000).held_until == FOREVER
    assert rules.settle(take(None, T0)[0], T0 - 1_000).held_until == 0


def test_a_hold_that_begins_again_goes_on() -> None:
    state, _ = do(take(None, T0)[0], Hold(length=50), T0)
    state, _ = do(state, Hold(length=100), T0 + 10)
    assert state.held_since == T0
    state, _ = do(state, Resume(), T0 + 20)
    assert (state.held_total, state.held_since, state.held_until) == (20, None, 0)
    assert do(state, Resume(), T0 + 30)[0].held_total == 20


def test_the_numbers_are_those_that_a_double_holds() -> None:
    assert FOREVER == 9_007_199_254_740_991
    assert float(FOREVER) != float(FOREVER + 1) == float(FOREVER + 2)


def test_a_pause_for_ever_stays_within_the_numbers() -> None:
    state, _ = do(take(None, T0)[0], Hold(length=FOREVER), T0)
    assert state.held_until == FOREVER


def test_what_is_not_known_is_no_command() -> None:
    state, _ = take(None, T0)
    with pytest.raises(TypeError, match="Command"):
        rules.apply(state, Command(), T0)


def test_the_last_record_that_every_store_can_hold_is_read_and_none_beyond() -> None:
    good = State(generation="g", settings=EACH_SECOND, due=1, current_due=1, last_now=1, ticket=3).to_dict()
    for name in ("due", "current_due", "held_total", "held_until", "last_now", "held_since"):
        for value in (FOREVER, -FOREVER):
            assert State.from_dict(good | {name: value}).to_dict()[name] == value
            with pytest.raises(BadRecord, match=name):
                State.from_dict(good | {name: value + (1 if value > 0 else -1)})
    for name, least in (("interval", 1), ("burst", 1), ("max_running", 0), ("tolerance", 0)):
        assert State.from_dict(good | {name: least}).to_dict()[name] == least
        assert State.from_dict(good | {name: FOREVER}).to_dict()[name] == FOREVER
        with pytest.raises(BadRecord, match=name):
            State.from_dict(good | {name: least - 1})
    for name in ("current", "revoked_through"):
        assert State.from_dict(good | {name: 3}).to_dict()[name] == 3
        with pytest.raises(BadRecord, match=name):
            State.from_dict(good | {name: 4})


def test_leases_are_read_by_ticket() -> None:
    good = State(generation="g", settings=LIMITED, due=1, current_due=1, last_now=1).to_dict()
    most = str(FOREVER)
    assert State.from_dict(good | {"running": {"0": 0, most: -FOREVER}}).running == {0: 0, FOREVER: -FOREVER}
    for ticket in ("-1", "1.0", "", "x", "\u00b2", "\u0663", "1" * 17):
        with pytest.raises(BadRecord, match="running"):
            State.from_dict(good | {"running": {ticket: 1}})


def test_the_tolerance_is_a_tenth_or_as_agreed_and_never_more_than_the_interval() -> None:
    for tolerance, expected in ((0, SECOND // 10), (7, 7), (SECOND, SECOND), (SECOND + 1, SECOND)):
        state, _ = take(None, T0, replace(EACH_SECOND, tolerance=tolerance))
        assert state.tolerance == expected


def test_a_pause_of_no_length_is_none() -> None:
    state, _ = take(None, T0, take=2)
    after, answer = do(state, Hold(length=0), T0)
    assert (after.held_since, after.revoked_through, answer.woken) == (None, 0, False)


def test_beyond_the_last_slot_there_is_no_ticket() -> None:
    last = replace(take(None, T0)[0], due=FOREVER)
    after, answer = take(last, T0, take=5)
    assert (answer.count, answer.first, after.ticket) == (0, None, 1)


@pytest.mark.parametrize("version", range(1, LAYOUT))
def test_a_record_of_an_older_layout_is_read_and_written_again_with_the_names_of_today(version: int) -> None:
    after, _ = do(None, Advance(settings=EACH_SECOND, nonce="g", take=3), T0)
    new = after.to_dict()
    before = {name: older for older, name in RENAMED.items()}
    old = {before.get(name, name): value for name, value in new.items()} | {"version": version}
    for name in ("late", "error", "error_until") if version == 1 else ():
        del old[name]
    assert State.from_dict(old) == after
    assert State.from_dict(old).to_dict() == new
    with pytest.raises(BadRecord, match="current_due"):
        State.from_dict(new | {"version": version})


def test_a_record_of_a_newer_layout_is_refused() -> None:
    after, _ = do(None, Advance(settings=EACH_SECOND, nonce="g"), T0)
    with pytest.raises(NewerRecord):
        State.from_dict(after.to_dict() | {"version": LAYOUT + 1})
    with pytest.raises(BadRecord):
        State.from_dict([after.to_dict()])
