"""How a claim ends without an acknowledgement, and what any end says about the outcome of a kept task."""

from __future__ import annotations

from dataclasses import replace

import anyio

from intervalq.tasks._claim.values import Form, encode, error_text
from intervalq.tasks._spec.outcome import dead_queue
from intervalq.tasks.rules import Change, Kept, Row


def unused(row: Row) -> Change:
    """The change that gives a claim back without counting the attempt."""
    return Change(row.id, row.version, attempt=max(0, row.attempt - row.begun))


def snoozed(row: Row, delay: int) -> Change:
    """The change that puts a claimed task off for `delay` microseconds without counting the attempt."""
    return replace(unused(row), delay=delay)


def dead(row: Row, error: object, attempt: int) -> Change:
    """The change that puts a task into the dead-letter queue, after the given number of attempts."""
    return Change(
        row.id,
        row.version,
        queue=dead_queue(row.queue),
        delay=0,
        attempt=attempt,
        error=error_text(error),
    )


def written(result: object, form: Form) -> str:
    """The result of a kept task as its outcome has it; empty: there is none.

    Raises:
        InvalidTask: it isn't JSON, or too large.
    """
    return "" if result is None else encode(result, form, "the result of a kept task")


def kept(keep_for: int, since: float | None, result: str = "", now: float | None = None) -> Kept:
    """The content of the outcome of a task that ends now.

    Args:
        keep_for: how long it is kept, in microseconds.
        since: when the work began, on the session's clock; None: unknown.
        result: of its function, as JSON text; empty: none.
        now: the session's clock; None: it is read.
    """
    if since is None:
        return Kept(keep_for, result)
    took = (anyio.current_time() if now is None else now) - since
    # This takes half of the time of Kept(...).
    return tuple.__new__(Kept, (keep_for, result, int(took * 1e6) or 1))
