"""What the ends of tasks say about their outcomes, as parameters of statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from intervalq.tasks.rules import Kept

SEPARATOR: Final = "\x1f"
"""Separates texts that are sent as one: JSON never contains it, and names that do use the slow path."""

_NOTHING: Final = Kept(0)


def parts_of(kept: Kept | None) -> list[object] | None:
    """As `_leave` of tasks_outcomes.sql takes it."""
    return None if kept is None else [kept.keep_for, kept.result, kept.took]


def columns(ends: Sequence[Kept | None]) -> tuple[str, str, str | None] | None:
    """As `_done` of tasks_outcomes.sql takes it: times, durations and results; None: they say nothing."""
    if not any(ends):
        return None
    keep_fors, results, durations = zip(
        *(ends if all(ends) else [kept or _NOTHING for kept in ends]), strict=True
    )
    joined = SEPARATOR.join(results) if any(results) else None
    if len(set(keep_fors)) == 1:
        keep_fors = keep_fors[:1]
    return f"{{{','.join(map(str, keep_fors))}}}", f"{{{','.join(map(str, durations))}}}", joined
