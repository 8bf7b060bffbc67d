"""Outcomes: what a kept task leaves when it ends, and the errors of its attempts."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, NamedTuple

from intervalq.tasks._spec.row import SECOND, Row, Session

DAY: Final = 86_400 * SECOND

DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
STATES: Final = (DONE, FAILED, CANCELLED)

_DEAD: Final = ".dead"

_BETWEEN: Final = "\x1e"
"""Separates the errors of attempts. No error of a worker has it: control characters are replaced there."""
_MAX_ERRORS: Final = 32_000
"""Once the text of all errors is this long, no further one is added."""


class Kept(NamedTuple):
    """What an end says about the task's outcome."""

    keep_for: int
    """How long to keep the outcome of a task that has no such time of its own, in microseconds."""
    result: str = ""
    """The function's result, as JSON text; empty: there is none."""
    took: int = 0
    """How long the work took, in microseconds; 0: unknown."""


NOTHING: Final = Kept(0)

_FIELDS: Final = ("id", "queue", "key", "json", "attempt", "error", "errors", "created", "begun", "keep_for")
_fields: Final = itemgetter(*map(Row._fields.index, _FIELDS))
"""What an outcome has of its task, in half of the time of reading each."""


def is_dead(queue: str) -> bool:
    """Whether a queue is a dead-letter queue."""
    return queue.endswith(_DEAD)


def dead_queue(queue: str) -> str:
    """The dead-letter queue of a queue; a dead task that fails again stays where it is."""
    return queue if is_dead(queue) else f"{queue}{_DEAD}"


def living_queue(queue: str) -> str:
    """The queue that a dead-letter queue belongs to."""
    return queue.removesuffix(_DEAD)


def day_of(until: int) -> int:
    """The day (counted from 1970) at whose end outcomes that are kept until this time can be dropped."""
    return until // DAY


def outcome(row: Row, state: str, kept: Kept | None, session: Session | None, now: int) -> tuple[Any, ...]:
    """The fields of the `OutcomeRow` of a kept task that ends now.

    A session that ends a task counts as having begun it.
    """
    id_, queue, key, json, attempt, error, errors, created, begun, keep_for = _fields(row)
    kept_for, result, took = kept or NOTHING
    is_done = state == DONE
    return (
        id_, queue, key, state, json, result if is_done else "", attempt + (is_done and not begun),
        errors_of(row) if error else errors, created, now - took if took else 0, now,
        "" if session is None else session.host, 0 if session is None else session.pid,
        now + (keep_for or kept_for),
    )  # fmt: skip


def errors_of(row: Row) -> str:
    """The errors of a task's attempts. If it wasn't kept until now, only the last one is known."""
    if row.errors or row.keep_for or not row.error:
        return row.errors
    return _entry(0, row.attempt - row.begun, row.error)


def with_error(errors: str, error: str, attempt: int, now: int) -> str:
    """The errors of a kept task after another attempt failed."""
    if len(errors) >= _MAX_ERRORS:
        return errors
    return f"{errors}{_BETWEEN if errors else ''}{_entry(now, attempt, error)}"


def _entry(at: int, attempt: int, error: str) -> str:
    return f"{at} {attempt} {error}"


def parsed(errors: str) -> list[tuple[int, int, str]]:
    """The time, number and error of each failed attempt; the time is 0 if it is unknown."""
    found: list[tuple[int, int, str]] = []
    for text in errors.split(_BETWEEN) if errors else ():
        at, _, rest = text.partition(" ")
        attempt, _, error = rest.partition(" ")
        if at.isdecimal() and attempt.isdecimal():
            found.append((int(at), int(attempt), error))
        elif found:  # somebody's error has the separator in it
            found[-1] = (*found[-1][:2], f"{found[-1][2]}{_BETWEEN}{text}")
    return found
