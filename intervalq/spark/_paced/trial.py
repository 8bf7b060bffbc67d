"""When a task may call many rows at once, and when it must stop, by its first answers and its failures."""

from __future__ import annotations

import re
from typing import Final

from intervalq.errors import BadResult, TooManyFailures
from intervalq.spark._paced.job import Job

_TRIED: Final = 2
"""Rows that are called one at a time until an answer has fitted. This many unfit answers at the beginning
stop the task: one may be an odd row, two are the schema or the function. This many other failures let the
task go on, because errors may be data."""

MASKS: Final = ((r"'[^']*'|\"[^\"]*\"", "…"), (r"\b[0-9A-Fa-f-]*[0-9][0-9A-Fa-f-]*\b", "#"))
"""What differs from row to row in an error's text, and what stands for it in a reason."""

MAX_REASON: Final = 200

_proven: Final[set[tuple[str, str, str]]] = set()
"""Runs, schemas and functions of which this process has seen an answer that fitted."""


def reason_of(error: str) -> str:
    """The reason of a failure: its error's first line, without what differs from row to row."""
    text = error.split("\n", 1)[0]
    for pattern, stand_in in MASKS:
        text = re.sub(pattern, stand_in, text)
    return text[:MAX_REASON]


class Trial:
    """Judges the ends of a task's rows, one after the other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._name = (job.run, job.schema, job.function_name)
        self._ended = 0
        self._unfit = 0
        self._reason = ""
        self._count = 0
        self.is_open = self._name in _proven
        """Whether rows may be called at the same time."""

    def fitted(self) -> None:
        """Note a row with a result."""
        self._reason, self._count = "", 0
        if not self.is_open:
            self.is_open = True
            _proven.add(self._name)

    def failed(self, key: str, error: str) -> TooManyFailures | None:
        """Note a row without a result; returns the error that stops the task, if this was one too many."""
        unfit = error.startswith(f"{BadResult.__name__}: ")
        reason = reason_of(error)
        self._count = self._count + 1 if reason == self._reason else 1
        self._reason = reason
        self._ended += 1
        self._unfit += unfit
        most = self._job.stop_after
        if not self.is_open and self._unfit >= _TRIED:
            return TooManyFailures(self._job.run, key, error, self._unfit, unfit=True)
        if most is not None and self._count >= most:
            return TooManyFailures(self._job.run, key, error, self._count, unfit=unfit)
        if self._ended - self._unfit >= _TRIED:
            self.is_open = True
        return None
