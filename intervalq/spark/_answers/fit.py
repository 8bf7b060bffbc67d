"""Fits an answer's values to the columns of a schema: what can be converted without loss is converted.

JSON has no decimals, dates, timestamps or whole numbers over 2^53, so their standard text is converted, too.
Arrow alone would drop a fraction or a time of day silently.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyarrow import types

from intervalq.errors import short
from intervalq.spark._answers.kept import LISTS, is_missing, of_numpy

Fit: TypeAlias = Callable[[Any], Any]

_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.ASCII)
_BELOW_MICROSECONDS: Final = re.compile(r"\.[0-9]{6}[0-9]*[1-9]", re.ASCII)
_EXACT: Final = Context(prec=100)
_MAX_FLOAT32: Final = 3.4028234663852886e38


class Unfit(ValueError):
    """A value doesn't fit; the message says why."""


def fitter(kind: pa.DataType, *, nullable: bool = True) -> Fit:
    """A function that converts a value to an Arrow type without loss, and raises `Unfit` if it can't.

    `nullable`: whether None fits, and stays None.
    """
    fit = _or_none(_fitter(kind), is_date=types.is_date(kind) or types.is_timestamp(kind))
    return fit if nullable else _not_none(fit)


def _of_field(field: pa.Field) -> Fit:
    return fitter(field.type, nullable=field.nullable)


def _fitter(kind: pa.DataType) -> Fit:
    for fits, made in _OF_PARTS:
        if fits(kind):
            return made(kind)
    for fits, fit in _SIMPLE:
        if fits(kind):
            return fit
    return _by_arrow(kind)


def _or_none(fit: Fit, *, is_date: bool) -> Fit:
    def fit_or_none(value: object) -> object:
        if value is None or (is_date and is_missing(value)):
            return None
        try:
            return fit(value)
        except Unfit:
            if is_missing(value):
                return None
            if (plain := of_numpy(value)) is not None:
                return fit(plain)
            raise

    return fit_or_none


def _not_none(fit: Fit) -> Fit:
    def fit_not_none(value: object) -> object:
        if (found := fit(value)) is None:
            raise Unfit("a value is None, and the schema says NOT NULL")
        return found

    return fit_not_none


def _wrong(value: object, wanted: str) -> Unfit:
    return Unfit(f"{short(value)} is {_a(value)}, not {wanted}")


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1] in "aeiou" else f"a {name}"


