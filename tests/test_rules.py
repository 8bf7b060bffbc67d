"""The rules of the pacing, by examples that explain them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from intervalq import rules
from intervalq.rules import (
    ERROR_KEPT,
    FOREVER,
    IDLE_KEPT,
    Advance,
    Answer,
    BadRecord,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Inspect,
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


def take(state: State | None, now: int, count: int = 1, **more: Any) -> tuple[State, Answer]:
    command = Advance(settings=EACH_SECOND, nonce="g", take=count)
    command = replace(command, generation=None if state is None else state.generation, **more)
    after, answer = rules.apply(state, command, now)
    assert after is not None
    return after, answer


def test_a_new_queue_starts_its_first_job_at_once() -> None:
    state, answer = take(None, T0)
    assert answer.taken == (Slot(1, T0),)
    assert answer.begun == 1
    assert (state.current, state.current_due) == (1, T0)


def test_a_record_that_was_lost_begins_with_a_quiet_interval() -> None:
    _, answer = do(None, Advance(settings=EACH_SECOND, generation="lost", nonce="n", take=1), T0)
    assert answer.taken == (Slot(1, T0 + SECOND),)


def test_tickets_follow_one_interval_apart_and_later_ones_queue_behind() -> None:
    state, first = take(None, T0, 3)
    assert [slot.due - T0 for slot in first.taken] == [0, SECOND, 2 * SECOND]
    _, second = take(state, T0 + 5, 1)
    assert second.taken == (Slot(4, T0 + 3 * SECOND),)


def test_the_answer_has_time_to_come_back() -> None:
    """A job may begin until a tolerance after its slot, so that much of the notice lies within the slot."""
    _, answer = take(None, T0, notice=SECOND // 10 + 700)
    assert answer.taken == (Slot(1, T0 + 700),)
    assert answer.begun == 0
    _, answer = take(None, T0, notice=SECOND // 10 + 700, reach=700)
    assert answer.begun == 1
    _, answer = take(None, T0, notice=SECOND // 10, reach=1)
    assert answer.taken == (Slot(1, T0),)


def test_a_slot_may_be_used_until_its_tolerance_ends_and_not_after() -> None:
    state, answer = take(None, T0, 2)
    slot = answer.taken[1]
    for late, granted in ((0, True), (SECOND // 10, True), (SECOND // 10 + 1, False)):
        command = Advance(settings=EACH_SECOND, generation="g", slots=(slot,))
        _, answer = do(state, command, slot.due + late)
        assert bool(answer.granted) is granted
        assert (answer.count == 1) is not granted, "a missed slot is replaced in the same step"


def test_on_an_idle_queue_a_late_job_begins_at_once() -> None:
    """A missed last ticket costs no interval, without which an interval of an hour would be unusable."""
    hourly = Settings(interval=3_600 * SECOND)
    state, _ = do(None, Advance(settings=hourly, nonce="g", take=1), T0)
    state, answer = do(state, Advance(settings=hourly, generation="g", take=1), T0 + 1)
    slot = answer.taken[0]
    late = slot.due + 600 * SECOND
    command = Advance(settings=hourly, generation="g", slots=(slot,))
    state, answer = do(state, command, late)
    assert answer.missed == (slot.ticket,)
    assert answer.taken == (Slot(3, late),)
    assert answer.begun == 1


def test_an_old_request_that_arrives_again_does_not_free_a_slot_that_was_used() -> None:
    state, answer = take(None, T0)
    again = Advance(settings=EACH_SECOND, generation="g", slots=answer.taken)
    state, answer = do(state, again, T0 + SECOND // 2)
    assert answer.missed == (1,)
    assert answer.taken == (Slot(2, T0 + SECOND),)


def test_released_slots_at_the_end_are_free_again_and_numbers_are_not() -> None:
    state, answer = take(None, T0, 4)
    state, answer = take(state, T0, release=answer.taken[2:])
    assert answer.taken == (Slot(5, T0 + 2 * SECOND),)


def test_a_released_slot_in_the_middle_stays_empty() -> None:
    state, answer = take(None, T0, 3)
    state, answer = take(state, T0, release=answer.taken[1:2])
    assert answer.taken == (Slot(4, T0 + 3 * SECOND),)


def test_a_hold_moves_every_slot_by_its_length() -> None:
    state, answer = take(None, T0, 3)
    slots = answer.taken[1:]
    held, _ = do(state, Hold(), T0 + 10)
    command = Advance(settings=EACH_SECOND, generation="g", slots=slots, take=2)
    held, answer = do(held, command, T0 + 5 * SECOND)
    assert (answer.granted, answer.missed, answer.count) == ((), (), 0), "a held queue leaves slots alone"
    resumed, answer = do(held, Resume(), T0 + 7 * SECOND)
    assert answer.woken
    assert resumed.held_total == 7 * SECOND - 10
    _, answer = do(resumed, replace(command, slots=slots[:1]), T0 + 8 * SECOND - 10)
    assert answer.granted == (2,)


def test_of_two_holds_the_longer_one_counts_and_it_ends_at_its_own_end() -> None:
    state, _ = take(None, T0)
    state, _ = do(state, Hold(length=10 * SECOND), T0)
    state, _ = do(state, Hold(length=2 * SECOND), T0 + SECOND)
    state, answer = do(state, Inspect(), T0 + 60 * SECOND)
    assert answer.state is not None
    assert answer.state.held_total == 10 * SECOND
    assert answer.state.held_since is None


def test_a_slot_before_one_that_was_granted_is_dead_after_a_hold() -> None:
    """Otherwise it would move behind that slot, and begin too close to it."""
    state, answer = take(None, T0, 3)
    two, three = answer.taken[1:]
    ask = Advance(settings=EACH_SECOND, generation="g", slots=(three,))
    state, answer = do(state, ask, T0 + 10)
    assert answer.granted == (3,)
    state, _ = do(state, Hold(length=5), T0 + 11)
    state, answer = do(state, replace(ask, slots=(two,)), T0 + 20)
    assert answer.missed == (2,)


def test_the_clock_of_the_store_may_be_set_back() -> None:
    state, answer = take(None, T0, 2)
    state, answer = take(state, T0 - 100 * SECOND)
    assert answer.taken == (Slot(3, T0 + 2 * SECOND),)
    assert state.clock(T0 - 100 * SECOND) == T0, "the queue's clock just goes on"
    slot = Slot(2, T0 + SECOND)
    ask = Advance(settings=EACH_SECOND, generation="g", slots=(slot,))
    _, answer = do(state, ask, T0 - 99 * SECOND)
    assert answer.granted == (2,)


def test_idle_time_is_credit_for_a_burst() -> None:
    bursty = Settings(interval=SECOND, burst=3)
    state, answer = do(None, Advance(settings=bursty, nonce="g", take=5), T0)
    assert [slot.due - T0 for slot in answer.taken] == [-2 * SECOND, -SECOND, 0, SECOND, 2 * SECOND]
    assert answer.begun == 3
    _, answer = do(state, Advance(settings=bursty, generation="g", take=4), T0 + 100 * SECOND)
    assert answer.begun == 3


def test_a_longer_interval_holds_at_once_and_a_shorter_one_after_what_is_handed_out() -> None:
    state, answer = take(None, T0, 3)
    longer, _ = do(state, Configure(interval=5 * SECOND), T0 + 1)
    ask = Advance(settings=EACH_SECOND, generation="g", slots=answer.taken[1:])
    _, redone = do(longer, ask, T0 + 2)
    assert redone.missed == (2, 3)
    assert [slot.due - T0 for slot in redone.taken] == [5 * SECOND, 10 * SECOND]
    shorter, _ = do(state, Configure(interval=SECOND // 2), T0 + 1)
    _, more = take(shorter, T0 + 2)
    assert more.taken == (Slot(4, T0 + 2 * SECOND + SECOND // 2),)


def test_as_many_jobs_run_as_may_and_the_next_waits_for_an_end_or_a_lapse() -> None:
    limited = Settings(interval=SECOND, max_running=2)
    ask = Advance(settings=limited, nonce="g", take=3, reach=10 * SECOND, lease=60 * SECOND)
    state, answer = do(None, ask, T0)
    assert answer.begun == 2
    assert state.held_since == T0
    ended, answer = do(state, Finish(generation="g", ended=(1,)), T0 + 30 * SECOND)
    assert answer.woken
    assert ended.held_total == 30 * SECOND
    _, answer = do(state, Inspect(), T0 + 90 * SECOND)
    assert answer.state is not None
    assert answer.state.held_total == 60 * SECOND, "the hold ended when the leases lapsed"
    assert answer.state.running == {}


def test_a_renewed_lease_lasts() -> None:
    limited = Settings(interval=SECOND, max_running=1)
    state, _ = do(None, Advance(settings=limited, nonce="g", take=1, lease=10 * SECOND), T0)
    renew = Finish(generation="g", running=(1,), lease=10 * SECOND)
    state, _ = do(state, renew, T0 + 9 * SECOND)
    _, answer = do(state, Inspect(), T0 + 18 * SECOND)
    assert answer.state is not None
    assert answer.state.full


def test_reclaim_frees_what_the_dead_had_and_tells_the_living() -> None:
    state, answer = take(None, T0, 10)
    state, _ = do(state, Reclaim(), T0 + 1)
    ask = Advance(settings=EACH_SECOND, generation="g", slots=answer.taken[4:5])
    _, answer = do(state, ask, T0 + 2)
    assert answer.missed == (5,)
    assert answer.taken == (Slot(11, T0 + SECOND),)


def test_a_store_that_lost_tickets_is_healed_forward() -> None:
    old, _ = take(None, T0, 2)
    _, answer = take(old, T0 + 1, high_water_mark=HighWaterMark(7, T0 + 6 * SECOND))
    assert answer.healed
    assert answer.taken == (Slot(8, T0 + 7 * SECOND),)


def test_at_first_contact_other_settings_are_refused_and_nothing_is_done() -> None:
    state, _ = take(None, T0)
    other = Advance(settings=Settings(interval=2 * SECOND), attach=True, take=1)
    after, answer = do(state, other, T0)
    assert after is state
    assert answer.refused
    assert answer.state is not None
    assert answer.state.settings == EACH_SECOND


def test_without_settings_there_is_no_new_record() -> None:
    assert rules.apply(None, Advance(take=1), T0) == (None, Answer(state=None, now=T0))
    assert rules.apply(None, Inspect(settings=EACH_SECOND), T0)[0] is None


def test_dropping_removes() -> None:
    state, _ = take(None, T0)
    assert rules.apply(state, Drop(), T0)[0] is None


def test_an_ephemeral_record_is_forgotten_when_it_can_not_matter_any_more() -> None:
    keyed = replace(EACH_SECOND, ephemeral=True)
    state, _ = do(None, Advance(settings=keyed, nonce="g", take=1), T0)
    assert rules.lapses(state) == T0 + 2 * SECOND + IDLE_KEPT
    again, answer = do(state, Advance(settings=keyed, nonce="h", take=1), T0 + 3 * SECOND + IDLE_KEPT)
    assert (again.generation, answer.taken[0].ticket) == ("h", 1)
    held, _ = do(state, Hold(), T0)
    assert rules.lapses(held) == FOREVER, "a pause is not forgotten"


def test_no_number_leaves_what_every_store_can_hold() -> None:
    yearly = Settings(interval=366 * 86_400 * SECOND)
    state, answer = do(None, Advance(settings=yearly, nonce="g", take=1_000), T0)
    assert 0 < answer.count < 1_000
    assert state.due <= FOREVER
    _, answer = do(state, Advance(settings=yearly, generation="g", take=5), T0)
    assert answer.count == 0


GOOD = State(generation="g", settings=EACH_SECOND, due=1, current_due=1, last_now=1).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"ticket": -1},
        {"ticket": 1.5},
        {"ticket": True},
        {"ticket": "1"},
        {"ticket": FOREVER + 1},
        {"interval": 0},
        {"burst": 0},
        {"tolerance": -1},
        {"current": 5},
        {"revoked_through": 5},
        {"generation": ""},
        {"generation": 4},
        {"ephemeral": 1},
        {"running": []},
        {"running": {"x": 1}},
        {"running": {"1": None}},
        {"held_since": "now"},
        {"version": 0},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadRecord):
        State.from_dict(GOOD | change)
    for name in change:
        without = {key: value for key, value in GOOD.items() if key != name}
        if name != "held_since":
            with pytest.raises(BadRecord):
                State.from_dict(without)


def test_of_the_reported_errors_the_largest_counts_until_it_is_old() -> None:
    state, _ = take(None, T0, error=5_000)
    state, _ = take(state, T0 + SECOND, error=100)
    assert (state.error, state.error_until) == (5_000, T0 + ERROR_KEPT)
    state, _ = take(state, T0 + 2 * SECOND, error=5_000)
    assert (state.error, state.error_until) == (5_000, T0 + 2 * SECOND + ERROR_KEPT)
    state, _ = take(state, state.error_until - 1)
    assert state.error == 5_000
    state, _ = take(state, state.error_until, error=100)
    assert state.error == 100
