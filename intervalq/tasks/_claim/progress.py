"""What a worker reports while it works on a task: its progress, a note, a checkpoint.

A store keeps all of it as one text, `Row.progress`: JSON with `p`, the part that is done; `n`, the note; and
`c`, the checkpoint, which is encoded like the value of a task.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import EllipsisType
from typing import Any, Final, NamedTuple

from intervalq._spec import codec
from intervalq.errors import InvalidOption, UnreadableValue, short
from intervalq.tasks._claim import values as _values

_MAX_NOTE: Final = 1_000


class Report(NamedTuple):
    """What is known of the work on a task."""

    done: float | None = None
    note: str = ""
    checkpoint: str | None = None
    """The text of the checkpoint; None: there is none."""


def read(text: str, where: str) -> Report:
    """A report from its stored text; `where` is for errors.

    Raises:
        UnreadableValue: it was damaged.
    """
    parts = _parts(text)
    if parts is None:
        raise UnreadableValue(where, "the report on it was damaged in the store")
    done = parts.get("p")
    return Report(None if done is None else float(done), parts.get("n", ""), parts.get("c"))


def _parts(text: str) -> dict[str, Any] | None:
    """The parts of a stored report; None: it was damaged."""
    try:
        parts: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    kinds: dict[str, Any] = {"p": int | float, "n": str, "c": str}
    if not isinstance(parts, dict) or not all(
        isinstance(part, kinds.get(name, object)) for name, part in parts.items()
    ):
        return None
    return parts


def checkpoint_of(text: str, form: _values.Form, where: str) -> Any:  # noqa: ANN401 - any JSON value
    """The checkpoint in a stored report; None: there is none.

    Raises:
        UnreadableValue: as for a task's value.
    """
    checkpoint = read(text, where).checkpoint
    return None if checkpoint is None else codec.read(form.codec, checkpoint, f"the checkpoint of {where}")


def report(
    done: float | None, note: str | None, checkpoint: object | EllipsisType, form: _values.Form
) -> Callable[[str], str] | None:
    """The function that adds a report to the stored one; None: nothing is reported.

    Raises:
        InvalidOption, InvalidTask: a part can't be kept.
    """
    if done is None and note is None and checkpoint is ...:
        return None
    if done is not None and not (
        isinstance(done, int | float)
        and math.isfinite(done)
        and 0 <= done <= 1
        and not isinstance(done, bool)
    ):
        raise InvalidOption(f"progress={short(done)} is not a number from 0 to 1, the part that is done")
    if note is not None and not isinstance(note, str):
        raise InvalidOption(f"note={short(note)} is not a text")
    parts: dict[str, object] = {}
    if done is not None:
        parts["p"] = done
    if note is not None:
        parts["n"] = _values.error_text(note)[:_MAX_NOTE]
    if checkpoint is not ...:
        parts["c"] = None if checkpoint is None else _values.encode(checkpoint, form)

    def add(before: str) -> str:
        known = {**(_parts(before) or {}), **parts}
        return json.dumps({name: part for name, part in known.items() if part is not None})

    return add