def _whole_of(kind: pa.DataType) -> Fit:
    if types.is_signed_integer(kind):
        return _whole(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    return _whole(0, 2**kind.bit_width - 1)


def _whole(least: int, most: int) -> Fit:
    def fit(value: object) -> int:
        if type(value) is int:
            found = value
        elif isinstance(value, bool):
            raise _wrong(value, "a whole number")
        elif isinstance(value, int):
            found = int(value)
        elif isinstance(value, float | Decimal):
            if not math.isfinite(value) or value != int(value):
                raise Unfit(f"{short(value)} is not a whole number")
            found = int(value)
        elif isinstance(value, str) and len(value) < 40 and _WHOLE.fullmatch(value):
            found = int(value)
        else:
            raise _wrong(value, "a whole number")
        if not least <= found <= most:
            shown = found if found.bit_length() < 128 else "it"
            raise Unfit(f"{shown} is not between {least} and {most}")
        return found

    return fit


def _decimal(precision: int, scale: int) -> Fit:
    step = Decimal(1).scaleb(-scale)

    def fit(value: object) -> Decimal:
        found = _exact(value)
        try:
            rounded = found.quantize(step, context=_EXACT)
        except InvalidOperation:
            rounded = None
        if rounded is None or rounded != found:
            raise Unfit(f"{short(value)} has more than {scale} digits after the point")
        if rounded and rounded.adjusted() >= precision - scale:
            raise Unfit(f"{short(value)} has more than {precision - scale} digits before the point")
        return rounded

    return fit


def _exact(value: object) -> Decimal:
    """A number as the decimal that its text shows."""
    found = None
    if isinstance(value, Decimal):
        found = value
    elif isinstance(value, int) and not isinstance(value, bool):
        found = Decimal(value)
    elif isinstance(value, float):
        found = Decimal(repr(float(value)))
    elif isinstance(value, str) and len(value) < 100 and _NUMBER.fullmatch(value):
        found = Decimal(value)
    if found is None or not found.is_finite():
        raise _wrong(value, "a number")
    return found


def _float(value: object) -> float:
    if isinstance(value, float):
        return value
    exact = _exact(value)
    found = float(exact)
    if not math.isfinite(found) or Decimal(repr(found)) != exact:
        raise Unfit(f"{short(value)} has more digits than a double keeps")
    return found


def _float32(value: object) -> float:
    found = _float(value)
    if not math.isfinite(found):
        return found
    if abs(found) > _MAX_FLOAT32:
        raise Unfit(f"{short(value)} is too large for a float")
    (nearest,) = struct.unpack("f", struct.pack("f", found))
    if (found and not nearest) or (not isinstance(value, float) and nearest != found):
        raise Unfit(f"{short(value)} has more digits than a float keeps")
    return found


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(value, "a bool")


def _text(value: object) -> str:
    if isinstance(value, str):
        found = value if type(value) is str else str.__str__(value)
        if not found.isascii():
            _unicode(found.encode)
        return found
    if isinstance(value, bytes):
        return str(_unicode(value.decode))
    if isinstance(value, UUID):
        return str(value)
    raise _wrong(value, "text")


def _unicode(convert: Callable[[], Any]) -> Any:  # noqa: ANN401 - text or bytes
    try:
        return convert()
    except UnicodeError as error:
        raise Unfit(f"it is not valid text: {error}") from None


def _binary(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return bytes(_unicode(value.encode))
    raise _wrong(value, "bytes")


def _date(value: object) -> dt.date:
    found = _from_iso(dt.date, value)
    if isinstance(found, dt.datetime):
        if found.time() != dt.time():
            raise Unfit(f"{short(value)} has a time of day")
        return found.date()
    if isinstance(found, dt.date):
        return found
    raise _wrong(value, "a date")


def _timestamp(value: object) -> dt.datetime:
    """An instant. A datetime without a zone counts as UTC; text must have an offset."""
    found = _from_iso(dt.datetime, value)
    if not isinstance(found, dt.datetime):
        raise _wrong(value, "a datetime")
    if isinstance(value, str) and found.tzinfo is None:
        raise Unfit(f"{short(value)} has no offset from UTC, such as Z")
    return found


def _local(value: object) -> dt.datetime:
    """A date and time without a zone."""
    found = _from_iso(dt.datetime, value)
    if not isinstance(found, dt.datetime):
        raise _wrong(value, "a datetime")
    if found.tzinfo is not None:
        raise Unfit(f"{short(value)} has an offset, and the column has no zone")
    return found


def _from_iso(kind: type[dt.date | dt.datetime], value: object) -> object:
    """The date or datetime of an ISO 8601 text; other values as they are."""
    if not isinstance(value, str):
        return value
    if _BELOW_MICROSECONDS.search(value):
        raise Unfit(f"{short(value)} is more exact than a microsecond")
    try:
        return kind.fromisoformat(value)
    except ValueError:
        raise Unfit(f"{short(value)} is not a {kind.__name__} as ISO 8601 writes it") from None


def _duration(value: object) -> dt.timedelta:
    if isinstance(value, dt.timedelta):
        if abs(value // dt.timedelta(microseconds=1)) >= 2**63:
            raise Unfit(f"{short(value)} is longer than 2^63 microseconds")
        return value
    raise _wrong(value, "a timedelta")


def _nothing(value: object) -> None:
    raise _wrong(value, "None, as this type demands")


def _list(item: Fit) -> Fit:
    def fit(values: object) -> list[Any]:
        plain = values if isinstance(values, LISTS) else of_numpy(values)
        if not isinstance(plain, LISTS):
            raise _wrong(values, "a list")
        return [item(value) for value in plain]

    return fit


def _struct(fields: dict[str, Fit]) -> Fit:
    def fit(value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(value, "a dict")
        if not value.keys() <= fields.keys():
            more = ", ".join(sorted(map(str, value.keys() - fields.keys())))
            raise Unfit(f"it has fields that are not in the schema: {more}")
        return {name: fit(value.get(name)) for name, fit in fields.items()}

    return fit


def _map(key: Fit, item: Fit) -> Fit:
    def fit(value: object) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, Mapping) else value
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise _wrong(value, "a dict")
        found = []
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise _wrong(value, "a dict")
            found.append((key(pair[0]), item(pair[1])))
        return found

    return fit


def _by_arrow(kind: pa.DataType) -> Fit:
    def fit(value: object) -> object:
        try:
            return pa.scalar(value, kind).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Unfit(str(error)) from error

    return fit


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


_OF_PARTS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Fit]]]] = [
    (types.is_integer, _whole_of),
    (types.is_decimal, lambda kind: _decimal(kind.precision, kind.scale)),
    (types.is_struct, lambda kind: _struct({field.name: _of_field(field) for field in kind})),
    (types.is_list, lambda kind: _list(_of_field(kind.value_field))),
    (types.is_large_list, lambda kind: _list(_of_field(kind.value_field))),
    (types.is_map, lambda kind: _map(_fitter(kind.key_type), _of_field(kind.item_field))),
]
_SIMPLE: Final[list[tuple[Callable[[pa.DataType], bool], Fit]]] = [
    (_is_text, _text),
    (types.is_boolean, _bool),
    (types.is_float64, _float),
    (types.is_floating, _float32),
    (types.is_date32, _date),
    (lambda kind: types.is_timestamp(kind) and kind.tz is not None, _timestamp),
    (types.is_timestamp, _local),
    (types.is_duration, _duration),
    (_is_bytes, _binary),
    (types.is_null, _nothing),
]
