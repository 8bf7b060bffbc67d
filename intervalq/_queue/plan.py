"""How one job is run: the checked options of a call, combined with those of its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from intervalq._queue.options import Options, Settle
from intervalq._queue.threads import EARLY
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.retry_after import RetryAfter


@dataclass(frozen=True, slots=True)
class Plan:
    """How one job is run; see `IntervalQueue.add`. Times are seconds."""

    priority: int
    cost: int
    timeout: float | None
    retries: int
    backoff: float
    retry_after: RetryAfter
    within: float | None = None
    """With `try_slot`: the time in which the slot must come; `timeout` also covers the store's answer."""
    units: tuple[int, ...] = ()
    """What the job takes of the queue's limits; see `rules.Units`."""
    adapts: bool = False
    """Whether the queue finds the server's limit: a refusal counts even if no wait is requested."""
    settle: Settle[Any] | None = None

    def waiter(self, *, in_thread: bool = False, again: bool = False) -> Waiter:
        """A place in the wait queue."""
        early = EARLY if in_thread else 0
        waiter = Waiter(self.priority, self.cost, early, in_thread=in_thread, again=again, units=self.units)
        if self.timeout is not None:
            waiter.within = round((self.timeout if self.within is None else self.within) * 1e6)
        return waiter


def usual(mine: Options) -> Plan:
    """The plan of a job without options of its own."""
    common = mine.timeout, mine.retries, mine.backoff, mine.retry_after
    return Plan(0, 1, *common, adapts=mine.auto is not None)
