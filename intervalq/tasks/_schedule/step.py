"""The step of a durable schedule: which tasks are due, and when to look again. A pure function."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from intervalq.schedules._choice import choose
from intervalq.tasks._schedule.record import Stored
from intervalq.tasks.rules import DAY, Insert

REST: Final = 365 * DAY
"""For how long a row rests that has nothing to do: paused, or at its end."""

_COUNTED: Final = 1_000


class Step(NamedTuple):
    """What a step does: all of it at once, or nothing."""

    after: Stored
    at: int
    """When the next step is due."""
    inserts: tuple[Insert, ...]
    left_out: int
    """How many occurrences were too late to be inserted; a thousand means a thousand or more."""


def step(before: Stored, through: int, now: int, most: int) -> Step:
    """Insert the occurrences that are due.

    Args:
        before: the schedule.
        through: up to which occurrence all are decided.
        now: the store's clock.
        most: how many tasks to insert at most; what is left is due at once.
    """
    name, plan, last, left_out = before.name, before.plan, before.last, 0
    inserts = list[Insert]()
    at = now
    if before.paused:
        return Step(before, now + REST, (), 0)
    while len(inserts) < most:
        choice = choose(name, plan, through, now, before.misfire)
        if choice is None or choice.due > now:
            at = now + REST if choice is None else choice.due
            break
        if before.misfire != "all":
            left_out += len(plan.latest(through, choice.scheduled - 1, _COUNTED))
        through = choice.scheduled
        if before.grace is not None and now - choice.due > before.grace:
            left_out += 1
        else:
            inserts.append(before.occurrence(through))
            last = through
    return Step(replace(before, through=through, last=last), at, tuple(inserts), left_out)
