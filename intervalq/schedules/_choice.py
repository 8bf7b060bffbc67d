"""Which occurrence of a schedule a process tries to take, and when: a pure function of what it knows."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from intervalq.schedules._times.plan import Plan

Misfire: TypeAlias = Literal["skip", "once", "all"]


class Choice(NamedTuple):
    """An occurrence to take."""

    scheduled: int
    """The instant that names it."""
    due: int
    """When it may start."""


def choose(name: str, plan: Plan, through: int, now: int, misfire: Misfire) -> Choice | None:
    """The occurrence of a schedule to take next; None: there are no more.

    Args:
        name: the schedule.
        plan: when it occurs.
        through: up to which occurrence all are decided.
        now: the store's clock.
        misfire: `all`: each one is taken, in order; otherwise only the last of those that are due.
    """
    first = plan.after(through)
    if first is None:
        return None
    due = plan.due(name, first)
    if now < due or misfire == "all":
        return Choice(first, due)
    # Each occurrence is due before the next one is scheduled, so one of the last two is the last that is due.
    for scheduled in reversed(plan.latest(first, now, 2)):
        if (later := plan.due(name, scheduled)) <= now:
            return Choice(scheduled, later)
    return Choice(first, due)
