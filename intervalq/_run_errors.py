"""Errors of a run: of its rows, of the answers that it got, and of its ledger."""

from __future__ import annotations

from intervalq._error import IntervalqError
from intervalq._text import short


class BadResult(IntervalqError, ValueError):
    """A function's result for a row doesn't fit its schema. The row was called."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        self.why = why
        of = f" for row {short(key)}" if key else ""
        super().__init__(f"the function's result{of} doesn't fit the schema: {why}")


class TooManyFailures(IntervalqError):
    """A task was stopped because its rows failed for one reason; no further row is called.

    `key` is the newest of these rows, and `reason` is its error. `unfit`: its answer doesn't fit the schema.
    """

    def __init__(self, run: str, key: str, reason: str, count: int, *, unfit: bool) -> None:
        self.run, self.key, self.reason, self.count, self.unfit = run, key, reason, count, unfit
        row = f"row {short(key)}: " if key else ""
        what = "had answers that don't fit" if unfit else "failed one after the other for one reason"
        remedy = "mend the cause and run it again"
        if run:
            remedy += f", after `intervalq ledger forget {run} --failed`, which lets them be called again"
        if unfit and run:
            remedy = (
                f"the answers are kept in run {run!r}, so with a mended schema they aren't called again; if "
                "the function is wrong, mend it and give version= another name, which calls them again"
            )
        elif unfit:
            remedy = "mend the schema or the function (with key= and run=, answers would be kept)"
        super().__init__(f"{count} rows {what}, so no more are called: {row}{reason}; {remedy}")


class RunChanged(IntervalqError):
    """A run's kept answer is of another schema, or of another version of the function."""

    def __init__(self, run: str, key: str, what: str) -> None:
        self.run, self.key = run, key
        super().__init__(
            f"row {short(key)} of run {run!r} has an answer that was kept {what}: give replay=True to fit "
            "kept answers to this schema, without a call; or another run name, to call all rows again"
        )


class UnknownOutcome(IntervalqError):
    """A row was started by a process that died, and may have been called; it isn't called again."""

    def __init__(self, run: str, key: str) -> None:
        self.run = run
        self.key = key
        super().__init__(
            f"row {short(key)} of run {run!r} was started by a process that died, so its call may have been "
            f"made: find out whether it was; `intervalq ledger forget {run} --unknown` then lets such rows "
            'be called again (errors="column" reports them and goes on, on_unknown="retry" calls them again)'
        )


class RowFailed(IntervalqError):
    """A row's call failed for good in an earlier run that kept its errors."""

    def __init__(self, run: str, key: str, error: str) -> None:
        self.run = run
        self.key = key
        self.error = error
        super().__init__(
            f"row {short(key)} of run {run!r} failed before and isn't called again: {error}; "
            f"`intervalq ledger forget {run} --failed` allows such rows to be called again"
        )
