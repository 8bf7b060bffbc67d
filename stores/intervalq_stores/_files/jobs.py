"""The jobs of a file's worker thread: a step on the record of a queue, a command on a ledger."""

from __future__ import annotations

from typing import Any

from intervalq.ledger.rules import Command
from intervalq.store import PairStep, Step
from intervalq_stores._files.worker_thread import Job


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


class LedgerJob(Job):
    """A command on a ledger."""

    def __init__(self, ledger: str, command: Command, now: int | None) -> None:
        super().__init__()
        self.ledger = ledger
        self.command = command
        self.now = now
        self.made = False
        """Whether it created the ledger."""
