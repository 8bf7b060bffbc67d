"""When a shard asks, and what for: tables of `plan`, without an event loop, a clock or a store."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from intervalq._shard.planner import Ask, next_question, plan
from intervalq._shard.store_time import REACTION
from intervalq._shard.wait_queue import Waiter
from intervalq.rules import FOREVER, MAX_TICKETS, Settings, Slot
from situations import AT, INTERVAL, LATE, LEAD, TOGETHER, TRIP, asked, situation, slot, tickets_asked

NOTICE = TRIP + REACTION
RIDE = 50_000


def row(first: int, ahead: int, count: int, step: int = INTERVAL) -> list[Slot]:
    return [slot(first + n, ahead + n * step) for n in range(count)]


# --- when to ask about a ticket ---------------------------------------------------------------------


def test_a_ticket_is_asked_about_when_it_is_due_and_not_before() -> None:
    assert tickets_asked(situation([slot(7, LEAD + 1)])) == [7]
    assert plan(situation([slot(7, LEAD + 20)])) == pytest.approx(AT + 18, abs=2)
    assert plan(situation([slot(7, 10**9)])) == pytest.approx(AT + 10**9 - LEAD, abs=10**6)


def test_a_ticket_of_a_job_that_begins_early_is_due_earlier() -> None:
    early = Waiter(early=2_000)
    assert tickets_asked(situation([slot(7, LEAD + 2_001)], jobs=[early])) == [7]
    assert plan(situation([slot(7, LEAD + 2_020)], jobs=[early])) == pytest.approx(AT + 17, abs=3)
    assert asked(situation([slot(7, 0)], jobs=[early])).notice == pytest.approx(NOTICE + 2_000, abs=5)


def test_a_held_queue_moves_its_slots() -> None:
    assert plan(situation([slot(7, LEAD)], fields={"held_total": 20})) == pytest.approx(AT + 18, abs=2)
    paused = {"held_since": AT - 5, "held_until": FOREVER}
    assert plan(situation([slot(7, -5)], fields=paused)) == math.inf


WAITS = {
    "nobody waits": ({"jobs": 0}, math.inf),
    "all jobs have grants": ({"granted": [slot(1, 9_000)], "jobs": 1}, math.inf),
    "lookahead is used up": (
        {"granted": [slot(1, 9_000)], "jobs": 3, "lookahead": 1, "tickets": [slot(2, 109_000)]},
        AT + 109_000 - 1 - LEAD,
    ),
    "the next ticket": ({"tickets": row(1, 9_000, 3), "jobs": 3}, AT + 9_000 - 1 - LEAD),
}


@pytest.mark.parametrize("what", WAITS)
def test_until_when_there_is_nothing_to_ask(what: str) -> None:
    options, until = WAITS[what]
    assert plan(situation(**options)) == pytest.approx(until, abs=100)  # type: ignore[arg-type]


def test_who_waits_and_has_nothing_asks_at_once() -> None:
    for known in (False, True):
        ask = asked(situation(known=known))
        assert (ask.slots, ask.costs) == ((), (1,))


def test_tickets_behind_the_last_grant_are_asked_for_before_it_comes() -> None:
    now = situation([], [slot(1, 9_000)], jobs=2, lookahead=2, fields={"due": AT + 9_000})
    then = next_question(now)
    assert then == pytest.approx(AT + 9_000 - LEAD, abs=10)
    assert plan(now) == then, "it is soon"
    assert asked(replace(now, at=round(then))).costs == (1,)


# --- what is listed ---------------------------------------------------------------------------------


def test_only_a_row_without_a_gap_is_listed() -> None:
    tickets = [slot(5, 0), slot(6, 5_000), slot(8, 10_000), slot(9, 15_000)]
    assert tickets_asked(situation(tickets, jobs=4)) == [5, 6]


def test_slots_that_come_soon_after_are_listed_too() -> None:
    for ahead, listed in ((0, [1, 2, 3]), (-5_000, [1, 2, 3]), (2_000, [1, 2])):
        assert tickets_asked(situation(row(1, ahead, 9, 25_000), jobs=9)) == listed


def test_with_a_limit_of_running_jobs_they_are_not() -> None:
    settings = Settings(10_000, max_running=5)
    assert tickets_asked(situation(row(1, 0, 9, 10_000), jobs=9, settings=settings)) == [1]


def test_what_was_granted_before_is_listed_with_the_first_that_is_over() -> None:
    """They are listed however far ahead they are, but not behind a gap, where another shard has a grant."""
    tickets = row(1, -500_000, 6)
    assert tickets_asked(situation(tickets, jobs=6)) == [1]
    assert tickets_asked(situation(tickets, jobs=6, fields={"current": 5})) == [1, 2, 3, 4, 5]
    del tickets[2]
    assert tickets_asked(situation(tickets, jobs=6, fields={"current": 5})) == [1, 2]


def test_at_the_limit_only_tickets_with_a_lease_are_asked_about() -> None:
    """These tickets hold the queue: the shard did not hear of their grants, or missed the slots."""
    settings = Settings(INTERVAL, max_running=2)
    full = {"held_since": AT - 10, "running": {3: AT + INTERVAL, 4: AT + INTERVAL}, "current": 4}
    assert tickets_asked(situation(row(3, 10**6, 3), jobs=3, settings=settings, fields=full)) == [3, 4]
    assert tickets_asked(situation(row(4, 10**6, 2), jobs=2, settings=settings, fields=full)) == [4]
    assert plan(situation(row(5, -10, 1), jobs=1, settings=settings, fields=full)) == math.inf
    paused = full | {"held_until": FOREVER}
    assert plan(situation(row(3, 10**6, 3), jobs=3, settings=settings, fields=paused)) == math.inf


# --- what is taken ----------------------------------------------------------------------------------


def test_new_tickets_ride_along_with_a_question_that_is_near() -> None:
    near, far = slot(1, LEAD + 1 + RIDE), slot(1, LEAD + 100 + RIDE)
    decision = plan(situation([near], jobs=3, fields={"due": AT + INTERVAL}))
    assert decision == pytest.approx(AT + RIDE, abs=100)
    assert asked(situation([far], jobs=3)).costs == (1, 1)
    assert asked(situation([slot(1, 0)], jobs=3)).costs == (1, 1)


COSTS = {
    "in the order of the jobs": ([1, 3, 1, 2], [], (1, 3, 1, 2)),
    "those that come are used first": ([1, 3, 1, 2], [1], (3, 1, 2)),
    "a dearer one does": ([1, 3], [3], (3,)),
    "cheaper ones are passed": ([3, 1, 1], [1, 1, 3, 1], (1,)),
    "none fits": ([3, 1], [1, 1], (3, 1)),
    "the first to fit": ([2, 1, 2], [1, 2, 1, 1, 2], ()),
    "nothing is left": ([2], [], (2,)),
}


@pytest.mark.parametrize("what", COSTS)
def test_costs_are_matched_with_the_slots_that_come(what: str) -> None:
    jobs, coming, taken = COSTS[what]
    for granted in range(len(coming) + 1):
        slots = [slot(n, RIDE * 2 * n + 10 * LEAD, cost) for n, cost in enumerate(coming, 1)]
        now = situation(slots[granted:], slots[:granted], jobs=[Waiter(cost=cost) for cost in jobs])
        decision = plan(now)
        assert (decision.costs if isinstance(decision, Ask) else ()) == taken


def test_one_question_takes_so_many_tickets_and_no_more() -> None:
    assert asked(situation(jobs=5_000, lookahead=None)).costs == (1,) * MAX_TICKETS
    dear = [Waiter(cost=2) for _ in range(1_500)]
    assert asked(situation(jobs=dear, lookahead=None)).costs == (2,) * MAX_TICKETS


def test_a_lookahead_of_one_takes_the_next_ticket_with_the_grant_of_the_last() -> None:
    ask = asked(situation([slot(1, 0)], jobs=5, lookahead=1))
    assert (tuple(each.ticket for each in ask.slots), ask.costs) == ((1,), (1,))


SPECULATIVE = {
    "twice as many as began": (Settings(10), 5, None, 10),
    "for a millisecond": (Settings(10), 500, None, 100),
    "for a millisecond of longer intervals": (Settings(100), 500, None, 10),
    "not at longer ones": (Settings(101), 500, None, 0),
    "within the lookahead": (Settings(10), 500, 16, 15),
    "nobody began": (Settings(10), 0, None, 0),
    "with a limit of running jobs": (Settings(10, max_running=3), 5, None, 0),
}


@pytest.mark.parametrize("what", SPECULATIVE)
def test_tickets_for_jobs_that_are_likely_to_come(what: str) -> None:
    settings, began, lookahead, expected = SPECULATIVE[what]
    ask = asked(situation(jobs=1, settings=settings, began=began, lookahead=lookahead))
    assert ask.speculative == expected
    assert ask.costs == (1,) * (1 + expected)


def test_slots_that_are_granted_count_too() -> None:
    """A process that dies leaves at most as many slots empty as its lookahead."""
    ask = asked(situation([], row(1, 5, 2, 10), jobs=3, settings=Settings(10), began=50, lookahead=5))
    assert ask.costs == (1,) * 3


def test_without_a_job_that_waits_nothing_is_likely() -> None:
    assert plan(situation(jobs=0, settings=Settings(10), began=100)) == math.inf


# --- how far ahead, and how soon ----------------------------------------------------------------------


def test_new_slots_are_granted_far_ahead_only_behind_ones_own() -> None:
    own, others = situation([slot(4, 0)], jobs=3), situation([slot(4, 0)], jobs=3, fields={"ticket": 9})
    assert asked(own).reach == TOGETHER
    assert asked(others).reach == LEAD, "the owner of the slot before it may still be late"
    granted = [slot(4, 200_000)]
    assert asked(situation([], granted, jobs=3)).reach == TOGETHER
    assert asked(situation([], granted, jobs=3, fields={"ticket": 9})).reach == LEAD
    limited = Settings(INTERVAL, max_running=2)
    assert asked(situation([slot(4, 0)], jobs=3, settings=limited)).reach == LEAD


def test_no_new_slot_is_granted_before_a_ticket_that_is_not() -> None:
    assert asked(situation([slot(1, 0), slot(2, INTERVAL)], jobs=5)).reach == 0


def test_a_slot_behind_somebody_elses_is_asked_about_once_that_is_over() -> None:
    """Its owner may be late, and gets it if nobody has a later one; the shard's own slots need no wait."""
    for before, interval, lead in (
        (6, 2_500, LEAD),
        (5, 3_100, 3_100 - 310 - REACTION - LATE),
        (5, 1_000, 2 * TRIP),  # with a shorter notice, answers would come too late
        (5, 5_000, LEAD),
    ):
        now = situation([slot(7, 40_000)], [slot(before, -9_000)], settings=Settings(interval))
        now.grants.granted.clear()
        assert plan(now) == pytest.approx(AT + 40_000 - lead, abs=30), (before, interval)


