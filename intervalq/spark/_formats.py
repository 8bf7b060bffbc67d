"""The formats of tables: how each is read, and what a session that doesn't know one lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from intervalq.spark._compat import release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

TABLES: Final = ("parquet", "delta", "iceberg", "table")
"""Formats of tables. The last one: a table by its name, whatever its format is."""

_LACKS: Final = (
    *("DATA_SOURCE_NOT_FOUND", "PLUGIN_CLASS_NOT_FOUND", "Cannot find catalog plugin class"),
    *("REQUIRES_SINGLE_PART_NAMESPACE", "DELTA_CONFIGURE"),
)
"""Texts in errors of Spark and Delta that show that a jar or a setting is missing."""


def is_name(place: str, form: str) -> bool:
    """Whether a place is the name of a table, and not a path."""
    return form == "table" or (form in {"delta", "iceberg"} and "/" not in place)


def read(reader: DataFrameReader, place: str, form: str) -> DataFrame:
    """The rows at a place, in a format. Errors may be raised only when the rows are first used."""
    return reader.table(place) if is_name(place, form) else reader.format(form).load(place)


def lacking(error: Exception, form: str) -> str:
    """What a session needs, if an error shows that it doesn't know a format; otherwise empty."""
    if form not in {"delta", "iceberg"} or not any(word in str(error) for word in _LACKS):
        return ""
    spark = ".".join(map(str, release()))
    scala = "2.12" if release() < (4, 0) else "2.13"
    if form == "delta":
        return (
            f": start Spark {spark} with the package of Delta that belongs to it (--packages "
            f"io.delta:delta-spark_{scala}:VERSION), with spark.sql.extensions="
            "io.delta.sql.DeltaSparkSessionExtension, and with spark.sql.catalog.spark_catalog="
            "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    return (
        f": start Spark with --packages org.apache.iceberg:iceberg-spark-runtime-{spark}_{scala}:VERSION, "
        "and with a catalog: spark.sql.catalog.NAME=org.apache.iceberg.spark.SparkCatalog, and its settings"
    )
