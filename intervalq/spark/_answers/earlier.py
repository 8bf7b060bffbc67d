"""Reads results that earlier versions kept in ledgers: converted to JSON by the types of their columns."""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import types

Read: TypeAlias = Callable[[Any], Any]

_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def reader(kind: pa.DataType) -> Read:
    """A function from the JSON of a value of this type to one that fits it. None stays None."""
    read = _reader(kind)
    return lambda value: None if value is None else read(value)


def _reader(kind: pa.DataType) -> Read:
    if types.is_struct(kind):
        fields = [(field.name, reader(field.type)) for field in kind]
        return lambda value: {name: read(value[name]) for name, read in fields}
    if types.is_list(kind) or types.is_large_list(kind):
        item = reader(kind.value_type)
        return lambda values: [item(value) for value in values]
    if types.is_map(kind):
        key, entry = reader(kind.key_type), reader(kind.item_type)
        return lambda pairs: [(key(pair[0]), entry(pair[1])) for pair in pairs]
    for fits, read in _SIMPLE:
        if fits(kind):
            return read
    return lambda value: value


_SIMPLE: Final[list[tuple[Callable[[pa.DataType], bool], Read]]] = [
    (types.is_floating, lambda value: _NUMBERS[value] if isinstance(value, str) else value),
    (types.is_duration, lambda value: dt.timedelta(microseconds=value)),
    (types.is_binary, base64.b64decode),
    (types.is_large_binary, base64.b64decode),
]
