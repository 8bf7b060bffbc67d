"""When the last job of a shard began: the next one keeps its distance from that."""

from __future__ import annotations

from intervalq._shard.grants import GrantRange
from intervalq.rules import State


class LastStart:
    """The last start of one shard, and the one before it, which counts if the last one did not happen."""

    def __init__(self) -> None:
        self.at: int | None = None
        """When it was, on the process's own clock; None: no job has begun."""
        self.is_bound = False
        """Whether `at` is only an upper bound: a thread begins at an instant that the shard doesn't see."""
        self._ticket = 0
        self._before: tuple[int | None, bool] = None, False

    def was(self, ticket: int, at: int, *, is_bound: bool = False) -> None:
        """Note that a job began, or that its thread is about to begin."""
        self._before = self.at, self.is_bound
        self._ticket, self.at, self.is_bound = ticket, at, is_bound

    def was_none(self, ticket: int) -> None:
        """Note that a thread came too late for its slot, so that its job did not begin."""
        if ticket == self._ticket:
            self.at, self.is_bound = self._before

    def apart(self, state: State | None) -> int:
        """When a whole interval has passed since then; 0 with burst credit, which needs no distance."""
        if state is None or state.credit or self.at is None:
            return 0
        return self.at + state.settings.interval

    def opens(self, first: GrantRange, state: State | None) -> int:
        """When the first slot of a range may be used: not too close to the last start, if time allows."""
        if not first.moves or state is None:
            return first.opens
        apart, tolerance = self.apart(state), state.tolerance
        if apart:  # a shorter interval does not apply to slots that were granted before it
            apart += max(0, first.step - state.settings.interval)
        nearest = apart - tolerance
        clear = nearest if self.is_bound else apart - tolerance // 2
        return max(first.opens, min(clear, max(first.closes, nearest)))
