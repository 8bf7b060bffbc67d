"""Results as JSON lines: one is written for each job, and they are read again to resume a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from intervalq._show import as_json
from intervalq.cli._run.jobs import Job, key_of
from intervalq.errors import IntervalqError

_CHUNK: Final = 1 << 16


class BadResults(IntervalqError, ValueError):
    """A file given to --resume has a line that is not a result; `path` is the file and `number` the line."""

    def __init__(self, path: str, number: int, why: str) -> None:
        self.path, self.number = path, number
        super().__init__(f"{path}, line {number}: {why}; --resume takes what --output wrote")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One attempt at a job. Times are seconds since 1970 on the store's clock."""

    job: str | dict[str, Any]
    shard: int
    ticket: int
    due: float
    started: float
    ended: float
    exit_code: int | None
    """Negative: the signal that ended the job. None: its shard died, so the exit code is unknown."""
    stdout: str
    stderr: str
    attempt: int

    def to_json(self) -> str:
        """One line of JSON, without a newline."""
        return as_json({name: getattr(self, name) for name in self.__slots__})


class Done:
    """What a results file says about each job: how often it is done, and how often attempts failed.

    Equal jobs are only counted: an input that has a line three times is done when the file has three results
    for it with exit code 0.
    """

    def __init__(self) -> None:
        self._succeeded: dict[str, int] = {}
        self._failed: dict[str, list[int]] = {}  # the last attempts of jobs that are not done

    def add(self, key: str, exit_code: int | None, attempt: int) -> None:
        """Add a result; call this in the order in which results were written."""
        failed = self._failed.setdefault(key, [])
        # A later attempt replaces the earlier one of the same job.
        earlier = max((one for one in failed if one < attempt), default=None)
        if earlier is not None:
            failed.remove(earlier)
        if exit_code == 0:
            self._succeeded[key] = self._succeeded.get(key, 0) + 1
        else:
            failed.append(attempt)

    def chooser(self) -> Callable[[Job], int | None]:
        """A function to call with each job of the input in turn: gives its next attempt; None: it is done."""
        succeeded = dict(self._succeeded)
        failed = {key: sorted(attempts) for key, attempts in self._failed.items()}

        def next_attempt(job: Job) -> int | None:
            if succeeded.get(job.key, 0):
                succeeded[job.key] -= 1
                return None
            attempts = failed.get(job.key)
            return attempts.pop() + 1 if attempts else 1

        return next_attempt


def read_results(path: Path) -> tuple[Done, int]:
    """The content of a results file, and how many of its bytes are complete lines.

    A last line that was cut off while it was written is not complete.

    Raises:
        BadResults: any other line is not a result.
    """
    done = Done()
    whole = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                result = _result(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    break
                raise BadResults(str(path), number, str(error)) from None
            if result is not None:
                done.add(*result)
            whole += len(line)
    return done, whole


def _result(line: bytes) -> tuple[str, int | None, int] | None:
    if not line.strip():
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is not a JSON object") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - a broken file, not a wrong type
    job, code, attempt = value.get("job"), value.get("exit_code", ""), value.get("attempt")
    if (
        not isinstance(job, str | dict)
        or not (code is None or (isinstance(code, int) and not isinstance(code, bool)))
        or not isinstance(attempt, int)
        or isinstance(attempt, bool)
        or attempt < 1
    ):
        raise ValueError("lacks the job, exit_code and attempt of a result")
    return key_of(job), code, attempt


def open_output(path: Path, whole: int | None) -> int:
    """A descriptor to append results to.

    Args:
        path: created if it doesn't exist.
        whole: when resuming, the size of the file's complete lines; what comes after is cut off.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    size = os.fstat(file).st_size
    if whole is not None and whole < size:
        os.ftruncate(file, whole)
        size = whole
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
    return file


def write_all(file: int, data: bytes) -> None:
    """Write all of the data, in as many writes as it takes."""
    while data:
        data = data[os.write(file, data) :]
