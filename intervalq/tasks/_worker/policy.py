"""What happens to a task whose function failed: another attempt later, or the dead-letter queue."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from intervalq._queue.options import Duration
from intervalq._spec import parse
from intervalq._timing.backoff import backoff
from intervalq.errors import IntervalqError
from intervalq.tasks._claim import values as _values
from intervalq.tasks._claim.endings import dead
from intervalq.tasks._claim.task import Claim
from intervalq.tasks.rules import Change


class Retry(IntervalqError):
    """Raise it in a worker's function to try the task again after `delay` (None: the usual backoff)."""

    def __init__(self, why: str = "to be tried again", *, delay: Duration | None = None) -> None:
        self.delay = None if delay is None else parse.duration(delay, what="delay")
        super().__init__(why)


class Reject(IntervalqError):
    """Raise it in a worker's function to put the task into the dead-letter queue: it can never be done."""

    def __init__(self, why: str = "rejected") -> None:
        super().__init__(why)


class Snooze(IntervalqError):
    """Raise it in a worker's function to put the task off: it runs again after `delay`.

    No attempt is counted, so `max_attempts` doesn't apply: a function that always snoozes is never done. Its
    task's `created` says how long that has been going on.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = parse.duration(delay, what="delay")
        super().__init__(f"put off for {delay}")


for _kind in (Retry, Reject, Snooze):
    _kind.__module__ = "intervalq.tasks"  # where users find them, for the errors of their tasks


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and when, a failed task is tried again."""

    max_attempts: int | None
    """None: no limit."""
    backoff: float
    """The first pause in seconds; see `intervalq._timing.backoff.backoff`."""

    def exhausted(self, claim: Claim) -> Change | None:
        """The change of a claimed task whose attempts are used up; None: they are not.

        Its last attempt killed its worker; after an attempt that ends with an error, `failed` decides
        instead.
        """
        row = claim._row
        before = row.attempt - row.begun
        if self.max_attempts is None or before < self.max_attempts:
            return None
        return dead(row, f"{row.error or 'no result'} ({before} attempts)", before)

    def is_last(self, claim: Claim) -> bool:
        """Whether a task had attempts before, and has one left."""
        row = claim._row
        before = row.attempt - row.begun
        return self.max_attempts is not None and 0 < before == self.max_attempts - 1

    def failed(self, claim: Claim, error: BaseException) -> Change:
        """The change of a task whose function raised."""
        row, attempt = claim._row, claim.attempt
        reason = _values.error_text("".join(traceback.format_exception_only(error)).strip())
        last = self.max_attempts is not None and attempt >= self.max_attempts
        if last or isinstance(error, Reject):
            return dead(row, reason, attempt)
        delay = error.delay if isinstance(error, Retry) else None
        if delay is None:
            delay = round(backoff(attempt, self.backoff) * 1e6)
        return Change(row.id, row.version, delay=delay, attempt=attempt, error=reason)
