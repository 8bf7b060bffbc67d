"""The jobs of a file's worker thread: a step on a record of a queue, a schedule or a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intervalq.store import PairStep, Step, Swapped, swapped, wall_clock
from intervalq_stores._files.worker_thread import Job

if TYPE_CHECKING:  # queues need no ledgers
    from intervalq.ledger.rules import Command


class StepJob(Job):
    """A step on the record of a queue."""

    def __init__(self, queue: str, step: Step[Any], now: int | None) -> None:
        super().__init__()
        self.queue = queue
        self.step = step
        self.now = now


class PairJob(Job):
    """A step on the record of a key and the common one of its queue."""

    def __init__(self, queue: str, common: str, step: PairStep[Any], now: int | None) -> None:
        super().__init__()
        self.queue = queue
        self.common = common
        self.step = step
        self.now = now


class SwapJob(Job):
    """A change of a schedule: see `Scheduling.swap_schedule`."""

    def __init__(
        self, name: str, known: str | None, text: str | None, earliest: int, now: int | None
    ) -> None:
        super().__init__()
        self.name = name
        self._known = known
        self._text = text
        self._earliest = earliest
        self._now = now

    def swap(self, stored: str | None) -> Swapped:
        """The answer, when this text is stored."""
        now = wall_clock() if self._now is None else self._now
        return swapped(stored, self._known, self._text, self._earliest, now)


class LedgerJob(Job):
    """A command on a ledger."""

    def __init__(self, ledger: str, command: Command, now: int | None) -> None:
        super().__init__()
        self.ledger = ledger
        self.command = command
        self.now = now
        self.made = False
        """Whether it created the ledger."""
