"""Converts rows of Arrow batches into tasks: their JSON, key and id."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from intervalq.errors import IntervalqError, InvalidTask, short
from intervalq.tasks._claim import values as _values
from intervalq.tasks.rules import Insert

if TYPE_CHECKING:
    import pyarrow as pa

    from intervalq.spark._source.options import WriteOptions

_SPACE: Final = uuid.UUID("6f0d3a0e-52c1-5f5b-9d1d-3d0f4d3c2b11")
"""The namespace of all ids that are derived here."""

Convert = Callable[[Any], Any]


class Made(NamedTuple):
    """A row as a task to insert."""

    insert: Insert
    name: str | None
    """The row's key as text; None: rows have no keys."""


def derived(*parts: object) -> str:
    """The id derived from these parts: always the same, and different from that of other parts."""
    return str(uuid.uuid5(_SPACE, json.dumps(parts, separators=(",", ":"))))


def tasks_of(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, write: str, partition: int
) -> Iterator[Made]:
    """The tasks of the rows of one partition.

    With a key, an id depends only on the write and the key, however the rows are distributed when they are
    computed again. Without one, it depends on the place of the row, which stays as long as its partition
    does.

    Raises:
        InvalidTask, InvalidName: a row can't be a task; the error says which, and why.
    """
    place = 0
    for batch in batches:
        convert = {field.name: converter(field.type) for field in batch.schema}
        is_text = options.value is not None and _is_text(batch.schema.field(options.value).type)
        columns = {name: batch.column(name).to_pylist() for name in _needed(batch.schema.names, options)}
        for number in range(batch.num_rows):
            row = {name: values[number] for name, values in columns.items()}
            name = None
            try:
                if options.key is not None:
                    name = _text(options.key, convert[options.key](row[options.key]))
                made = _made(row, convert, options, is_text=is_text)
            except (IntervalqError, TypeError, ValueError) as error:
                which = f"row {place} of partition {partition}" + (f" (key {short(name)})" if name else "")
                raise InvalidTask(f"{which} can't be a task: {error}") from error
            id_ = derived(write, partition, place) if name is None else derived(write, name)
            yield Made(made._replace(id=id_), name)
            place += 1


def _needed(names: list[str], options: WriteOptions) -> list[str]:
    if options.value is None:
        return names
    needed = {options.value, options.key, options.exclusive_key, "queue" if options.queue is None else None}
    return [name for name in names if name in needed]


def _made(
    row: dict[str, Any], convert: dict[str, Convert], options: WriteOptions, *, is_text: bool
) -> Insert:
    queue = options.queue
    if queue is None:
        queue = _text("queue", row["queue"])
    value: Any
    if options.value is None:
        value = {name: convert[name](one) for name, one in row.items()}
    elif is_text and row[options.value] is not None:
        value = _read(row[options.value])
    else:
        value = convert[options.value](row[options.value])
    key = None
    if options.exclusive_key is not None and row[options.exclusive_key] is not None:
        key = _text(options.exclusive_key, convert[options.exclusive_key](row[options.exclusive_key]))
    return _values.insert(queue, value, key=key, form=_values.Form(options.max_bytes))


def _read(text: str) -> Any:  # noqa: ANN401 - whatever it says
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTask(f"its value {short(text)} is not JSON: {error}") from error


def _text(column: str, value: object) -> str:
    if value is None:
        raise InvalidTask(f"its {column!r} is null: drop such rows, or fill it in")
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


# --- values of each type -------------------------------------------------------------------------------


def converter(kind: pa.DataType) -> Convert:
    """A function that turns values of this type into JSON values."""
    from pyarrow import types  # noqa: PLC0415 - an optional part

    if types.is_map(kind):
        return _or_none(_map(converter(kind.key_type), converter(kind.item_type)))
    if types.is_struct(kind):
        fields = {kind.field(n).name: converter(kind.field(n).type) for n in range(kind.num_fields)}
        return _or_none(lambda value: {name: fields[name](one) for name, one in value.items()})
    if types.is_list(kind) or types.is_large_list(kind):
        inner = converter(kind.value_type)
        return _or_none(lambda value: [inner(one) for one in value])
    for is_kind, convert in (
        (types.is_timestamp, _instant),
        (types.is_date, lambda value: value.isoformat()),
        (types.is_time, lambda value: value.isoformat()),
        (types.is_decimal, lambda value: format(Decimal(value), "f")),
        (types.is_duration, _seconds),
        (types.is_binary, _base64),
        (types.is_large_binary, _base64),
    ):
        if is_kind(kind):
            return _or_none(convert)
    return _same


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415 - an optional part

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _same(value: Any) -> Any:  # noqa: ANN401 - of any type
    return value


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _instant(value: datetime) -> str:
    return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()


def _seconds(value: timedelta) -> float:
    return value.total_seconds()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _map(key: Convert, item: Convert) -> Convert:
    return lambda value: {_text("key", key(k)): item(v) for k, v in value}
