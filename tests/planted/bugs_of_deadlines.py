"""Bugs of jobs that must begin in time: refused without reason, too late, or with a wrong word on when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from intervalq._shard.deadlines import Deadlines
from intervalq._shard.wait_queue import Waiter
from intervalq._spec.standing import NextSlots
from intervalq.rules import FOREVER, State
from planted.planting import bug, instead

_NEXT_DUE: Final = Deadlines._next_due
_WAIT: Final = Deadlines.wait


@bug("one-slot-too-strict", "deadlines", 0)
def _() -> Iterator[None]:
    """A job is refused if the slot behind its own would come too late."""

    def next_due(self: Deadlines, waiter: Waiter, state: State, at: int, *, another: bool = False) -> int:
        del another
        return _NEXT_DUE(self, waiter, state, at, another=True)

    yield from instead(Deadlines, "_next_due", next_due)


@bug("notice-in-a-hold", "deadlines", 174)
def _() -> Iterator[None]:
    """In a hold, a job is refused as if its slot came after the notice, and not beside it."""

    def begins(self: Deadlines, due: int, state: State, at: int) -> float:
        instant = due + state.held_total
        if state.held_since is None:
            return self._time.clock.perhaps(instant)
        ends = self._time.clock.perhaps(state.held_until) if 0 < state.held_until < FOREVER else at
        return max(ends, at + self._time.notice(at) + 1) + max(0, instant - state.held_since)

    yield from instead(Deadlines, "_begins", begins)


@bug("units-wait-in-a-hold", "budgets", 110)
def _() -> Iterator[None]:
    """In a hold, jobs are refused as if no units came back to the limits before its end."""

    def behind(self: Deadlines, state: State, at: int) -> NextSlots:
        return NextSlots(state, self._free(state, at))

    yield from instead(Deadlines, "_behind", behind)


@bug("told-of-its-own-slot", "deadlines", 12)
def _() -> Iterator[None]:
    """A refused job is told when its own slot would have come, although others wait behind it."""

    def wait(self: Deadlines, waiter: Waiter) -> float | None:
        state, at = self._connection.state, self._clock.now()
        if state is None or state.held_since is not None:
            return _WAIT(self, waiter)
        return self._left(self._begins(self._next_due(waiter, state, at), state, at), at)

    yield from instead(Deadlines, "wait", wait)


@bug("waits-in-vain", "deadlines", 6)
def _() -> Iterator[None]:
    """A job whose ticket turns out to come too late waits until its time is over."""
    yield from instead(Deadlines, "check", lambda _: None)
