"""Changes that end a claim without an acknowledgement: its task is given back, put off, or given up."""

from __future__ import annotations

from dataclasses import replace

from intervalq.tasks._claim.values import error_text
from intervalq.tasks._spec.outcome import dead_queue
from intervalq.tasks.rules import Change, Row


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
