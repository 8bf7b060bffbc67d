"""An interval that finds the server's limit, by the rules: its curve, its cuts, and their effect on slots."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from intervalq import rules
from intervalq._spec.auto import MAX_INTERVAL, SETTLED, cut, interval_at
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Auto,
    BadRecord,
    Configure,
    Finish,
    Hold,
    Inspect,
    Limit,
    Pace,
    Refusal,
    Resume,
    Settings,
    Slot,
    State,
)
from rule_steps import do

T0 = 1_000_000_000_000_000
SECOND = 1_000_000
AUTO = Auto(SECOND, 2_000)
SETTINGS = Settings(SECOND, auto=AUTO)
LEARNED = Pace(20_000, 22_000, 0, 0)
"""The rate was refused at 50/s."""


def take(
    state: State | None, now: int, count: int = 1, settings: Settings = SETTINGS
) -> tuple[State, Answer]:
    return do(
        state, Advance(settings=settings, nonce="g", generation="g" if state else None, take=count), now
    )


def busy(seconds: int, now: int = T0) -> State:
    """A queue all of whose slots were taken for some time."""
    state, _ = take(None, now)
    while state.due < now + seconds * SECOND:
        state, answer = take(state, state.due)
        granted = Advance(generation="g", slots=answer.taken)
        state, _ = do(state, granted, answer.taken[0].due)
    return state


def refuse(state: State, slot: Slot, length: int = 0, now: int | None = None) -> State:
    hold = Hold(generation="g", length=length, refusal=Refusal(slot.ticket, slot.due))
    return do(state, hold, state.last_now if now is None else now)[0]


def last(state: State) -> Slot:
    return Slot(state.ticket, state.due)


def test_before_the_first_refusal_the_rate_rises_from_the_floor_to_the_ceiling() -> None:
    intervals = [busy(seconds).settings.interval for seconds in (1, 2, 4, 8, 30)]
    assert intervals == sorted(intervals, reverse=True)
    assert SECOND // 2 <= intervals[1] <= SECOND
    assert intervals[-1] == AUTO.fastest


def test_a_night_without_jobs_teaches_nothing() -> None:
    state = busy(4)
    learned = state.settings.interval
    for night in range(1, 5):
        state, _ = take(state, T0 + night * 40_000 * SECOND)
        assert learned * 2 // 3 < state.settings.interval <= learned


def test_the_rate_returns_to_the_refused_one_and_then_exceeds_it() -> None:
    def at(seconds: float) -> int:
        return interval_at(AUTO, LEARNED, round(seconds * SECOND))

    assert at(0) == pytest.approx(LEARNED.base, rel=0.001)
    assert LEARNED.peak < at(10) < LEARNED.base
    assert at(31.5) == at(32) == LEARNED.peak
    assert at(34) == pytest.approx(LEARNED.peak, rel=0.02)
    assert at(40) == pytest.approx(LEARNED.peak / 2, rel=0.001)
    curve = [at(half / 2) for half in range(200)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == AUTO.fastest


def test_the_time_to_return_is_counted_in_starts_if_they_are_rare() -> None:
    pace, auto = Pace(10 * SECOND, 11 * SECOND, 0, 0), Auto(100 * SECOND, 1)
    assert interval_at(auto, pace, 2_900 * SECOND) > pace.peak
    assert interval_at(auto, pace, 3_200 * SECOND) == pace.peak


def test_it_is_a_pure_function_of_the_time_and_never_leaves_its_bounds_or_the_exact_numbers() -> None:
    draw = Random(1)
    for _ in range(3_000):
        slowest = draw.choice((1, 1_000, SECOND, MAX_INTERVAL))
        auto = Auto(slowest, max(1, slowest // draw.choice((1, 10, 10**9))))
        peak = draw.choice((0, auto.slowest, draw.randint(1, slowest)))
        base = min(MAX_INTERVAL, max(1, peak + draw.randint(0, peak)))
        pace = Pace(peak, base, T0, draw.randint(0, 9))
        due = T0 + draw.choice((-1, 0, draw.randint(0, 10**9), draw.randint(0, 10**14), FOREVER - T0))
        ticket = pace.cut_ticket + draw.choice((0, 1, 1_000, 10**9))
        assert auto.fastest <= interval_at(auto, pace, due) <= auto.slowest
        peak, base = cut(auto, pace, draw.randint(auto.fastest, slowest), Refusal(ticket, due))
        assert 1 <= peak <= base <= 2 * peak
        assert base <= auto.slowest


def test_one_event_is_one_cut_whoever_reports_it() -> None:
    state = busy(10)
    before, slots = state.settings.interval, [last(state)]
    state, answer = take(state, state.due, 3)
    slots += answer.taken
    cut_once = refuse(state, slots[0])
    assert cut_once.settings.interval >= 2 * before * 9 // 10
    for slot in slots:
        again = refuse(cut_once, slot)
        assert again.settings == cut_once.settings
        assert again.pace == cut_once.pace


def test_a_cut_revokes_what_is_not_granted_and_a_shorter_interval_does_not() -> None:
    state = busy(10)
    granted = last(state)
    state, answer = take(state, state.due, 3)
    assert state.revoked_through == 0
    state = refuse(state, granted)
    assert state.revoked_through == answer.taken[-1].ticket
    assert state.due == state.current_due
    assert state.due == pytest.approx(granted.due, abs=10)  # the tolerance became shorter meanwhile
    fresh = take(state, T0 + 100 * SECOND)[1].taken[0]
    assert fresh.due >= granted.due + state.settings.interval


def test_soon_after_a_cut_a_refusal_halves_the_rate_and_lets_the_server_forget() -> None:
    state = busy(10)
    state = replace(state, pace=Pace(20_000, 21_800, T0 - 100 * SECOND, 0))
    state = refuse(state, last(state))
    assert state.held_since is None
    usual = state.settings.interval
    state, _ = take(do(state, Resume(), state.last_now)[0], state.last_now + SECOND)
    state = refuse(state, last(state), length=10)
    assert state.settings.interval == pytest.approx(2 * usual, rel=0.05)
    assert state.held_until == state.last_now + SETTLED


def test_the_retry_after_and_the_cut_are_one_step() -> None:
    state = busy(10)
    before = state.settings.interval
    state = refuse(state, last(state), length=7 * SECOND)
    assert state.held_until == state.last_now + 7 * SECOND
    assert state.settings.interval > before


@pytest.mark.parametrize("generation", [None, "other"])
def test_a_refusal_of_another_record_holds_but_does_not_cut(generation: str | None) -> None:
    state = busy(10)
    hold = Hold(generation=generation, length=SECOND, refusal=Refusal(*last(state)[:2]))
    after, _ = do(state, hold, state.last_now)
    assert after.settings == state.settings
    assert after.held_until == state.last_now + SECOND


def test_a_queue_with_a_fixed_interval_only_holds() -> None:
    fixed = Settings(20_000)
    state, _ = take(None, T0, settings=fixed)
    after = refuse(state, last(state), length=SECOND)
    assert (after.settings, after.pace) == (fixed, None)
    assert after.held_until == T0 + SECOND


def test_slots_keep_their_distance_though_interval_and_tolerance_become_shorter() -> None:
    """A job may be late by the tolerance that held when its slot was granted, and the next one is in time."""
    state, _ = take(None, T0)
    late: int | None = None
    for _ in range(300):
        state, answer = take(state, state.due)
        slot = answer.taken[0]
        if late is not None:
            assert slot.due - late >= state.settings.interval - state.tolerance
        state, _ = do(state, Advance(generation="g", slots=(slot,)), slot.due)
        late = slot.due + state.tolerance
    assert state.settings.interval < SECOND // 5


def test_handles_agree_whatever_the_interval_is_now() -> None:
    state = busy(10)
    same, other = SETTINGS, replace(SETTINGS, auto=Auto(SECOND, 1_000))
    for settings, refused in ((same, False), (other, True), (Settings(SECOND), True)):
        command = Advance(settings=settings, nonce="n", attach=True)
        assert rules.apply(state, command, state.last_now)[1].refused is refused
    fixed, _ = take(None, T0, settings=Settings(SECOND))
    assert rules.apply(fixed, Advance(settings=SETTINGS, nonce="n", attach=True), T0)[1].refused


def test_a_configured_interval_ends_it_and_bounds_begin_it() -> None:
    state = refuse(busy(10), last(busy(10)))
    fixed, _ = do(state, Configure(interval=50_000), state.last_now)
    assert (fixed.settings, fixed.pace) == (Settings(50_000), None)
    again, _ = do(fixed, Configure(auto=AUTO), fixed.last_now)
    assert again.pace == Pace(0, 50_000, again.clock(again.last_now), again.ticket)
    others, _ = do(state, Configure(auto=Auto(SECOND, 700_000)), state.last_now)
    assert others.settings.interval == 700_000
    assert others.pace == state.pace
    burst, _ = do(state, Configure(burst=2), state.last_now)
    assert burst.settings == replace(state.settings, burst=2)


def test_units_of_limits_do_not_move_with_the_interval() -> None:
    limited = replace(SETTINGS, limits=(Limit(5, 10 * SECOND),))
    state, answer = take(None, T0, 1, limited)
    for _ in range(60):
        state, answer = take(state, max(state.due, answer.taken[0].due if answer.taken else 0), 1, limited)
        state, _ = do(state, Advance(generation="g", settings=limited, slots=answer.taken), state.due)
        assert sum(units for _, units, _ in state.usage[0].used) <= 5


def test_only_records_of_such_queues_have_its_numbers() -> None:
    state = busy(10)
    assert State.from_dict(state.to_dict()) == state
    fixed, _ = take(None, T0, settings=Settings(SECOND))
    assert "auto" not in fixed.to_dict()
    assert "settings_auto" not in Advance(settings=Settings(SECOND)).to_dict()
    assert Advance(settings=SETTINGS).to_dict()["settings_auto"] == [SECOND, 2_000]


@pytest.mark.parametrize(
    "auto",
    [
        7, [], [SECOND, 2_000, 0, SECOND, 0], [2_000, SECOND, 0, SECOND, 0, 0], [SECOND, 0, 0, SECOND, 0, 0],
        [MAX_INTERVAL + 1, 1, 0, 1, 0, 0], [SECOND, 1, 0, 0, 0, 0], [SECOND, 1, 5, 4, 0, 0],
        [SECOND, 1, 5, 11, 0, 0], [SECOND, 1, 0, 1, 0, -1], [SECOND, 1, 0, 1, 0, 10**6],
        [SECOND, 1, 0, 1, True, 0],
    ],
)  # fmt: skip
def test_a_record_with_broken_numbers_is_refused(auto: object) -> None:
    with pytest.raises(BadRecord, match="'auto'"):
        State.from_dict({**busy(1).to_dict(), "auto": auto})


def test_what_changes_nothing_leaves_the_pace() -> None:
    state = busy(5)
    for command in (Inspect(), Finish(generation="g"), Resume(), Hold(length=1)):
        after = rules.apply(state, command, state.last_now)[0]
        assert after is not None
        assert (after.pace, after.settings) == (state.pace, state.settings)
