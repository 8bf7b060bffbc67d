"""The rules for costs that are settled afterwards: the cell that they change, and when it is too late."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from intervalq import rules
from intervalq._spec import windows
from intervalq.rules import (
    Advance,
    Answer,
    Command,
    Configure,
    Hold,
    Limit,
    Resume,
    Settings,
    Settled,
    State,
    Units,
    Usage,
)
from window_oracle import run

SECOND = 1_000_000
T0 = 64 * 15_625_000 * SECOND
TOKENS = Limit(100, 64 * SECOND, "tokens")
"""In these tests, a cell is a second."""
SETTINGS = Settings(interval=1_000, limits=(TOKENS, Limit(1_000, 640 * SECOND, "bytes")))


def do(state: State | None, command: Command, now: int) -> tuple[State, Answer]:
    after, answer = rules.apply(state, command, now)
    assert after is not None
    assert State.from_dict(after.to_dict()) == after
    return after, answer


def begin(
    state: State | None, now: int, *units: Units, settings: Settings = SETTINGS
) -> tuple[State, Answer]:
    """Jobs that begin now."""
    count = len(units)
    return do(
        state,
        Advance(nonce="g", generation="g", take=count, units=units, reach=SECOND),
        now,
    )


def settle(state: State, now: int, due: int, *more: int, lag: int = 0, **options: Any) -> State:
    return do(state, Advance(**{"generation": "g", **options}, settled=(Settled(due, lag, more),)), now)[0]


def taken(state: State, place: int = 0) -> int:
    use = state.usage[place]
    return sum(cell[1] for cell in (*use.used, *use.ahead))


@pytest.fixture
def one() -> tuple[State, int]:
    """A record with one job, which took 60 tokens and 500 bytes by its estimate; and its slot."""
    state, answer = begin(
        rules.apply(None, Advance(settings=SETTINGS, nonce="g"), T0 - SECOND)[0], T0, (60, 500)
    )
    assert answer.begun == 1
    return state, answer.taken[0].due


@pytest.mark.parametrize("later", [0, 30 * SECOND])
def test_what_was_not_needed_is_free_at_once(one: tuple[State, int], later: int) -> None:
    state, due = one
    settled = settle(state, T0 + later, due, -20, -500)
    assert (taken(settled), taken(settled, 1)) == (40, 0)
    assert settled.usage[1] == Usage(), "a cell without units is none"
    _, before = begin(state, T0 + later, (60, 0))
    _, after = begin(settled, T0 + later, (60, 0))
    assert before.begun == 0
    assert after.begun == 1


@pytest.mark.parametrize("later", [0, 30 * SECOND])
def test_what_was_needed_beyond_the_estimate_delays_what_comes_next(
    one: tuple[State, int], later: int
) -> None:
    state, due = one
    settled = settle(state, T0 + later, due, 70)
    assert (taken(settled), taken(settled, 1)) == (130, 500), "it happened, so it counts"
    _, answer = begin(settled, T0 + later, (1, 0))
    assert answer.begun == 0
    assert answer.taken[0].due - due >= TOKENS.window


@pytest.mark.parametrize("more", [-20, 20])
def test_what_no_window_contains_any_more_is_not_changed(one: tuple[State, int], more: int) -> None:
    state, due = one
    state, _ = begin(state, T0 + 70 * SECOND, (50, 0))
    state, _ = do(state, Advance(generation="g"), T0 + 71 * SECOND)
    assert (taken(state), taken(state, 1)) == (50, 500)
    assert settle(state, T0 + 71 * SECOND, due, more).usage == state.usage


def test_what_a_job_gives_back_is_at_most_what_its_cell_has(one: tuple[State, int]) -> None:
    state, due = one
    assert taken(settle(state, T0, due, -80)) == 0
    state = settle(state, T0, due, -60)
    assert settle(state, T0, due, -60).usage == state.usage


def test_an_overrun_counts_where_its_cell_is_gone(one: tuple[State, int]) -> None:
    """The cell had no units left, or was lost in a failover."""
    state, due = one
    state = settle(state, T0, due, -60)
    ahead = settle(state, T0, due, 5).usage[0]
    assert (ahead.used, [units for _, units in ahead.ahead]) == ((), [5])
    used = settle(state, T0 + 30 * SECOND, due, 5).usage[0]
    assert ([units for _, units, _ in used.used], used.ahead) == ([5], ())
    assert settle(state, T0 + 66 * SECOND, due, 5).usage[0] == Usage()


@pytest.mark.parametrize("generation", ["other", None])
def test_what_belongs_to_another_record_is_not_counted_in_this(
    one: tuple[State, int], generation: str | None
) -> None:
    state, due = one
    for more in (-20, 20):
        assert settle(state, T0, due, more, generation=generation).usage == state.usage


def test_units_that_are_not_given_are_as_they_were(one: tuple[State, int]) -> None:
    state, due = one
    assert settle(state, T0, due).usage == state.usage
    assert taken(settle(state, T0, due, -20), 1) == 500


def split(first: int, second: int) -> tuple[State, tuple[int, int], tuple[int, int]]:
    """A record with a cell that a hold split, and the slot and lag of the jobs before and after the hold."""
    state, one = begin(rules.apply(None, Advance(settings=SETTINGS, nonce="g"), T0 - SECOND)[0], T0, (first,))
    state, _ = do(state, Hold(), T0 + 1)
    state, _ = do(state, Resume(), T0 + 30 * SECOND)
    state, other = begin(state, T0 + 30 * SECOND + 2_000, (second,))
    assert other.begun == 1
    before, after = ((each.taken[0].due, each.state.lag) for each in (one, other) if each.state is not None)
    assert windows.end_of_cell(TOKENS, before[0]) == windows.end_of_cell(TOKENS, after[0])
    return state, before, after


@pytest.mark.parametrize("later", [0, 20 * SECOND])
@pytest.mark.parametrize("more", [-30, 30])
def test_of_a_cell_that_a_hold_split_each_part_is_settled_by_itself(later: int, more: int) -> None:
    state, one, other = split(50, 40)
    for (due, lag), expected in ((one, [50 + more, 40]), (other, [50, 40 + more])):
        after = settle(state, T0 + 31 * SECOND + later, due, more, lag=lag).usage[0]
        assert [cell[1] for cell in (*after.used, *after.ahead)] == expected


def test_a_part_that_is_gone_takes_nothing_of_the_one_that_counts() -> None:
    """This happens when jobs run for long, and `max_running` holds the queue for as long."""
    state, (due, lag), _ = split(50, 40)
    state, _ = do(state, Advance(generation="g"), T0 + 70 * SECOND)
    for more in (-30, 30):
        assert settle(state, T0 + 70 * SECOND, due, more, lag=lag).usage == state.usage


def test_the_cell_is_found_after_a_hold_and_after_the_clock_was_set_back(one: tuple[State, int]) -> None:
    state, due = one
    state, _ = do(state, Hold(), T0 + 2)
    assert taken(settle(state, T0 + 20 * SECOND, due, -60)) == 0, "while it is held"
    state, _ = do(state, Resume(), T0 + 20 * SECOND)
    assert taken(settle(state, T0 + 21 * SECOND, due, -60)) == 0
    state, _ = do(state, Advance(generation="g"), T0 - 1_000 * SECOND)
    assert taken(settle(state, T0 - 1_000 * SECOND, due, -60)) == 0
    wide = replace(SETTINGS, burst=10)
    state, answer = begin(rules.apply(None, Advance(settings=wide, nonce="g"), T0)[0], T0, (60,))
    state, _ = do(state, Configure(burst=1), T0 + 1)
    assert taken(settle(state, T0 + 2, answer.taken[0].due, -60)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_as_if_the_cost_had_been_known(seed: int) -> None:
    """Every job is settled when it begins; without holds, the cells then contain the real units."""
    random = Random(seed)
    estimated, known = (rules.apply(None, Advance(settings=SETTINGS, nonce="g"), T0)[0] for _ in range(2))
    now = T0
    for _ in range(200):
        now += random.choice((0, 1_000, SECOND // 2, 3 * SECOND))
        real = random.randint(1, 20)
        known, answer = begin(known, now, (real,))
        if not answer.begun:
            return
        estimate = max(0, real + random.randint(-5, 30))
        estimated, guess = begin(estimated, now, (estimate,))
        if not guess.begun:
            return
        estimated = settle(estimated, now, guess.taken[0].due, real - estimate)
        assert estimated.usage == known.usage
    raise AssertionError("no window was ever full")


# --- how much of a limit is used --------------------------------------------------------------------


def backlog(settings: Settings, seed: int, length: int) -> tuple[int, int]:
    """The units that jobs take in a time if costs are settled as they begin, and how many they could take."""
    (limit,) = settings.limits
    draw = Random(seed)
    state, now = rules.apply(None, Advance(settings=settings, nonce="g"), T0)[0], T0
    jobs: list[tuple[int, int]] = []
    settled: tuple[Settled, ...] = ()
    total = 0
    while now < T0 + length:
        real = min(limit.most // 40, int(limit.most // 400 * draw.paretovariate(1.3)))
        jobs.append((real, min(limit.most // 10, real * draw.randint(1, 4))))
        estimate = jobs[-1][1]
        command = Advance(generation="g", take=1, units=((estimate,),), settled=settled)
        state, answer = do(state, command, now)
        (slot,) = answer.taken
        now = max(now, slot.due)
        state, answer = do(state, Advance(generation="g", slots=(slot,)), now)
        assert answer.granted == (slot.ticket,)
        settled = (Settled(slot.due, 0, (real - estimate,)),)
        total += real
    return total, allowed(limit, settings.interval, jobs, length)


def allowed(limit: Limit, interval: int, jobs: list[tuple[int, int]], length: int) -> int:
    """The units that the same jobs could take: each begins as soon as its estimate fits in."""
    now, counted, total = 0, 0, 0
    log: deque[tuple[int, int]] = deque()
    for real, estimate in jobs * 2:
        while log and (log[0][0] + limit.window <= now or counted + estimate > limit.most):
            now = max(now, log[0][0] + limit.window)
            counted -= log.popleft()[1]
        if now >= length:
            return total
        log.append((now, real))
        counted += real
        total += real
        now += interval
    raise AssertionError("there were too few jobs")


@pytest.mark.parametrize("seed", range(2))
def test_a_backlog_uses_nearly_all_that_is_allowed(seed: int) -> None:
    settings = Settings(interval=1_000, limits=(Limit(1_000_000, 10 * SECOND, "tokens"),))
    total, could = backlog(settings, seed, 200 * SECOND)
    assert could * 0.98 <= total <= could * 1.005, "by cells, some begin later than they could"


# --- bugs that the judge of every window sees -------------------------------------------------------

_SETTLE = windows.settle


def twice(state: State, settled: Any) -> State:
    return _SETTLE(_SETTLE(state, settled), settled)


def of_another_limit(state: State, settled: Any) -> State:
    return _SETTLE(state, [each._replace(more=tuple(reversed(each.more))) for each in settled])


def of_the_last_cell(state: State, settled: Any) -> State:
    """A refund is taken from the newest cell, as with a bucket that has no cells."""
    return _SETTLE(state, [each._replace(due=state.current_due) for each in settled])


@pytest.mark.parametrize(("bug", "seed"), [(twice, 123), (of_another_limit, 112), (of_the_last_cell, 42)])
def test_the_judge_sees_what_gives_back_too_much(
    bug: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeds are the first ones that show the bug."""
    assert not run(seed).over()
    monkeypatch.setattr(windows, "settle", bug)
    assert run(seed).over()
