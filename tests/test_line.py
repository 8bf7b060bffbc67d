"""The waiting jobs of one shard, in order: which one is next, and which have left."""

from __future__ import annotations

from intervalq._shard.wait_queue import Waiter, WaitQueue


def test_a_job_that_comes_again_finds_its_place_though_its_old_one_is_not_swept_yet() -> None:
    """This happens when a thread was too late for its slot."""
    line = WaitQueue()
    first, second, third = Waiter(), Waiter(), Waiter()
    for waiter in (first, second, third):
        line.add(waiter)
    line.remove(first)
    again = Waiter(order=first.order, again=True)
    line.add(again)
    assert list(line.in_order()) == [again, second, third]
    assert line.first() is again
    line.remove(again)
    line.remove(second)
    line.add(more := Waiter(order=second.order, again=True))
    assert list(line.in_order()) == [more, third]
    assert len(line) == 2


def test_higher_priorities_come_first_then_who_came_first() -> None:
    line = WaitQueue()
    low, high, middle, second = Waiter(priority=-1), Waiter(priority=5), Waiter(), Waiter()
    for waiter in (low, high, middle, second):
        line.add(waiter)
    assert list(line.in_order()) == [high, middle, second, low]


def test_a_line_that_many_left_keeps_no_trace_of_them() -> None:
    line = WaitQueue()
    waiters = [Waiter() for _ in range(1_000)]
    for waiter in waiters:
        line.add(waiter)
    for waiter in waiters[1:]:
        line.remove(waiter)
        line.remove(waiter)
    assert len(line) == 1
    assert sum(map(len, line._in_order)) <= 65
    assert line.first() is waiters[0]
