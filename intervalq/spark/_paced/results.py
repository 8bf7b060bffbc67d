"""Builds Arrow batches from ended rows: the input's columns, the function's columns, and the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from intervalq.spark._paced.handoff import Done

LOG_FIELDS: Final[dict[str, pa.DataType]] = {
    "key": pa.string(),
    "ticket": pa.int64(),
    "due": pa.float64(),
    "started": pa.float64(),
    "ended": pa.float64(),
    "host": pa.string(),
    "pid": pa.int64(),
    "attempt": pa.int32(),
    "calls": pa.int32(),
    "replayed": pa.bool_(),
    "error": pa.string(),
}
"""The fields of the log's struct. `due` and `ticket` are null without a queue, times without a call."""

LOG_DDL: Final = (
    "struct<key:string,ticket:bigint,due:double,started:double,ended:double,host:string,pid:bigint,"
    "attempt:int,calls:int,replayed:boolean,error:string>"
)
"""The same as a schema of Spark."""


class Builder:
    """Builds batches with exactly the declared schema, because Spark casts nothing."""

    def __init__(self, columns: pa.Schema, log: str | None) -> None:
        """`columns`: those of the function's result. `log`: the name of the log's column; None: no log."""
        self._columns = columns
        self._log = log

    def build(self, rows: list[Done]) -> Iterator[pa.RecordBatch]:
        """Batches of these rows, one for each input batch that they came with."""
        by_batch: dict[int, list[Done]] = {}
        for row in rows:
            by_batch.setdefault(id(row.batch), []).append(row)
        for some in by_batch.values():
            source = some[0].batch.take(pa.array([row.place for row in some], pa.int32()))
            names, arrays = list(source.schema.names), list(source.columns)
            for field in self._columns:
                names.append(field.name)
                values = [None if row.value is None else row.value[field.name] for row in some]
                arrays.append(pa.array(values, field.type))
            if self._log is not None:
                names.append(self._log)
                arrays.append(_log_of(some))
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _log_of(rows: list[Done]) -> pa.Array:
    stamps = [row.stamp for row in rows]
    values: list[list[Any]] = [
        [row.key or None for row in rows],
        [stamp.ticket or None for stamp in stamps],
        [stamp.due or None for stamp in stamps],
        [stamp.started or None for stamp in stamps],
        [stamp.ended or None for stamp in stamps],
        [stamp.host or None for stamp in stamps],
        [stamp.pid or None for stamp in stamps],
        [stamp.attempt for stamp in stamps],
        [stamp.calls for stamp in stamps],
        [row.replayed for row in rows],
        [row.error for row in rows],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(values, LOG_FIELDS.values(), strict=True)]
    return pa.StructArray.from_arrays(arrays, names=list(LOG_FIELDS))
