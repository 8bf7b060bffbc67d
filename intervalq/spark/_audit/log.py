"""The log that an audit reads: one flat row for each start, whatever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from intervalq.errors import InvalidOption, short

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TYPES: Final = {
    "queue": "string",
    "day": "date",
    "key": "string",
    "ticket": "bigint",
    "due": "double",
    "started": "double",
    "ended": "double",
    "host": "string",
    "shard": "string",
    "attempt": "int",
    "calls": "int",
    "status": "string",
    "refused": "boolean",
    "retry_after": "double",
    "replayed": "boolean",
    "error": "string",
}
"""The columns, in their order. Instants are seconds since 1970: `due` on the store's clock, the others on the
clock of the host."""

_RUN: Final = (
    "job string, shard string, ticket bigint, due double, started double, ended double, "
    "exit_code int, attempt int"
)
"""The fields of `intervalq run --output` that an audit needs."""


def read_log(spark: SparkSession, log: DataFrame | str | Path) -> DataFrame:
    """The log as it was written: a DataFrame unchanged, JSON lines by the suffix, all else as Parquet."""
    if not isinstance(log, str | Path):
        return log
    path = str(log)
    if path.endswith((".jsonl", ".json", ".ndjson")):
        return spark.read.schema(_RUN).json(path)
    return spark.read.parquet(path)


def log_of(df: DataFrame, *, queue: str | None = None, column: str = "_iq") -> tuple[DataFrame, set[str]]:
    """The log in a DataFrame, as flat rows with all columns of `TYPES`, and the names of those it knows.

    Args:
        df: rows with these columns; or with the struct that the pipeline adds; or results of `intervalq run`.
            Instants may be timestamps. Columns that it doesn't have are null in the answer.
        queue: the queue's name, for rows without one. None: an empty name.
        column: the name of the struct.

    Raises:
        InvalidOption: it has neither a column `started` nor such a struct.
    """
    types, prefix = _fields(df.schema), ""
    if column in df.columns and isinstance(inner := df.schema[column].dataType, StructType):
        outer, types, prefix = types, _fields(inner), f"{column}."
        # A column beside the struct may have what the struct lacks.
        types |= {name: kind for name, kind in outer.items() if name in {"day", "queue"}}
    if "started" not in types:
        raise InvalidOption(
            f"a log has a column started, or a struct {column}; this one has {short(df.columns)}: "
            "name the struct with column=, or rename its columns"
        )
    sources = {
        name: _quoted(name if name in df.columns and not prefix else f"{prefix}{name}") for name in types
    }
    for name in ("day", "queue"):
        if name in types and name in df.columns:
            sources[name] = _quoted(name)
    found = {name: _cast(sources[name], types[name], kind) for name, kind in TYPES.items() if name in types}
    if "shard" not in found and "pid" in types:
        found["shard"] = F.concat_ws(":", _host(sources, types), F.col(sources["pid"]).cast("string"))
    if "job" in types and "exit_code" in types:
        # A job may be given several times, and nothing distinguishes equal jobs, so its text is not a key.
        found.setdefault("status", F.when(F.col(sources["exit_code"]) == 0, "ok").otherwise("failed"))
    if "status" not in found and "error" in found:
        found["status"] = F.when(found["error"].isNull(), "ok").otherwise("failed")
    if "calls" in types:
        # Such a log has one row per key, and no rows of earlier attempts, so their numbers can't be checked.
        found.pop("attempt", None)
    known = set(found)
    if "queue" not in found:
        found["queue"] = F.lit(queue or "")
    elif queue is not None:
        found["queue"] = F.coalesce(found["queue"], F.lit(queue))
    nothing = F.lit(None)
    return df.select(
        *(found.get(name, nothing.cast(kind)).alias(name) for name, kind in TYPES.items())
    ), known


def _fields(schema: StructType) -> dict[str, DataType]:
    return {field.name: field.dataType for field in schema.fields}


def _quoted(path: str) -> str:
    return ".".join(f"`{part}`" for part in path.split("."))


def _host(sources: dict[str, str], types: dict[str, DataType]) -> Column:
    """The host before a process id: two hosts may have the same."""
    return F.col(sources["host"]) if "host" in types else F.lit(None).cast("string")


def _cast(source: str, have: DataType, want: str) -> Column:
    if want == "double" and isinstance(have, TimestampType | TimestampNTZType):
        return F.unix_micros(F.col(source).cast("timestamp")) / 1e6
    return F.expr(f"try_cast({source} AS {want})")
