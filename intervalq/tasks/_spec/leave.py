"""What a task that ends leaves in the table: its outcome, and one task less for its follow-up to wait for."""

from __future__ import annotations

from intervalq.tasks._spec.outcome import CANCELLED, Kept, is_dead, outcome
from intervalq.tasks._spec.row import Row
from intervalq.tasks._spec.table import Table


def leave(table: Table, row: Row, state: str, kept: Kept | None, now: int, *, by: str = "") -> None:
    """Note that a task ends: write its outcome, if it is kept. A dead-letter task left one when it failed.

    Args:
        table: where to write it.
        row: the task as it was at its end.
        state: how it ended.
        kept: what its end says about the outcome.
        now: the store's clock.
        by: the session that ended it; empty: none did.
    """
    if row.follow_up:
        _one_less(table, row.follow_up, now)
    if not (row.keep_for or (kept is not None and kept.keep_for)):
        return
    if state == CANCELLED and is_dead(row.queue):
        return
    session = table.session(by) if by and state != CANCELLED else None
    table.put_outcome(outcome(row, state, kept, session, now))


def _one_less(table: Table, follow_up: str, now: int) -> None:
    """Let a task's follow-up wait for one task less. When it waits for none, it can be claimed."""
    row = table.find([follow_up]).get(follow_up)
    if row is None or not row.awaits:
        return
    row = row._replace(awaits=row.awaits - 1)
    table.put([row if row.awaits else row._replace(waiting=False, at=max(row.at, now))])
