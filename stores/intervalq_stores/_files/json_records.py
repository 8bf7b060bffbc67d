"""Records as JSON text: strict parsing, and errors of stores for what is wrong with them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from intervalq.errors import CorruptState, VersionMismatch
from intervalq.rules import RENAMED, BadRecord, NewerRecord, State

QUEUE: Final = re.compile(r"[!-~]{1,300}")
"""The pattern of names of queues."""

_REPLACED: Final = frozenset({"stepped", "limits", "auto", "weight", *RENAMED})
"""The fields that a record may have and its next version not: those of limits, of an automatic interval
and of weights, and those with the names of older layouts."""


def parse(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse strict JSON: no duplicate fields, no NaN, no number that is out of range.

    Raises:
        ValueError: the text is not such JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def state_of(data: object, queue: str, url: str) -> State:
    """The record of a queue, from parsed JSON.

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


def renewed(stored: Mapping[str, Any], state: State) -> dict[str, Any]:
    """A record as it is stored in place of the previous one, whose unknown fields are kept."""
    others = {name: value for name, value in stored.items() if name not in _REPLACED}
    return {**others, **state.to_dict()}


def broken(queue: str, why: object, url: str) -> CorruptState:
    """The error about a broken record of a queue."""
    return corrupt(f"the record of queue {queue!r} is broken: {shown(why)}", url)


def bad_name(name: object, url: str) -> CorruptState:
    """The error about an invalid name of a queue in the store."""
    return corrupt(f"{ascii(name)[:100]} can't be the name of a queue", url)


def corrupt(what: str, url: str) -> CorruptState:
    """The error about content that intervalq did not write."""
    return CorruptState(
        url,
        f"{what}. The file was left as it is: repair it, restore a copy of it, or move it away to start over",
    )


def newer(version: int, known: int, url: str) -> VersionMismatch:
    """The error about a file that a newer version wrote."""
    return VersionMismatch(
        url,
        f"it has layout {str(version)[:20]}, but this version of intervalq knows up to {known}: upgrade "
        "it, or give another path",
    )


def shown(why: object) -> str:
    """The message of a parser, escaped for display, because it quotes the text."""
    return ascii(str(why))[1:-1][:200]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a field twice")
    return made


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is out of range")
    return number
