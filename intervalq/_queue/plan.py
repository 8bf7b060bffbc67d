"""How one job is run: the checked options of a call, combined with those of its queue."""

from __future__ import annotations

from dataclasses import dataclass

from intervalq._queue.threads import EARLY
from intervalq._shard.wait_queue import Waiter


@dataclass(frozen=True, slots=True)
class Plan:
    """How one job is run; see `IntervalQueue.add`. Times are seconds."""

    priority: int
    cost: int
    timeout: float | None
    retries: int
    backoff: float
    retry_after: bool

    def waiter(self, *, in_thread: bool = False, again: bool = False) -> Waiter:
        """A place in line."""
        return Waiter(self.priority, self.cost, EARLY if in_thread else 0, again=again)
