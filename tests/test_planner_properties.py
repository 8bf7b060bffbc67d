"""Properties of `plan` in all situations: its questions are due and within the limits, and waits end."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from intervalq._shard.planner import Ask, Situation, plan
from intervalq._shard.wait_queue import Waiter
from intervalq.rules import FOREVER, Settings, Slot
from situations import AT, INTERVAL, LEAD, TOGETHER, situation, tickets_asked


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    interval = draw(st.sampled_from([10, 100, 1_000, 10_000, 100_000, INTERVAL]))
    number, due, slots = draw(st.integers(1, 5)), AT + draw(st.integers(-30_000, 60_000)), []
    for _ in range(draw(st.integers(0, 8))):
        cost = draw(st.sampled_from([1, 1, 1, 2, 5]))
        slots.append(Slot(number, due, cost))
        others = draw(st.sampled_from([0, 0, 0, 1, 3]))
        number, due = number + 1 + others, due + interval * (cost + others)
    granted = draw(st.integers(0, len(slots)))
    last = number + draw(st.integers(0, 2)) - 1
    limit = draw(st.sampled_from([0, 0, 2]))
    held: dict[str, Any] = {}
    if draw(st.integers(0, 4)) == 0:
        held["held_since"] = AT - draw(st.integers(0, 10_000))
        if limit:
            held["running"] = dict.fromkeys(range(max(1, last - 1), last + 1), AT + 10**7)
        else:
            held["held_until"] = FOREVER
    jobs = [
        Waiter(cost=draw(st.sampled_from([1, 1, 1, 2, 5])), early=draw(st.sampled_from([0, 0, 2_000])))
        for _ in range(draw(st.integers(0, 9)))
    ]
    return situation(
        slots[granted:],
        slots[:granted],
        jobs=jobs,
        settings=Settings(interval, max_running=limit),
        fields={"ticket": last, "current": draw(st.integers(0, last))} | held,
        lookahead=draw(st.sampled_from([1, 2, 5, 16, None])),
        began=draw(st.integers(0, 50)),
    )


def is_due(now: Situation, slot: Slot) -> bool:
    state, first = now.state, now.wait_queue.first()
    assert state is not None
    if state.held_since is not None:
        return not state.held_until and slot.ticket in state.running
    early = 0 if first is None else first.early
    lead = LEAD if slot.ticket <= now.grants.through + 1 else now.time.lead_behind(state)
    return now.time.comes(slot, state) - lead - early <= now.at


@given(situations())
def test_what_is_listed_is_due_and_a_row(now: Situation) -> None:
    decision, tickets, state = plan(now), [*now.grants.tickets], now.state
    assert state is not None
    listed = [*decision.slots] if isinstance(decision, Ask) else []
    assert listed == tickets[: len(listed)]
    assert bool(listed) == bool(tickets and is_due(now, tickets[0])), "all that is due is asked about at once"
    for before, after in pairwise(listed):
        assert after.ticket == before.ticket + 1
        if state.held_since is not None:
            assert after.ticket in state.running
        else:
            together = LEAD if state.settings.max_running else TOGETHER
            assert after.ticket <= state.current or after.due <= max(AT, listed[0].due) + together
    if listed and state.held_since is None:
        # All tickets that a late grant needs, as far as the shard has them: up to the last one granted.
        rest = tickets[len(listed) :]
        assert not (rest and rest[0].ticket == listed[-1].ticket + 1 and rest[0].ticket <= state.current)


@given(situations())
def test_no_more_is_taken_than_the_lookahead_allows_or_jobs_wait(now: Situation) -> None:
    decision = plan(now)
    if isinstance(decision, Ask):
        waiting = len(now.grants.tickets) - len(decision.slots)
        taken = len(decision.costs)
        if taken and now.lookahead is not None:
            most = max(2, now.lookahead)
            assert taken <= most
            if not now.wait_queue.mixed:  # otherwise tickets that are too cheap are passed over
                assert waiting + taken <= now.lookahead
                assert now.grants.granted_count + len(decision.slots) + waiting + taken <= most
        jobs = [waiter.cost for waiter in now.wait_queue.in_order()]
        needed = decision.costs[: taken - decision.speculative]
        places = iter(jobs)
        assert all(cost in places for cost in needed), "costs are those of jobs, in their order"
        assert decision.speculative == 0 or taken > decision.speculative


@given(situations())
def test_an_instant_to_wait_for_is_one_at_which_there_is_something_to_ask(now: Situation) -> None:
    decision = plan(now)
    if not isinstance(decision, Ask) and AT < decision < math.inf:
        later = replace(now, at=math.ceil(decision))
        if now.grants.tickets:
            assert tickets_asked(later)
        else:
            assert isinstance(plan(later), Ask) or now.grants.granted, "or as many are granted as may be"


@given(situations())
def test_to_plan_changes_nothing(now: Situation) -> None:
    before = ([*now.grants.tickets], now.grants.granted_count, now.wait_queue.waiting)
    assert plan(now) == plan(now)
    assert before == ([*now.grants.tickets], now.grants.granted_count, now.wait_queue.waiting)
