"""Late grants: what a shard gets that comes too late for slots which it was granted, or never asked about."""

from __future__ import annotations

from intervalq import rules
from intervalq.rules import Advance, Answer, Command, Mark, Settings, Slot, State

INTERVAL = 100
TOLERANCE = 10
LEASE = 10_000
T0 = 1_000_000


def do(state: State | None, command: Command, now: int) -> tuple[State, Answer]:
    after, answer = rules.apply(state, command, now)
    assert after is not None
    return after, answer


def late(state: State, *slots: Slot, now: int, notice: int = 1) -> tuple[State, Answer]:
    """Ask for slots once more, as a shard does that has heard all answers."""
    mark = Mark(state.ticket, state.due, state.late_total)
    ask = Advance(generation="g", slots=slots, notice=notice, lease=LEASE, until=now, high_water_mark=mark)
    return do(state, ask, now)


def limited(max_running: int) -> tuple[State, tuple[Slot, ...]]:
    """A queue that is full: one shard was granted as many slots in a row as may run."""
    settings = Settings(INTERVAL, max_running=max_running, tolerance=TOLERANCE)
    take = Advance(settings=settings, nonce="g", take=max_running, reach=10 * INTERVAL, lease=LEASE)
    state, answer = do(None, take, T0)
    assert answer.begun == max_running
    assert state.held_since == T0
    return state, answer.taken


def window(state: State, slot: Slot) -> tuple[int, int]:
    """When a job may begin in a granted slot, on the store's clock, as its shard finds it."""
    begins = slot.due + state.held_total
    return begins, begins + state.tolerance + state.credit


def test_on_a_full_queue_a_late_slot_ends_after_its_answer_came() -> None:
    """Its window has to move, though the queue's clock stands still: else its shard asks for ever."""
    state, (one,) = limited(1)
    now = T0 + 5 * INTERVAL
    state, answer = late(state, one, now=now, notice=3)
    assert (answer.granted, answer.at_once) == ((1,), True)
    assert window(state, one)[1] == now + 3


def test_on_a_full_queue_the_slots_of_a_run_are_late_once() -> None:
    """The second slot is as far behind the first one after it was granted late as before."""
    state, (one, two) = limited(2)
    now = T0 + 5 * INTERVAL
    state, answer = late(state, one, two, now=now)
    assert (answer.granted, answer.at_once) == ((1, 2), True)
    assert window(state, two)[0] >= now + INTERVAL - TOLERANCE
    _, answer = late(state, two, now=now + 1)
    assert answer.granted == (2,)
    assert not answer.at_once, "its slot hasn't come: the first job may have begun a moment ago"
