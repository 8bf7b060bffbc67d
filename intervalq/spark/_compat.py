"""Differences between the versions of PySpark: 3.5, 4.0, and 4.1 or newer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from intervalq.errors import PySparkTooOld

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

OLDEST: Final = (3, 5)
"""The oldest PySpark on which anything of `intervalq.spark` works."""

_MAX_CAUSE: Final = 1_000

Release = tuple[int, ...]


def release() -> Release:
    """The first two numbers of PySpark's version."""
    import pyspark  # noqa: PLC0415 - an extra

    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def require(least: Release, what: str) -> None:
    """Refuse a PySpark that lacks something.

    Raises:
        PySparkTooOld: it names the version that has it.
    """
    if release() < least:
        raise PySparkTooOld(what, ".".join(map(str, least)), ".".join(map(str, release())))


def struct_of(ddl: str) -> StructType:
    """A schema from its DDL; needs a session. Raises whatever Spark's parser does."""
    from pyspark.sql import types  # noqa: PLC0415 - an extra

    # `DataType.fromDDL`, since 4.0, is the same.
    return cast("StructType", types._parse_datatype_string(ddl))  # noqa: SLF001 - see above


def arrow_schema(given: StructType) -> pa.Schema:
    """A schema in Arrow's types; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    if release() < (4, 1):
        return to_arrow_schema(given)  # which always took UTC
    return to_arrow_schema(given, timezone="UTC")


def condition(error: PySparkException) -> str | None:
    """The name of an error, such as PATH_NOT_FOUND."""
    named: Any = error
    return cast("str | None", named.getCondition() if release() >= (4, 0) else named.getErrorClass())


def first_line(error: BaseException) -> str:
    """The message of a Spark error, without its plans, its stack traces and py4j's introduction."""
    text = re.sub(r"^An error occurred while calling .*\n: [\w.$]+: ", "", str(error))
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def cause(error: BaseException) -> str:
    """The line in the error of a Spark job that names the cause: intervalq's, or else Python's."""
    text = str(error)
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip(" :\t")]
    lines = [line.replace("intervalq._run_errors.", "intervalq.errors.") for line in lines]
    ours = [line for line in lines if line.startswith("intervalq.errors.")]
    raised = re.findall(r"^Traceback .*\n(?:[ \t].*\n)+(\S.*)", text, re.MULTILINE)
    others = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (ours or raised or others or ["it gave no reason"])[0][:_MAX_CAUSE]


def rows_of(df: DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of a result, a few at a time, because they take many times the memory as Python values."""
    if release() < (4, 0):
        yield from (row.asDict(recursive=True) for row in df.collect())
        return
    for batch in df.toArrow().to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()
