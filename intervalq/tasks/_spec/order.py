"""The order of claims: equal shares of queues; within a queue by rank, in part random within a priority.

A step of priority counts as if the task had become ready a minute earlier. So a task is overtaken only by
tasks that become ready within some minutes after it, and none waits for ever.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from intervalq.tasks._spec.row import SECOND, Row
from intervalq.tasks._spec.table import Table

STEP: Final = 60 * SECOND
"""How much earlier a task counts as ready for each step of its priority, in microseconds."""

HIGHEST: Final = 9
"""The highest priority; the lowest is its negative.

A claim looks at each priority that occurs in its queue, so they are few; and a task is overtaken by tasks
that become ready up to 18 minutes after it, not more.
"""

WINDOW: Final = 16
"""A small claim begins at random among this many first tasks: one may kill every worker that gets it."""


def rank(ready: int, priority: int) -> int:
    """The place of a ready task in the order of its queue; lower ones are claimed first."""
    return ready - priority * STEP


def looked_at(limit: int) -> int:
    """How many of the first tasks by rank a claim looks at."""
    return limit + WINDOW if limit < WINDOW else limit


def skippable(priorities: Sequence[int], limit: int) -> int:
    """How many of the first tasks a claim may skip at most, so that none overtakes one of another priority.

    Args:
        priorities: those of the tasks that the claim looks at, by rank.
        limit: how many it takes.
    """
    run = next((n for n, one in enumerate(priorities) if one != priorities[0]), len(priorities))
    return max(0, run - limit)


def choose(table: Table, queues: Sequence[str], limit: int, now: int) -> list[Row]:
    """Ready tasks: first the same share of each queue, whatever their sizes, then whatever else is ready."""
    if not limit or not queues:
        return []
    share = -(-limit // len(queues))
    chosen: list[Row] = []
    rest: list[Row] = []
    for queue in random.sample(queues, len(queues)):
        ready = table.ready(queue, now, limit)
        chosen += ready[:share]
        rest += ready[share:]
        if len(chosen) >= limit:
            break
    return (chosen + rest)[:limit]
