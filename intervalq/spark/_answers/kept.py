"""Answers as JSON and back: a ledger keeps them as the function gave them, whatever the schema is.

JSON's own types are kept as they are. Any other value becomes an object with one key, which begins with `$`
and names the type.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

_WRITERS: Final[list[tuple[type | tuple[type, ...], str, Callable[[Any], Any]]]] = [
    (Decimal, "$decimal", str),
    (dt.datetime, "$timestamp", dt.datetime.isoformat),
    (dt.date, "$date", dt.date.isoformat),
    (dt.time, "$time", dt.time.isoformat),
    (dt.timedelta, "$duration", lambda value: value // dt.timedelta(microseconds=1)),
    ((bytes, bytearray, memoryview), "$binary", lambda value: base64.b64encode(value).decode()),
    (UUID, "$uuid", str),
]
"""Types that JSON doesn't have; a datetime is a date, too, so it comes first."""

IN_FILE: Final = "$file"
"""The key of an object that stands for an answer in a file, and names that file."""

_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})

_TEXT: Final = frozenset({str})

LISTS: Final = (list, tuple, set, frozenset, range)
"""Types whose values count as lists."""

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$float": float,
    "$decimal": Decimal,
    "$timestamp": dt.datetime.fromisoformat,
    "$date": dt.date.fromisoformat,
    "$time": dt.time.fromisoformat,
    "$duration": lambda micros: dt.timedelta(microseconds=micros),
    "$binary": base64.b64decode,
    "$uuid": UUID,
    "$map": lambda pairs: {_read_key(key): read_answer(value) for key, value in pairs},
}
_MARKS: Final = {*_READERS, IN_FILE}


def written_answer(value: object) -> Any:  # noqa: ANN401, PLR0911 - any JSON; one return for each kind
    """The JSON value that represents an answer.

    Raises:
        TypeError: it has a value of a type that can't be kept; the message names the type.
    """
    if type(value) in _AS_THEY_ARE:  # most values, so these come first
        return value
    if type(value) is dict and len(value) != 1 and _TEXT.issuperset(map(type, value)):
        if _AS_THEY_ARE.issuperset(map(type, value.values())):
            return value
        return {key: written_answer(item) for key, item in value.items()}
    if isinstance(value, bool | str | int | float):
        return _written_scalar(value)
    if isinstance(value, Mapping):
        return _written_map(value)
    if isinstance(value, LISTS):
        return [written_answer(item) for item in value]
    if is_missing(value):
        return None
    for kind, name, write in _WRITERS:
        if isinstance(value, kind):
            return {name: write(value)}
    if (plain := of_numpy(value)) is not None:
        return written_answer(plain)
    raise TypeError(f"a {type(value).__name__} can't be kept")


def file_of(answer: Any) -> str | None:  # noqa: ANN401 - any JSON
    """The name of the file that has a kept answer; None: the answer is not in a file."""
    return answer[IN_FILE] if isinstance(answer, dict) and answer.keys() == {IN_FILE} else None


def is_missing(value: object) -> bool:
    """Whether a value is the missing date of pandas (NaT), which is not equal to itself."""
    return isinstance(value, dt.date) and value != value  # noqa: PLR0124 - that is how it is known


def of_numpy(value: object) -> object:
    """The Python value of a NumPy scalar or array; None: it is something else."""
    convert = getattr(value, "tolist", None)
    return convert() if type(value).__module__ == "numpy" and callable(convert) else None


def read_answer(value: Any) -> Any:  # noqa: ANN401 - any JSON, any answer
    """The answer that a JSON value represents."""
    if isinstance(value, list):
        return [read_answer(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, content),) = value.items()
        if name in _READERS:
            return _READERS[name](content)
    return {name: read_answer(item) for name, item in value.items()}


def _written_scalar(value: str | float | bool | None) -> Any:  # noqa: ANN401 - any JSON
    """A value of JSON's own types; of a derived class, such as an enumeration, its plain value."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, str):
        return str.__str__(value)
    return value if value is None or isinstance(value, bool) else int(value)


def _written_map(value: Mapping[Any, Any]) -> dict[str, Any]:
    is_marked = len(value) == 1 and next(iter(value)) in _MARKS  # it would be read as another type
    if not is_marked and all(type(key) is str for key in value):
        return {key: written_answer(item) for key, item in value.items()}
    return {"$map": [[written_answer(key), written_answer(item)] for key, item in value.items()]}


def _read_key(key: Any) -> Any:  # noqa: ANN401 - any key of a dict
    found = read_answer(key)
    return tuple(found) if isinstance(found, list) else found
