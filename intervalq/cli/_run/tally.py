"""The counts of a run so far: kept by the run, read by its progress bar and its report."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Tally:
    """The counts of a run so far."""

    total: int | None = None
    """The number of jobs to run; None: not known yet."""
    read: int = 0
    done: int = 0
    failed: int = 0
    """Those of the done jobs that did not exit with 0."""
    skipped: int = 0
    """Jobs that were done before the run."""
    due_first: float = 0.0
    due_last: float = 0.0
    started: array[float] = field(default_factory=lambda: array("d"))
    tickets: array[int] = field(default_factory=lambda: array("q"))

    def begins(self, started: float, ticket: int, due: float) -> None:
        """Note that another attempt begins."""
        self.due_first = min(due, self.due_first) if self.started else due
        self.due_last = max(due, self.due_last)
        self.started.append(started)
        self.tickets.append(ticket)

    @property
    def left(self) -> int:
        """Jobs that are still to be run, as far as is known."""
        return (self.read if self.total is None else self.total) - self.done