def test_a_question_says_how_near_its_slots_should_be() -> None:
    now = situation([slot(7, 100), slot(8, 5_000)], settings=Settings(10_000))
    assert asked(now).ahead == pytest.approx(LEAD + 10_000, abs=10), "others may have moved it by an interval"


def test_tickets_are_taken_together_once_those_before_are_used() -> None:
    """Behind other shards' tickets there is no hurry; behind its own, it takes more before they run out."""
    granted, settings = row(1, 1_000, 4, 2_000), Settings(2_000)
    others = situation([], granted, jobs=8, settings=settings, fields={"ticket": 20, "due": AT + 45_000})
    assert plan(others) == pytest.approx(AT + 7_000 + 300, abs=30)
    assert asked(replace(others, at=AT + 7_400)).costs == (1,) * 4
    alone = situation([], granted, jobs=8, settings=settings, fields={"due": AT + 7_000})
    assert plan(alone) == pytest.approx(AT + 7_000 - LEAD, abs=30)
    far = situation([slot(30, 900_000)], granted, jobs=9, settings=settings, fields={"due": AT + 900_000})
    assert plan(far) == pytest.approx(AT + 7_000 + 300, abs=30), "what lies far behind is another run"


def test_a_burst_gives_all_of_its_jobs_the_time_to_begin() -> None:
    assert asked(situation(jobs=9)).notice == pytest.approx(NOTICE, abs=5)
    burst = asked(situation(jobs=9, settings=Settings(INTERVAL, burst=20)))
    assert burst.notice == pytest.approx(NOTICE + 90, abs=5)


