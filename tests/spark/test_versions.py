"""What versions of PySpark name differently; also run on the oldest one: see .ci/spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from intervalq.errors import PySparkTooOld
from intervalq.spark import _compat as compat

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_schemas(spark: SparkSession) -> None:
    given = compat.struct_of("a int, b timestamp, c struct<d:decimal(5,2)>")
    assert given.simpleString() == "struct<a:int,b:timestamp,c:struct<d:decimal(5,2)>>"
    schema = compat.arrow_schema(given)
    assert [str(field.type) for field in schema] == [
        "int32", "timestamp[us, tz=UTC]", "struct<d: decimal128(5, 2)>",
    ]  # fmt: skip
    with pytest.raises(Exception, match=r"(?i)syntax|parse"):
        compat.struct_of("a int,, b")


def test_rows_and_errors(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    rows = spark.range(3).selectExpr("id", "named_struct('b', array(id)) as a")
    assert sorted(compat.rows_of(rows), key=lambda row: row["id"]) == [
        {"id": number, "a": {"b": [number]}} for number in range(3)
    ]
    with pytest.raises(AnalysisException) as missing:
        spark.read.parquet(str(tmp_path / "nothing"))
    assert compat.condition(missing.value) == "PATH_NOT_FOUND"


def test_what_a_version_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    compat.require(compat.release(), "this")
    with pytest.raises(
        PySparkTooOld, match=r"^this needs PySpark 99\.1 or newer, and this is \d\.\d: upgrade"
    ):
        compat.require((99, 1), "this")


def test_tasks_are_tables_since_4_0(spark: SparkSession, tmp_path: Path) -> None:
    import intervalq.spark

    if compat.release() < (4, 0):
        with pytest.raises(PySparkTooOld, match=r"the data source intervalq needs PySpark 4\.0"):
            intervalq.spark.register(spark)
        return
    intervalq.spark.register(spark)
    place = {"store": f"sqlite://{tmp_path}/state.db", "queue": "q"}
    spark.range(3).write.format("intervalq").options(**place, key="id").mode("append").save()
    assert spark.read.format("intervalq").options(**place).load().count() == 3
    if compat.release() < (4, 1):
        rows = spark.readStream.schema("id long").json(str(tmp_path))
        writer = rows.writeStream.format("intervalq").options(**place)
        with pytest.raises(
            Exception, match=r"writing a stream to the data source intervalq needs PySpark 4\.1"
        ):
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
