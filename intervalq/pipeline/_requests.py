"""Classifies the rows of the input: to be called, already called, duplicate, or rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from intervalq.errors import InvalidOption
from intervalq.spark._compat import first_line
from intervalq.spark._formats import lacking, read

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from intervalq.pipeline._published import Tables
    from intervalq.pipeline._spec import Spec

REASON: Final = "_iq_reason"
PRINT: Final = "_iq_print"
_STATE: Final = "_iq_state"
_GROUP: Final = "_iq_group"
_CORRUPT: Final = "_corrupt_record"
"""The column where Spark puts rows that it can't parse."""

_MAX_KEY: Final = 512
_CALL, _BEFORE, _SAME = "_call", "_before", "_same"


@dataclass(frozen=True, slots=True)
class Requests:
    """The classified rows of the input. Everything is computed lazily."""

    sorted: DataFrame
    columns: list[str]
    known: DataFrame | None
    """Rejected rows of the input that are already listed."""

    def counts(self) -> dict[str, int]:
        """The number of rows in each state; this reads the whole input."""
        return {row[0]: row[1] for row in self.sorted.groupBy(_STATE).count().collect()}

    def to_call(self) -> DataFrame:
        """The rows that have no result."""
        return self.sorted.where(F.col(_STATE) == _CALL).select(*map(_quoted, self.columns))

    def rejects(self) -> DataFrame:
        """The rows that can't be called, with reasons, except those that are already listed."""
        state = F.col(_STATE)
        rows = self.sorted.where(~state.isin(_CALL, _BEFORE, _SAME)).select(
            *map(_quoted, self.columns), state.alias(REASON), PRINT
        )
        return rows if self.known is None else rows.join(self.known, [REASON, PRINT], "left_anti")


def tally(counts: dict[str, int]) -> tuple[int, int, int, dict[str, int]]:
    """From `Requests.counts`: rows to call, already called, duplicate; and the rejected ones by reason."""
    rest = dict(counts)
    call, before, same = (rest.pop(state, 0) for state in (_CALL, _BEFORE, _SAME))
    return call, before, same, dict(sorted(rest.items()))


def requests(spark: SparkSession, spec: Spec, tables: Tables) -> Requests:
    """Read the input, and classify its rows.

    The first condition that a row doesn't meet is its reason; a condition that is null isn't met. Of rows
    with the same key, the one with the smallest fingerprint is called, so the choice doesn't depend on the
    order.

    Raises:
        InvalidOption: the input is missing, or has other columns; or a condition is not valid SQL.
    """
    rows = _read(spark, spec)
    columns = [name for name in rows.columns if name != _CORRUPT]
    _check(spec, columns)
    key = F.col(_quoted(spec.input.key)).cast("string")
    whole = F.to_json(F.struct(*map(_quoted, rows.columns)), {"ignoreNullFields": "false"})
    why = _reason(spec, rows, key)
    marked = rows.withColumns({PRINT: F.sha2(whole, 256), _STATE: why})
    # Rows without a key must not form one group, which would all go to one task.
    by_key, by_content = F.concat(F.lit("k"), key), F.concat(F.lit("p"), PRINT)
    marked = marked.withColumn(_GROUP, F.when(F.col(_STATE).isNull(), by_key).otherwise(by_content))
    window = Window.partitionBy(_GROUP).orderBy(PRINT)
    marked = marked.withColumns(
        {"_iq_number": F.row_number().over(window), "_iq_last": F.lag(PRINT).over(window)}
    )
    there = _published(spec, tables)
    marked = marked.join(there, _GROUP, "left") if there is not None else marked
    state = (
        F.when(F.coalesce(F.col("_iq_last") == F.col(PRINT), F.lit(False)), _SAME)
        .when(F.col(_STATE).isNotNull(), F.col(_STATE))
        .when(F.col("_iq_number") > 1, "duplicate_key")
    )
    if there is not None:
        state = state.when(F.col("_iq_there"), _BEFORE)
    known = None
    if tables.has("rejects"):
        known = (
            tables.read("rejects")
            .where(F.col("fingerprint").isNotNull())
            .select(F.col("reason").alias(REASON), F.col("fingerprint").alias(PRINT))
            .distinct()
        )
    return Requests(marked.withColumn(_STATE, state.otherwise(_CALL)), columns, known)


def _read(spark: SparkSession, spec: Spec) -> DataFrame:
    given = spec.input
    reader = spark.read.options(**({"header": "true"} if given.format == "csv" else {}) | given.options)
    try:
        rows = read(reader, given.path, given.format)
        _ = rows.columns
    except Exception as error:
        raise InvalidOption(
            f"{spec.file.name}: [input] path can't be read as {given.format}: {first_line(error)}"
            f"{lacking(error, given.format)}"
        ) from error
    return rows


def _check(spec: Spec, columns: list[str]) -> None:
    where = f"{spec.file.name}: [input]"
    if spec.input.key not in columns:
        raise InvalidOption(
            f"{where} key = {spec.input.key!r} is not a column of the input: it has {', '.join(columns)}"
        )
    if ours := [name for name in columns if name.lower() in {"day", "pass"} or name.startswith("_iq")]:
        raise InvalidOption(
            f"{where} path: the output has its own columns {', '.join(ours)}: rename those of the input, "
            'for example in a view (format = "table")'
        )


def _reason(spec: Spec, rows: DataFrame, key: Column) -> Column:
    """Why a row can't be called; null: it can."""
    long = (F.length(key) < 1) | (F.length(key) > _MAX_KEY) | F.contains(key, F.lit("\0"))
    checks = [(key.isNull(), "key_missing"), (long, "key_invalid")]
    if _CORRUPT in rows.columns:
        checks.insert(0, (F.col(_CORRUPT).isNotNull(), "malformed"))
    for name, condition in spec.input.require.items():
        try:
            met = F.expr(condition).cast("boolean")
            _ = rows.where(met).columns, rows.where(met).schema  # Spark Connect checks it only now
        except Exception as error:  # noqa: BLE001 - errors of Spark's parser, and of Connect
            raise InvalidOption(
                f"{spec.file.name}: [input.require] {name} is not a condition on the input's columns: "
                f"{first_line(error)}"
            ) from None
        checks.append((~F.coalesce(met, F.lit(False)), name))
    why = F.lit(None).cast("string")
    for check, name in reversed(checks):  # so that the first one counts
        why = F.when(check, name).otherwise(why)
    return why


def _published(spec: Spec, tables: Tables) -> DataFrame | None:
    """The groups of rows that have a result; None: there are none yet."""
    if not tables.has("results"):
        return None
    rows = tables.read("results")
    if spec.input.key not in rows.columns:
        raise InvalidOption(
            f"{spec.file.name}: [input] key = {spec.input.key!r} is not a column of the published "
            "results: use their key, or another output"
        )
    group = F.concat(F.lit("k"), F.col(_quoted(spec.input.key)).cast("string"))
    return rows.select(group.alias(_GROUP)).distinct().withColumn("_iq_there", F.lit(True))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