def test_a_slot_that_is_set_back_lies_a_whole_interval_behind_the_last_start() -> None:
    """A slot that stays where it is may come half a tolerance sooner after it."""
    settings = Settings(40_000)
    stays = asked(situation([slot(7, -2_000)], settings=settings, apart=AT + 3_000))
    assert stays.notice == pytest.approx(1_000 + REACTION, abs=10)
    set_back = asked(situation([slot(7, -9_000)], settings=settings, apart=AT + 3_000))
    assert set_back.notice == pytest.approx(3_000 + REACTION, abs=10)


def test_at_the_limit_a_slot_with_a_lease_keeps_its_distance_from_the_last_start_too() -> None:
    """The queue's clock stands still, but the slot ends: asked for as it is, it would end again and again."""
    settings = Settings(40_000, max_running=1)
    full = {"held_since": AT - 9_000, "running": {7: AT + INTERVAL}, "current": 7}
    for ahead, notice in ((-9_000, 3_000 + REACTION), (-2_000, 1_000 + REACTION), (20, NOTICE)):
        now = situation([slot(7, ahead)], settings=settings, fields=full, apart=AT + 3_000)
        assert asked(now).notice == pytest.approx(notice, abs=10)


def test_a_slot_that_a_late_start_has_moved_stays_moved_when_it_is_asked_for_again() -> None:
    """If it had moved by more than the tolerance, it is set back: later slots keep their distance."""
    settings = Settings(40_000)
    for shift, notice in ((0, 1_000), (3_900, 1_900), (4_100, 3_000)):
        now = situation([], [slot(7, -2_000)], settings=settings, apart=AT + 3_000)
        now.grants.granted[0].shift = shift
        now.grants.ask_again()
        assert asked(now).notice == pytest.approx(notice + REACTION, abs=10)
        now.grants.ask_again()
        assert asked(now).notice == pytest.approx(1_000 + REACTION, abs=10), "nothing has moved since"
