"""Converts results to JSON and back, by their Arrow types: a ledger contains readable values, and no code."""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import types

Convert: TypeAlias = Callable[[Any], Any]


class Coder(NamedTuple):
    """Converts values of one type to JSON and back. None stays None."""

    write: Convert
    read: Convert


_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def coder(kind: pa.DataType) -> Coder:
    """The coder of a type, for the Python values that Arrow gives (`as_py`).

    Raises:
        TypeError: there is no coder for this type.
    """
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind) or _is_text(kind):
        return _AS_IT_IS
    for fits, simple in _SIMPLE:
        if fits(kind):
            return simple
    if types.is_struct(kind):
        return _struct([(field.name, coder(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(coder(kind.value_type))
    if types.is_map(kind):
        return _list(_pair(coder(kind.key_type), coder(kind.item_type)))
    raise TypeError(
        f"a ledger can't keep values of type {kind}: use ledger=None, or a column of another type"
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _write_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_float(value: float | str) -> float:
    return _NUMBERS[value] if isinstance(value, str) else value


def _write_duration(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1)


def _read_duration(value: int) -> dt.timedelta:
    return dt.timedelta(microseconds=value)


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _simple(write: Convert, read: Convert) -> Coder:
    return Coder(_or_none(write), _or_none(read))


_AS_IT_IS: Final = Coder(lambda value: value, lambda value: value)
_SIMPLE: Final[list[tuple[Callable[[pa.DataType], bool], Coder]]] = [
    (types.is_floating, _simple(_write_float, _read_float)),
    (types.is_decimal, _simple(str, Decimal)),
    (types.is_timestamp, _simple(dt.datetime.isoformat, dt.datetime.fromisoformat)),
    (types.is_date, _simple(dt.date.isoformat, dt.date.fromisoformat)),
    (types.is_duration, _simple(_write_duration, _read_duration)),
    (_is_bytes, _simple(lambda value: base64.b64encode(value).decode(), base64.b64decode)),
]


def _list(item: Coder) -> Coder:
    write, read = item
    return _simple(
        lambda values: [write(value) for value in values], lambda values: [read(value) for value in values]
    )


def _pair(key: Coder, value: Coder) -> Coder:
    return Coder(
        lambda pair: [key.write(pair[0]), value.write(pair[1])],
        lambda pair: (key.read(pair[0]), value.read(pair[1])),
    )


def _struct(fields: list[tuple[str, Coder]]) -> Coder:
    return _simple(
        lambda value: {name: at.write(value[name]) for name, at in fields},
        lambda value: {name: at.read(value[name]) for name, at in fields},
    )
