"""A shard's estimate of the store's clock: bounds that hold, and what happens if they are wide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq._shard.grants import GrantRange
from intervalq._shard.store_time import REACTION, StoreTime
from intervalq.rules import Limit, Settings, Slot, State

AT = 1_000_000_000
OFFSET = 10**15
INTERVAL = 100_000
TOLERANCE = 3_000
FIXED = Limit(5, 60_000_000, edge=0)


def informed(time: StoreTime, state: State) -> State:
    """The record after it was told how wrong a shard may be."""
    return replace(state, error=time.error_to_report(state, AT))


def record(settings: Settings | None = None) -> State:
    settings = settings or Settings(INTERVAL, tolerance=TOLERANCE)
    return State(generation="g", settings=settings, due=0, current_due=0, last_now=OFFSET)


def error_after(trip: int) -> int:
    """The error of the estimate after a round trip: both clocks show whole microseconds, and drift apart."""
    return trip + 2 + -(-trip // 2_000)


def time_of(
    error: int, state: State | None = None, *, strict: bool = False, checked: bool = True
) -> StoreTime:
    """The estimate at `AT` with this error; with `checked`, another reading is no longer wanted."""
    time = StoreTime(strict=strict)
    trip = next(trip for trip in range(error, -1, -1) if error_after(trip) <= error)
    time.clock.learn(AT - trip, AT, AT + OFFSET)
    assert time.clock.error(AT) == error
    while checked and time.wants_check(state or record(), INTERVAL, AT):
        pass
    return time


def granted(time: StoreTime, *, ahead: int = 0, at_once: bool = False, count: int = 1) -> GrantRange:
    first = Slot(1, AT + OFFSET + ahead)
    return GrantRange(
        first,
        held_total=0,
        steps=time.clock.steps,
        count=count,
        step=INTERVAL if count > 1 else 0,
        at_once=at_once,
    )


# --- bounds that hold -------------------------------------------------------------------------------


def store_clock(offset: int, drift: int) -> Callable[[int], int]:
    """A clock that runs fast by this many millionths."""
    return lambda at: offset + at + at * drift // 1_000_000


READINGS = st.lists(
    st.tuples(st.integers(0, 10**8), st.integers(0, 200_000), st.integers(0, 200_000)),
    min_size=1,
    max_size=12,
)


@given(
    offset=st.integers(-(10**12), 10**15),
    drift=st.integers(-500, 500),
    readings=READINGS,
    later=st.integers(0, 10**9),
    tolerance=st.integers(1, 10**6),
)
def test_bounds_contain_the_truth(
    offset: int, drift: int, readings: list[tuple[int, int, int]], later: int, tolerance: int
) -> None:
    """A reading is made at some instant between sending and receiving; the clocks drift apart meanwhile."""
    reads, time, at = store_clock(offset, drift), StoreTime(strict=True), 0
    for pause, there, back in readings:
        sent = at + pause
        at = sent + there + back
        time.clock.learn(sent, at, reads(sent + there))
    assert time.clock.steps == 0, "no step was seen where there was none"
    then = at + later
    assert time.clock.earliest(then) <= reads(then) <= time.clock.latest(then)
    state = replace(record(), settings=Settings(10**9, tolerance=tolerance))
    slot = GrantRange(Slot(1, reads(then)), held_total=0, steps=0)
    time.bounded(slot, state, at)
    assert reads(slot.opens) >= reads(then), "it has come"
    assert reads(slot.closes) <= reads(then) + tolerance, "it is not over"
    assert time.comes(Slot(1, reads(then)), state) <= then, "it is asked about before it comes"


@pytest.mark.parametrize("drift", [-500, -100, 100, 500])
@pytest.mark.parametrize("pause", [50, 700, 1_999])
def test_many_readings_in_a_short_time_age_as_well(drift: int, pause: int) -> None:
    """Otherwise bounds that were close once would be kept as clocks drift, which later looks like a step."""
    reads, time, at = store_clock(OFFSET, drift), StoreTime(), 0
    for number in range(5_000):
        there, back = (5, 5) if number % 1_000 == 0 else (300, 100 + number % 7)
        sent = at + pause
        at = sent + there + back
        time.clock.learn(sent, at, reads(sent + there))
        assert time.clock.earliest(at) <= reads(at) <= time.clock.latest(at)
    assert time.clock.steps == 0


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_closer_reading_narrows_the_bounds_and_a_wider_one_does_not_widen_them(one: int, two: int) -> None:
    time = StoreTime()
    for trip in (one, two):
        time.clock.learn(AT - trip, AT, AT + OFFSET)
    assert time.clock.error(AT) == error_after(min(one, two))
    assert time.clock.steps == 0


def test_what_another_shard_has_learned_of_the_clock_costs_no_request() -> None:
    """Keys of a queue in one process share what they know: a close reading of one is enough for all."""
    state, near, far = record(), 100, 40_000
    first = StoreTime()
    second = StoreTime(beside=first)
    second.reading(AT - far, AT, AT + OFFSET)
    assert second.wants_check(state, INTERVAL, AT)
    first.reading(AT - near, AT, AT + OFFSET)
    assert not second.wants_check(state, INTERVAL, AT)
    assert second.clock.error(AT) <= error_after(near) + 1


def test_a_slow_reading_that_shows_a_step_is_checked_before_its_error_is_reported() -> None:
    """The record keeps an error for a minute, in which all windows are longer by three times as much."""
    far, slow, step = 40_000, 2_000_000, 700_000
    time, state = time_of(far), record()
    assert time.error_to_report(state, AT) == far // 2, "all checks are spent"
    later = AT + slow
    time.reading(AT, later, later + OFFSET + step)
    assert time.clock.steps == 1
    assert time.error_to_report(state, later) == 0
    while time.wants_check(state, INTERVAL, later):
        time.reading(later - far, later, later + OFFSET + step)
    assert 0 < time.error_to_report(state, later) <= error_after(far)


# --- bounds that are too wide -----------------------------------------------------------------------

# The error of the clock; strict; how long after its earliest time the slot opens; how long it is open;
# and the error that is reported.
WIDE: dict[str, tuple[int, bool, int, int, int]] = {
    "certain": (1_000, False, 1_000, TOLERANCE - 1_000 - 1, 0),
    "as wide as the tolerance allows": (2_000, False, 2_000, TOLERANCE - 2_000 - 1, 0),
    "far": (2_001, False, 1_000, TOLERANCE, 1_001),
    "far and strict": (2_001, True, 2_001, 2_001 // 2 - 1, 1),
    "very far": (40_000, False, 20_000, TOLERANCE, 20_000),
    "very far and strict": (40_000, True, 40_000, 19_999, 28_500),
}


@pytest.mark.parametrize("what", WIDE)
def test_where_bounds_are_wide_a_job_begins_in_their_middle_unless_it_is_to_be_strict(what: str) -> None:
    error, strict, opens, open_for, reported = WIDE[what]
    time, state = time_of(error, strict=strict), record()
    slot = time.bounded(granted(time), informed(time, state), AT)
    assert slot.opens - time.comes(Slot(1, AT + OFFSET), state) == pytest.approx(opens, abs=2)
    assert slot.closes - slot.opens == pytest.approx(open_for, abs=20)
    assert time.error(state, AT) == reported
    assert time.is_uncertain(state, AT) is (reported > 0)


def test_a_small_error_is_waited_out_however_small_the_tolerance() -> None:
    """Starting in the middle of close bounds gave more short gaps."""
    tight = record(Settings(10_000, tolerance=100))
    time = time_of(1_999, tight)
    slot = time.bounded(granted(time), informed(time, tight), AT)
    assert time.is_uncertain(tight, AT)
    assert slot.opens - time.comes(Slot(1, AT + OFFSET), tight) == pytest.approx(1_999, abs=2)
    assert slot.closes - slot.opens == pytest.approx(1_999 // 2, abs=3), (
        "longer than agreed, or it would never be open"
    )
    assert time.error(tight, AT) == (1_999 * 3 // 2 - 100 + 1) // 2
    time = time_of(2_000, tight)
    slot = time.bounded(granted(time), informed(time, tight), AT)
    assert slot.opens - time.comes(Slot(1, AT + OFFSET), tight) == pytest.approx(1_000, abs=2)


@pytest.mark.parametrize(("edge", "after"), [(None, 20_000), (0, 40_000)])
def test_in_fixed_windows_a_job_begins_once_its_slot_has_surely_come(edge: int | None, after: int) -> None:
    """It would count in a window that is full."""
    limited = record(Settings(10_000, tolerance=1_000, limits=(Limit(5, 60_000_000, edge=edge),)))
    time = time_of(40_000, limited)
    slot = time.bounded(granted(time), informed(time, limited), AT)
    assert slot.opens - time.comes(Slot(1, AT + OFFSET), limited) == pytest.approx(after, abs=3)
    assert slot.closes > slot.opens


@pytest.mark.parametrize(("error", "limits"), [(1_900, ()), (40_000, ()), (40_000, (FIXED,))])
def test_a_job_begins_no_further_from_its_slot_than_the_record_was_told(
    error: int, limits: tuple[Limit, ...]
) -> None:
    """Otherwise `inspect().spacing`, which is for the whole queue, would promise too much."""
    tight = record(Settings(10_000, tolerance=1_000, limits=limits))
    time = time_of(error, tight)
    assert time.error(tight, AT) > 0
    slot = time.bounded(granted(time), tight, AT)
    comes = time.comes(Slot(1, AT + OFFSET), tight)
    assert slot.opens - comes == pytest.approx(error, abs=2), "the slot has surely come"
    assert slot.closes < comes + 1_000, "it is surely not over: so it is asked again, and the record is told"
    slot = time.bounded(granted(time), replace(tight, error=300), AT)
    assert slot.opens - comes >= error - 302
    assert slot.closes <= comes + 1_600


def test_as_long_as_it_may_be_known_better_it_is_not_given_up() -> None:
    time, state = time_of(40_000, checked=False), record()
    assert not time.is_uncertain(state, AT)
    slot = time.bounded(granted(time), state, AT)
    assert slot.closes < slot.opens
    assert [time.wants_check(state, INTERVAL, AT) for _ in range(7)] == [True] * 5 + [False] * 2
    assert time.is_uncertain(state, AT)
    time.clock.learn(AT - 10, AT, AT + OFFSET)
    assert not time.wants_check(state, INTERVAL, AT)
    assert time.wants_check(state, 5, AT), "wider than is enough: it counts anew"


def test_a_clock_that_is_known_ages() -> None:
    time, state = time_of(1_000), record()
    assert not time.wants_check(state, INTERVAL, AT + 900_000)
    assert time.wants_check(state, INTERVAL, AT + 1_100_000)


# --- special slots ------------------------------------------------------------------------------------


def test_a_slot_that_may_be_used_at_once_is_open_at_once_until_it_ends() -> None:
    time, state = time_of(1_000), record()
    slot = time.bounded(granted(time, ahead=50_000, at_once=True), state, AT)
    assert slot.opens < AT
    assert slot.closes == time.bounded(granted(time, ahead=50_000), state, AT).closes


def test_a_clock_that_was_stepped_closes_all_that_was_granted_before() -> None:
    time, state = time_of(1_000), record()
    slots = [granted(time), granted(time, at_once=True), granted(time, count=3)]
    for slot in slots:
        assert time.bounded(slot, state, AT).closes > AT
    time.clock.learn(AT, AT + 100, AT + OFFSET + 3_600_000_000)
    assert time.clock.steps == 1
    for slot in slots:
        assert time.bounded(slot, state, AT + 100).closes < -OFFSET
    fresh = granted(time, ahead=3_600_000_000)
    assert time.bounded(fresh, state, AT).closes > AT


def test_bounds_are_made_once_for_each_reading() -> None:
    time, state = time_of(1_000), record()
    slot = time.bounded(granted(time), state, AT)
    opens, slot.after = slot.opens, 77
    assert time.bounded(slot, state, AT).after == 77
    time.clock.learn(AT, AT + 900, AT + OFFSET + 900)
    assert time.bounded(slot, state, AT).opens != 77 + slot.instant
    assert time.bounded(slot, state, AT).opens <= opens
    unknown = granted(time)
    assert time.bounded(unknown, None, AT).readings == -1


def test_saved_up_credit_keeps_slots_open() -> None:
    time, state = time_of(1_000), record(Settings(INTERVAL, burst=4, tolerance=TOLERANCE))
    plain = time.bounded(granted(time), record(), AT)
    assert time.bounded(granted(time), state, AT).closes - plain.closes == pytest.approx(
        3 * INTERVAL, abs=200
    )


def test_no_slot_comes_while_the_queue_is_held() -> None:
    time, slot = time_of(2), Slot(1, AT + OFFSET)
    assert time.comes(slot, None) == time.comes(slot, replace(record(), held_since=OFFSET)) == float("inf")
    assert time.comes(slot, replace(record(), held_total=500)) == pytest.approx(AT + 500, abs=2)


# --- how soon ------------------------------------------------------------------------------------------


def test_the_reaction_doubles_with_each_answer_that_was_used_too_late_and_comes_down_with_jobs() -> None:
    time = time_of(2)
    time.took(100, 100)
    time.lateness.add(0)
    lead = time.lead()
    seen = []
    for _ in range(20):
        seen.append(time.reaction)
        time.answer_came_late(10**9)
    assert seen[:4] == [REACTION, 2 * REACTION, 4 * REACTION, 8 * REACTION]
    assert seen[-1] == 1_000_000
    assert time.lead() - lead == 100_000  # a later one is granted late
    for _ in range(200):
        before = time.reaction
        time.job_began()
        assert REACTION * 7 // 8 <= time.reaction <= before
    assert time.reaction <= REACTION


def test_only_repetitions_wait_longer_for_an_answer_that_was_slow_itself() -> None:
    time = time_of(2)
    usual, notices = time.notice(0), []
    for _ in range(30):
        notices.append(time.notice(0))
        time.answer_came_late(REACTION)
    assert notices[:3] == [usual, 2 * usual, 4 * usual]
    assert notices[-1] == 1_000_000
    assert time.reaction == REACTION
    time.job_began()
    assert time.notice(0) == usual


def test_the_lead_has_room_for_two_slow_trips_and_a_late_timer() -> None:
    time = StoreTime()
    assert time.lead() == 50_000, "nothing is known yet"
    time.took(700, 700)
    assert time.lead() == 2 * 700 + 2_000, "how late this process wakes is not known yet"
    time.lateness.add(300)
    assert time.lead() == 2 * 700 + 300
    assert time.notice(0) == 700 + REACTION
    limited = replace(record(), settings=Settings(INTERVAL, max_running=1))
    assert (time.together(record()), time.together(limited), time.together(None)) == (50_000, 1_700, 50_000)
    time.took(30_000, 30_000)
    assert time.together(record()) == time.lead() > 60_000
    assert time.notice(0) == 30_000 + REACTION, "as long as there were only a few"
    for _ in range(8):
        time.took(700, 700)
    for _ in range(12):
        time.took(5_000, 5_000)
    assert time.notice(0) == 700 + REACTION, "the quicker answers count: a slow one is asked for again"


def test_answers_that_are_taken_in_late_let_slots_be_asked_about_a_little_earlier_only() -> None:
    """Slots that are granted long before they come would still start during a pause."""
    time = StoreTime()
    time.lateness.add(300)
    time.took(10_700, 700)
    assert time.lead() == 2 * 10_700 + 300
    time.took(300_000, 1_000)
    assert time.lead() == 2 * 1_000 + 100_000
    time.took(30_000, 30_000)
    assert time.lead() == 2 * 30_000 + 100_000
