"""The waiting jobs of one shard, in order: which one is next, and which have left."""

from __future__ import annotations

from intervalq._shard.wait_queue import Waiter, WaitQueue


def test_a_job_that_comes_again_finds_its_place_though_its_old_one_is_not_swept_yet() -> None:
    """This happens when a thread was too late for its slot."""
    queue = WaitQueue()
    first, second, third = Waiter(), Waiter(), Waiter()
    for waiter in (first, second, third):
        queue.add(waiter)
    queue.remove(first)
    again = Waiter(order=first.order, again=True)
    queue.add(again)
    assert list(queue.in_order()) == [again, second, third]
    assert queue.first() is again
    queue.remove(again)
    queue.remove(second)
    queue.add(more := Waiter(order=second.order, again=True))
    assert list(queue.in_order()) == [more, third]
    assert len(queue) == 2


def test_higher_priorities_come_first_then_who_came_first() -> None:
    queue = WaitQueue()
    low, high, middle, second = Waiter(priority=-1), Waiter(priority=5), Waiter(), Waiter()
    for waiter in (low, high, middle, second):
        queue.add(waiter)
    assert list(queue.in_order()) == [high, middle, second, low]


def test_a_wait_queue_that_many_left_keeps_no_trace_of_them() -> None:
    queue = WaitQueue()
    waiters = [Waiter() for _ in range(1_000)]
    for waiter in waiters:
        queue.add(waiter)
    for waiter in waiters[1:]:
        queue.remove(waiter)
        queue.remove(waiter)
    assert len(queue) == 1
    assert sum(map(len, queue._in_order)) <= 65
    assert queue.first() is waiters[0]


def test_a_job_is_not_behind_itself() -> None:
    queue = WaitQueue()
    first, second = Waiter(), Waiter()
    queue.add(first)
    queue.add(second)
    assert queue.has_behind(first.order)
    assert not queue.has_behind(second.order)
    queue.add(Waiter(priority=-1))
    assert queue.has_behind(second.order)
