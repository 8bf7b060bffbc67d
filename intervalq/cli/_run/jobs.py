"""Turns lines of input into jobs: parses a line, and builds the words of its command. Pure functions."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from intervalq._queue.options import Cost
from intervalq._spec import strict_json
from intervalq.cli._options import cost_of
from intervalq.errors import IntervalqError, InvalidOption

MAX_LINE: Final = 1 << 20
"""The maximum length of a line, in bytes: no system accepts a longer one as one argument."""

_DEEPEST: Final = 100
"""A JSON object that is nested deeper counts as text."""

_FIELD: Final = re.compile(r"\{\{([A-Za-z_][\w-]*|)\}\}|\{([A-Za-z_][\w-]*|)\}", re.ASCII)


def has_field(word: str) -> bool:
    """Whether a word of a command has a placeholder for the line or a field of it."""
    return any(found[2] is not None for found in _FIELD.finditer(word))


class BadLine(IntervalqError, ValueError):
    """A line of the input is not a job; `source` is the file and `number` the line."""

    def __init__(self, source: str, number: int, why: str) -> None:
        self.source, self.number = source, number
        super().__init__(f"{source}, line {number}: {why}")


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a run."""

    shown: str | dict[str, Any]
    """The line, or its JSON object, which identifies the job in results."""
    argv: tuple[str, ...]
    cost: Cost = 1

    @property
    def key(self) -> str:
        """A text that is the same for equal jobs."""
        return key_of(self.shown)


def key_of(shown: str | dict[str, Any]) -> str:
    """A text that is the same for equal jobs; JSON objects are equal however they are written."""
    return shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)


class Lines:
    """Turns lines into jobs.

    Without a command, each line is one itself, split as by a shell but run without a shell. In a command,
    `{}` is replaced by the line, and `{name}` by that field of the line's JSON object; a command without
    either gets the line as its last argument. `{{name}}` becomes a literal `{name}`. The cost of a job may
    have fields, too.

    Args:
        source: where the lines come from, for messages.
        command: see above.
        costs: the values of `--cost`.
        check: raises `InvalidOption` for a cost that the queue can't have.

    Raises:
        InvalidOption: the cost that all jobs share is invalid.
    """

    def __init__(
        self,
        source: str,
        command: tuple[str, ...],
        costs: tuple[str, ...] = (),
        check: Callable[[Cost], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._command = command
        self._costs = costs
        self._check = check
        self._cost: Cost | None = None  # each line has its own
        if not any(map(has_field, costs)):
            self._cost = cost_of(costs)
            check(self._cost)
        named = [found[2] for word in command for found in _FIELD.finditer(word) if found[2] is not None]
        self._named = next((name for name in named if name), None)
        self._appends = not named

    def job(self, line: str, number: int) -> Job | None:
        """The job on a line; None: the line is empty.

        Raises:
            BadLine: the line can't be run.
        """
        if not line.strip():
            return None
        shown: str | dict[str, Any] = line
        try:
            if (found := _object(line)) is not None:
                shown = found
            argv = self._argv(line, found)
            _check(argv)
            cost = self._cost_of(line, found) if self._cost is None else self._cost
        except _Unusable as why:
            raise BadLine(self._source, number, str(why)) from None
        return Job(shown, argv, cost)

    def _cost_of(self, line: str, found: dict[str, Any] | None) -> Cost:
        names = [name[2] for text in self._costs for name in _FIELD.finditer(text) if name[2]]
        if found is None and names:
            raise _Unusable(f"is not a JSON object, but --cost names the field {{{names[0]}}}")
        try:
            cost = cost_of(
                _FIELD.sub(lambda field: _filled(field, line, found), text) for text in self._costs
            )
            self._check(cost)
        except InvalidOption as error:
            raise _Unusable(f"has an invalid cost: {error}") from None
        return cost

    def _argv(self, line: str, found: dict[str, Any] | None) -> tuple[str, ...]:
        if not self._command:
            if found is not None:
                raise _Unusable("is a JSON object, which needs a command to go into: -- COMMAND {name}")
            try:
                return tuple(shlex.split(line))
            except ValueError as error:
                why = {"No closing quotation": "has a quote that is never closed"}.get(str(error))
                raise _Unusable(why or "ends in a backslash that quotes nothing") from None
        if self._named and found is None:
            raise _Unusable(
                f"is not a JSON object, but the command names the field {{{self._named}}}: use {{}} for the "
                f"whole line, or write {{{{{self._named}}}}} for literal braces"
            )
        words = tuple(_FIELD.sub(lambda field: _filled(field, line, found), word) for word in self._command)
        return (*words, line) if self._appends else words


class _Unusable(Exception):
    """The reason why a line is not a job."""


def _object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = strict_json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deep(value) else None


def _is_deep(value: object) -> bool:
    """Whether a value is nested so deeply that writing it as JSON may fail, depending on the call stack."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (
                outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
            )
        ]
        if not level:
            return False
    return True


def _check(argv: tuple[str, ...]) -> None:
    for word in argv:
        if "\0" in word:
            raise _Unusable("has a NUL character, which no argument can contain")
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise _Unusable("has half of a surrogate pair, which is not text") from None


def _filled(field: re.Match[str], line: str, found: dict[str, Any] | None) -> str:
    if field[1] is not None:
        return f"{{{field[1]}}}"
    if not field[2]:
        return line
    assert found is not None
    if field[2] not in found:
        raise _Unusable(f"has no field {field[2]!r}; it has {', '.join(sorted(map(ascii, found))) or 'none'}")
    value = found[field[2]]
    return value if isinstance(value, str) else json.dumps(value)
