"""Records as JSON text: read strictly, and what is wrong with them as errors of stores."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from intervalq.errors import CorruptState, VersionMismatch
from intervalq.rules import BadRecord, NewerRecord, State

QUEUE: Final = re.compile(r"[!-~]{1,300}")
"""What can be the name of a queue."""


def parse(text: str) -> Any:  # noqa: ANN401 - whatever JSON says
    """Read JSON as the standard has it: no field twice, no NaN, no number that is out of range.

    Raises:
        ValueError: it is not that.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def state_of(data: object, queue: str, url: str) -> State:
    """Make the record of a queue out of what was read.

    Raises:
        CorruptState: it is broken.
        VersionMismatch: it was written by a newer version.
    """
    try:
        return State.from_dict(data)
    except NewerRecord as error:
        raise VersionMismatch(
            url, f"{error}, in queue {queue!r}: upgrade intervalq here, or give another path"
        ) from error
    except BadRecord as error:
        raise broken(queue, error, url) from error


def broken(queue: str, why: object, url: str) -> CorruptState:
    """Say that the record of a queue is broken."""
    return corrupt(f"the record of queue {queue!r} is broken: {shown(why)}", url)


def bad_name(name: object, url: str) -> CorruptState:
    """Say that something stands where the name of a queue should be."""
    return corrupt(f"{ascii(name)[:100]} can't be the name of a queue", url)


def corrupt(what: str, url: str) -> CorruptState:
    """Say that what was read isn't what was written."""
    return CorruptState(
        url,
        f"{what}. The file was left as it is: put it right, put back a copy of it, or move it away to "
        "begin anew",
    )


def newer(version: int, known: int, url: str) -> VersionMismatch:
    """Say that the whole was written by a newer version."""
    return VersionMismatch(
        url,
        f"it has layout {str(version)[:20]}, this version of intervalq knows up to {known}: upgrade "
        "it, or give another path",
    )


def shown(why: object) -> str:
    """What a parser complains of, as it may be shown: it quotes what it read."""
    return ascii(str(why))[1:-1][:200]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a field twice")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is out of range")
    return number
