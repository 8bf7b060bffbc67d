"""How a task that ends leaves its outcome in the table."""

from __future__ import annotations

from intervalq.tasks._spec.outcome import CANCELLED, Kept, is_dead, outcome
from intervalq.tasks._spec.row import Row
from intervalq.tasks._spec.table import Table


def leave(table: Table, row: Row, state: str, kept: Kept | None, now: int, *, by: str = "") -> None:
    """Write the outcome of a task that ends, if it is kept. A dead one has left its own when it failed.

    Args:
        table: where to write it.
        row: the task as it was at its end.
        state: how it ended.
        kept: what its end says about the outcome.
        now: the store's clock.
        by: the session that ended it; empty: none did.
    """
    if not (row.keep_for or (kept is not None and kept.keep_for)):
        return
    if state == CANCELLED and is_dead(row.queue):
        return
    session = table.session(by) if by and state != CANCELLED else None
    table.put_outcome(outcome(row, state, kept, session, now))
