"""Parts of the shard by themselves: sweeping the waiting jobs, slots, and the pauses of an outage."""

from __future__ import annotations

import random

import pytest

from intervalq._shard.grants import GrantRange, Grants
from intervalq._shard.planner import Ask
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._timing.outage import OUTAGE, Outage
from intervalq.rules import Inspect, Settings, Slot
from intervalq.testing import virtual_clock
from intervalq_stores.memory.queues import MemoryStore


class Counted(WaitQueue):
    """A queue of waiting jobs that counts how often it was swept."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = 0

    def _sweep(self) -> None:
        self.sweeps += 1
        super()._sweep()


def kept(queue: WaitQueue) -> int:
    return sum(len(rank) for rank in queue._ranks.values())


def test_a_line_is_swept_seldom_and_keeps_few_that_have_left() -> None:
    queue = Counted()
    waiters = [Waiter() for _ in range(1_000)]
    for waiter in waiters:
        queue.add(waiter)
    assert kept(queue) == 1_000
    for waiter in waiters[:100]:
        queue.remove(waiter)
        queue.first()
    assert kept(queue) == 900
    assert queue.sweeps == 0, "those in front go as they come up"
    for waiter in reversed(waiters[101:]):
        queue.remove(waiter)
        assert kept(queue) <= max(64, 2 * queue.waiting + 2)
    assert 1 <= queue.sweeps <= 5
    assert list(queue.in_order()) == [waiters[100]]


def test_a_short_line_is_not_swept() -> None:
    queue = Counted()
    waiters = [Waiter() for _ in range(60)]
    for waiter in waiters:
        queue.add(waiter)
    for waiter in waiters[1:]:
        queue.remove(waiter)
    assert queue.sweeps == 0


def test_after_a_sweep_the_order_is_what_it_was_and_new_jobs_find_their_place() -> None:
    queue = Counted()
    urgent = [Waiter(priority=9) for _ in range(62)]
    jobs = [Waiter(priority=n % 3) for n in range(60)]
    for waiter in urgent + jobs:
        queue.add(waiter)
    for waiter in urgent:
        queue.remove(waiter)
    assert queue.sweeps == 1
    assert [rank[0].order[0] for rank in queue._in_order] == [-2, -1, 0]
    queue.add(late := Waiter(priority=1))
    queue.add(again := Waiter(priority=9))
    expected = sorted([*jobs, late, again], key=lambda waiter: waiter.order)
    assert list(queue.in_order()) == expected
    assert queue.first() is again
    assert len(queue) == 62


def test_the_line_remembers_that_a_job_needed_more_than_one_slot() -> None:
    queue = WaitQueue()
    queue.add(Waiter())
    assert not queue.mixed
    queue.add(dear := Waiter(cost=2))
    queue.remove(dear)
    assert queue.mixed


def coming(shard: Shard, costs: list[int], waiters: list[Waiter]) -> list[int | None]:
    """The tickets that jobs can expect if slots have these costs, of which the first was granted."""
    tickets = [Slot(n, 10 * n, cost) for n, cost in enumerate(costs, 1)]
    shard.grants.granted.append(GrantRange(tickets[0], held_total=0, steps=0))
    shard.grants.tickets.extend(tickets[1:])
    for waiter in waiters:
        shard.wait_queue.add(waiter)
    expected = [shard.expected(waiter) for waiter in waiters]
    return [None if slot is None else slot.ticket for slot in expected]


def test_the_slot_to_expect_is_the_first_that_pays_for_the_job_behind_those_of_the_jobs_before() -> None:
    for costs, jobs, expected in (
        ([1, 1, 1], [1, 1], [1, 2]),
        ([1, 1], [1, 1, 1], [1, 2, None]),
        ([1, 3, 1], [1, 3, 1], [1, 2, 3]),
        ([1, 3, 1], [2, 1], [2, 3]),
        ([3, 1], [1, 3], [1, None]),
        ([1, 1], [2, 1], [None, None]),
    ):
        shard = Shard("q", MemoryStore(), None, lookahead=None)
        assert coming(shard, costs, [Waiter(cost=cost) for cost in jobs]) == expected


def test_the_instant_of_a_slot_is_told_in_seconds() -> None:
    run = GrantRange(Slot(7, 1_000_000), held_total=500_000, steps=0, count=2, step=1_000_000)
    grants = Grants()
    grants.grant(run)
    assert [grants.use().due for _ in range(2)] == [1.5, 2.5]


def test_slots_of_a_record_that_is_gone_are_not_given_back() -> None:
    slots = Grants()
    slots.unused.append(Slot(1, 0))
    slots.forget()
    assert slots.given_back(1) == ()


async def test_slots_that_are_kept_for_another_to_give_back_are_told() -> None:
    """Only those that may become free again: behind them, others have none."""
    shard = Shard("q", MemoryStore(), Settings(interval=1_000_000), lookahead=16)
    kept: list[Slot] = []
    shard.conversation.kept = kept
    await shard.slot(Waiter())
    for _ in range(3):
        shard.enter(Waiter())
    await shard.placed()
    await shard.close(drain=False)
    assert [slot.ticket for slot in kept] == [2, 3, 4]
    state = (await shard.store.apply("q", Inspect())).state
    assert state is not None
    assert state.ticket == 4, "the shard has given none of them back"


def test_a_request_that_gives_long_notice_may_still_be_granted_late() -> None:
    """A process that is slow, or whose last start is near, asks for a slot that ends long after that."""
    shard = Shard("q", MemoryStore(), Settings(interval=2_000_000), lookahead=16)
    now = shard.clock.now()
    shard.time.reading(now, now, now)
    ask = Ask(
        slots=(Slot(1, now),), costs=(), units=(), speculative=0, notice=900_000, reach=900_000, ahead=0
    )
    command = shard.connection.advance(ask, ())
    until = shard.connection._up_to_date(command, shard.time.clock.steps).until
    assert until is not None
    assert until >= shard.time.clock.latest(now) + ask.notice


async def test_a_shard_is_not_used_under_another_clock() -> None:
    shard = Shard("q", MemoryStore(), Settings(interval=1_000_000), lookahead=16)
    assert not shard.is_replaced
    with virtual_clock():
        assert shard.is_replaced


def test_tickets_that_are_passed_go_back() -> None:
    slots = Grants()
    slots.tickets += [Slot(1, 0), Slot(2, 5)]
    assert slots.pass_all() == 2
    assert slots.given_back(2) == (Slot(1, 0), Slot(2, 5))
    assert not slots


def test_the_pauses_of_an_outage_grow_and_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "randint", lambda _, most: most)
    outage = Outage()
    for _ in range(2):
        assert not outage
        assert outage.began(5)
        assert outage
        assert not outage.began(6)
        pauses = [outage.again(0) for _ in range(9)]
        assert pauses[:3] == [50_000, 100_000, 200_000]
        assert pauses[-1] == 5_000_000
        assert not outage.is_over(4 + OUTAGE)
        assert outage.is_over(5 + OUTAGE)
        outage.ended()


def test_an_outage_lasts_while_there_is_nothing_to_ask_for_less_than_a_pause() -> None:
    outage = Outage()
    assert outage.began(0)
    again = outage.again(0)
    outage.rested(again + 5_000_000)
    assert outage
    outage.rested(again + 5_000_001)
    assert not outage
