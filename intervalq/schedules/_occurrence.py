"""`Occurrence`: what the function of a schedule is called with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import Record

MAX_MISSED: Final = 1_000
"""How many missed occurrences are listed at most: the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One occurrence of a schedule. Its times are in the schedule's time zone."""

    name: str
    """The schedule."""
    scheduled: datetime
    """The time that the schedule says; it names the occurrence."""
    at: datetime
    """When it was due to start: `scheduled`, or later by the jitter."""
    missed: tuple[datetime, ...]
    """The scheduled times since the last run that was not abandoned: of occurrences that did not fire, and of
    those that were abandoned, except that in `abandoned`. At most the last 1,000. Those of a pause, or from
    before a change of the schedule, don't count."""
    abandoned: datetime | None
    """The scheduled time of the last occurrence that fired, if its process was ended before the function
    returned; with `overlap="allow"`, if it was not known yet that the function had begun. None: neither."""
    fence: int
    """A number that is higher for each later occurrence: pass it to what must refuse outdated ones."""

    @classmethod
    def of(cls, name: str, plan: Plan, before: Record, taken: Record, due: int) -> Self:
        """The occurrence whose taking has changed the record of its schedule from `before` to `taken`."""
        assert taken.fired is not None
        missed = plan.latest(before.reported, taken.fired - 1, MAX_MISSED)
        abandoned = before.fired if before.running else None
        return cls(
            name=name,
            scheduled=plan.time(taken.fired),
            at=plan.time(due),
            missed=tuple([plan.time(instant) for instant in missed if instant != abandoned]),
            abandoned=None if abandoned is None else plan.time(abandoned),
            fence=taken.fence,
        )
