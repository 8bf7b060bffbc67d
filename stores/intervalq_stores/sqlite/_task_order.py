"""Which ready tasks a claim takes in SQLite, and in which order: queries of the index of ready tasks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from intervalq.tasks.rules import looked_at, rank, skippable, typed

Query: TypeAlias = Callable[..., list[Any]]
"""Executes a statement with its values, and returns the rows."""

_IS_READY: Final = "FROM intervalq_tasks WHERE queue = ? AND priority = ? AND ready <= ?"
# Each takes one look into the index, however many tasks there are.
_IS_RANKED: Final = (
    "EXISTS (SELECT 1 FROM intervalq_tasks WHERE queue = ? AND priority > 0 AND ready IS NOT NULL) "
    "OR EXISTS (SELECT 1 FROM intervalq_tasks WHERE queue = ? AND priority < 0 AND ready IS NOT NULL)"
)
_ONLY_RANKED: Final = f"SELECT {_IS_RANKED}"
_SOME_READY: Final = f"SELECT (SELECT count(*) FROM (SELECT 1 {_IS_READY} LIMIT ?)), {_IS_RANKED}"  # noqa: S608 - our own
_FIRST_READY: Final = f"SELECT ready, priority, rowid {_IS_READY} ORDER BY ready LIMIT ?"
LEVELS: Final = (
    "WITH RECURSIVE levels (p) AS (SELECT -10 UNION ALL SELECT (SELECT min(priority) FROM intervalq_tasks "
    "WHERE queue = ? AND priority > p AND ready IS NOT NULL) FROM levels WHERE p IS NOT NULL) "
)
"""The beginning of a statement that uses the priorities of a queue's tasks that are ready, or will be."""
_ALL_LEVELS: Final = f"{LEVELS}SELECT p FROM levels WHERE p > -10"  # noqa: S608
NEXT_READY: Final = (
    f"{LEVELS}SELECT min((SELECT min(ready) FROM intervalq_tasks "  # noqa: S608
    "WHERE queue = ? AND priority = p AND ready > ?)) FROM levels WHERE p > -10"
)


def skipped(query: Query, queue: str, now: int, limit: int) -> int | None:
    """How many of the first ready tasks a claim skips: a random number that leaves enough of them.

    None: there are several priorities, see `ranked`.
    """
    most = looked_at(limit)
    there = 0
    if most > limit:
        ((there, is_ranked),) = query(_SOME_READY, queue, 0, now, most, queue, queue)
    else:
        ((is_ranked,),) = query(_ONLY_RANKED, queue, queue)
    return None if is_ranked else random.randint(0, max(0, there - limit))  # noqa: S311 - no secret


def ranked(query: Query, queue: str, now: int, limit: int) -> list[int]:
    """The row numbers of the ready tasks to claim, in order."""
    most = looked_at(limit)
    found = [
        (rank(typed(int, ready, "when a task is ready"), priority), priority, number)
        for level in levels(query, queue)
        for ready, priority, number in query(_FIRST_READY, queue, level, now, most)
    ]
    found.sort()
    priorities = [priority for _, priority, _ in found[:most]]
    begin = random.randint(0, skippable(priorities, limit))  # noqa: S311 - no secret
    return [number for _, _, number in found[begin : begin + limit]]


def levels(query: Query, queue: str) -> list[int]:
    """The priorities that occur among a queue's tasks that are ready, or will be."""
    return [typed(int, level, "the priority of a task") for (level,) in query(_ALL_LEVELS, queue)]


def next_ready(query: Query, queue: str, now: int) -> int | None:
    """When the next task of a queue is ready."""
    ((least,),) = query(NEXT_READY, queue, queue, now)
    return None if least is None else typed(int, least, f"when a task of queue {queue!a} is ready")
