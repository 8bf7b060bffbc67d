"""What becomes of a task whose function failed: another attempt later, or the dead-letter queue."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from intervalq._queue.options import Duration
from intervalq._spec import parse
from intervalq._timing.backoff import backoff
from intervalq.errors import IntervalqError
from intervalq.tasks import _values
from intervalq.tasks._task import dead
from intervalq.tasks.rules import Change, Row


class Retry(IntervalqError):
    """Raise it in a worker's function to try the task again after `delay` (None: the usual backoff)."""

    def __init__(self, why: str = "to be tried again", *, delay: Duration | None = None) -> None:
        self.delay = None if delay is None else parse.duration(delay, what="delay")
        super().__init__(why)


class Reject(IntervalqError):
    """Raise it in a worker's function to put the task into the dead-letter queue: it can never be done."""

    def __init__(self, why: str = "rejected") -> None:
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and when, a failed task is tried again."""

    max_attempts: int | None
    """None: for ever."""
    backoff: float
    """The first pause in seconds; see `intervalq._timing.backoff.backoff`."""

    def exhausted(self, row: Row) -> Change | None:
        """What becomes of a task that was claimed once more than it may be tried; None: it may.

        Its last attempts killed their workers: of those that end with an error this one is not to come.
        """
        if self.max_attempts is None or row.attempt <= self.max_attempts:
            return None
        return dead(row, f"{row.error or 'no result'} ({row.attempt - 1} attempts)")

    def failed(self, row: Row, error: BaseException) -> Change:
        """What becomes of a task whose function raised."""
        said = _values.error_text("".join(traceback.format_exception_only(error)).strip())
        last = self.max_attempts is not None and row.attempt >= self.max_attempts
        if isinstance(error, Reject) or (last and not isinstance(error, Retry)):
            return dead(row, said)
        if last and isinstance(error, Retry):
            return dead(row, said)
        delay = error.delay if isinstance(error, Retry) else None
        if delay is None:
            delay = round(backoff(row.attempt, self.backoff) * 1e6)
        return Change(row.id, row.version, delay=delay, error=said)
