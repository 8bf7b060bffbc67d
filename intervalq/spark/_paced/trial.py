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

MASKS: Final = (
    (r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"", "…"),
    (r"\b[0-9A-Fa-f-]*[0-9][0-9A-Fa-f-]*\b", "#"),
)
"""What differs from row to row in an error's text, and what stands for it in a reason. The patterns mean the
same to Java. An apostrophe within a word is not a quotation mark."""

MAX_REASON: Final = 200

UNFIT: Final = f"{BadResult.__name__}: "
"""How the error of a row begins whose answer doesn't fit."""

_proven: Final[set[tuple[str, str, str, str]]] = set()
"""Runs, schemas, functions and their versions of which this process has seen an answer that fitted."""


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
        self._name = (job.run, job.schema, job.function_name, job.version or "")
        self._has_fitted = not job.canary or self._name in _proven
        self._ended = 0
        self._unfit = 0
        self._reason = ""
        self._count = 0
        self._newest = ("", "")
        self.is_open = self._has_fitted
        """Whether rows may be called at the same time."""

    @property
    def doubt(self) -> TooManyFailures | None:
        """The error that stops the task, unless an answer of this run has fitted elsewhere; None: go on."""
        if self._has_fitted or self._unfit < _TRIED:
            return None
        return TooManyFailures(self._job.run, *self._newest, self._unfit, unfit=True)

    def fitted(self) -> None:
        """Note an answer that fits."""
        self._reason, self._count = "", 0
        if not self._has_fitted:
            self._has_fitted = self.is_open = True
            _proven.add(self._name)

    def failed(self, key: str, error: str) -> TooManyFailures | None:
        """Note a row without a result; returns the error that stops the task, if `stop_after` says so."""
        unfit = error.startswith(UNFIT)
        reason = reason_of(error)
        self._count = self._count + 1 if reason == self._reason else 1
        self._reason = reason
        self._ended += 1
        if unfit:
            self._unfit += 1
            self._newest = key, error
        most = self._job.stop_after
        if most is not None and self._count >= most:
            return TooManyFailures(self._job.run, key, error, self._count, unfit=unfit)
        if self._ended - self._unfit >= _TRIED:
            self.is_open = True
        return None
