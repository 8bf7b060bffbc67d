"""Late grants: the answer to a shard that missed granted slots, or asked about them too late."""

from __future__ import annotations

from intervalq.rules import Advance, Answer, HighWaterMark, Settings, Slot, State
from rule_steps import do

INTERVAL = 100
TOLERANCE = 10
LEASE = 10_000
T0 = 1_000_000


def late(state: State, *slots: Slot, now: int, notice: int = 1) -> tuple[State, Answer]:
    """Ask for slots once more, as a shard does that has received all answers."""
    mark = HighWaterMark(state.ticket, state.due, state.late_total)
    ask = Advance(generation="g", slots=slots, notice=notice, lease=LEASE, until=now, high_water_mark=mark)
    return do(state, ask, now)


def limited(max_running: int) -> tuple[State, tuple[Slot, ...]]:
    """A queue that is full, because one shard was granted as many consecutive slots as jobs may run."""
    settings = Settings(INTERVAL, max_running=max_running, tolerance=TOLERANCE)
    take = Advance(settings=settings, nonce="g", take=max_running, reach=10 * INTERVAL, lease=LEASE)
    state, answer = do(None, take, T0)
    assert answer.begun == max_running
    assert state.held_since == T0
    return state, answer.taken


def window(state: State, slot: Slot) -> tuple[int, int]:
    """The time in which a job may begin in a granted slot, on the store's clock, as its shard computes it."""
    begins = slot.due + state.held_total
    return begins, begins + state.tolerance + state.credit


def test_on_a_full_queue_a_late_slot_ends_after_its_answer_came() -> None:
    """Its window must move although the queue's clock stands still, or its shard would ask for ever."""
    state, (one,) = limited(1)
    now = T0 + 5 * INTERVAL
    state, answer = late(state, one, now=now, notice=3)
    assert (answer.granted, answer.at_once) == ((1,), True)
    assert window(state, one)[1] == now + 3


def test_on_a_full_queue_the_slots_of_a_run_are_late_once() -> None:
    """After a late grant, the second slot is as far behind the first one as before."""
    state, (one, two) = limited(2)
    now = T0 + 5 * INTERVAL
    state, answer = late(state, one, two, now=now)
    assert (answer.granted, answer.at_once) == ((1, 2), True)
    assert window(state, two)[0] >= now + INTERVAL - TOLERANCE
    _, answer = late(state, two, now=now + 1)
    assert answer.granted == (2,)
    assert not answer.at_once, "its slot hasn't come: the first job may have begun a moment ago"


def running_late() -> tuple[State, tuple[Slot, ...], tuple[Slot, ...]]:
    """One shard has three consecutive slots and was granted the first; another has the two behind them."""
    settings = Settings(INTERVAL, tolerance=TOLERANCE)
    state, answer = do(None, Advance(settings=settings, nonce="g", take=3, reach=1), T0)
    assert answer.begun == 1
    state, others = do(state, Advance(generation="g", take=2), T0)
    return state, answer.taken, others.taken


def ask_ahead(state: State, slots: tuple[Slot, ...], ahead: int | None, now: int) -> tuple[State, Answer]:
    return do(state, Advance(generation="g", slots=slots, ahead=ahead, take=1), now)


def test_slots_that_are_further_ahead_than_their_owner_believes_are_not_granted_yet() -> None:
    """Otherwise a shard that missed a late grant would take the slots of others that are late as well."""
    state, (one, two, three), others = running_late()
    now = T0 + 5 * INTERVAL
    state, answer = late(state, one, now=now)
    assert answer.at_once
    asked_at = others[0].due - 20  # where it was before
    before, answer = ask_ahead(state, others, 20, max(now, asked_at))
    assert (answer.granted, answer.missed, answer.count) == ((), (), 1), "new tickets are issued all the same"
    assert before.current == 1
    state, answer = late(state, two, three, now=now + 4 * INTERVAL)
    assert answer.granted == (2, 3), "so these can be granted late"
    comes = others[0].due + state.held_total
    for ahead, at, granted in (
        (20, comes - 21, ()),
        (20, comes - 20, (4, 5)),
        (None, comes - 200, (4, 5)),
    ):
        assert ask_ahead(state, others, ahead, at)[1].granted == granted


def test_what_was_granted_before_is_granted_again_however_far_it_is() -> None:
    state, (one, _, _), _ = running_late()
    assert ask_ahead(state, (one,), 0, T0 - INTERVAL)[1].granted == (1,)


def test_new_slots_are_granted_ahead_only_behind_tickets_that_are_known() -> None:
    state, _, _ = running_late()
    mark = HighWaterMark(3, 0, 0)
    ahead = Advance(generation="g", take=1, reach=10 * INTERVAL, notice=1, high_water_mark=mark)
    assert do(state, ahead, T0)[1].begun == 0
    assert do(state, Advance(generation="g", take=1, reach=10 * INTERVAL), T0)[1].begun == 1
    last = HighWaterMark(state.ticket, state.due, 0)
    known = Advance(generation="g", take=1, reach=10 * INTERVAL, notice=1, high_water_mark=last)
    assert do(state, known, T0)[1].begun == 1
