"""What versions of PySpark name differently; also run on the oldest one: see .ci/spark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from intervalq.errors import InvalidOption, PySparkTooOld
from intervalq.pipeline import read_spec, run
from intervalq.pipeline._published import Tables
from intervalq.spark import _compat as compat
from intervalq.spark import audit, remaining
from spark import clusters
from spark.pipelines import Small

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


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


def test_a_pipeline_on_tables_of_iceberg(
    spark: SparkSession, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Iceberg's jars, if they are named; without them, the remedy is said."""
    whole = small.file.read_text().replace('"visits.jsonl"', '"lake.visits.requests"\nformat = "iceberg"')
    small.file.write_text(whole.replace('"out"', '"out"\nformat = "iceberg"\ntables = "lake.visits"'))
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
    spark.conf.set("spark.sql.catalog.lake.warehouse", f"file://{small.folder}/lake")
    spec = read_spec(small.file)
    if not clusters.ICEBERG:
        needs = r"--packages org\.apache\.iceberg:iceberg-spark-runtime-\d\.\d_2\.1[23]:VERSION"
        with pytest.raises(InvalidOption, match=rf"\[pipeline\] tables = 'lake\.visits': .*{needs}"):
            run(spec, spark=spark)
        small.file.write_text(whole)
        with pytest.raises(InvalidOption, match=rf"\[input\] path can't be read as iceberg: .*{needs}"):
            run(read_spec(small.file), spark=spark)
        return
    with pytest.raises(InvalidOption, match=r"no such schema: CREATE SCHEMA lake\.visits"):
        run(spec, spark=spark)
    spark.sql("create schema lake.visits")
    requests = spark.read.json(str(small.folder / "visits.jsonl"))
    requests.drop("_corrupt_record").writeTo("lake.visits.requests").create()
    assert remaining(requests, "lake.visits.results", "id", format="iceberg").count() == requests.count()
    small.set("bad", "name5")

    replace, calls = Tables.replace, list[str]()

    def dies_after(self: Tables, name: str, rows: DataFrame, id_: str) -> None:
        replace(self, name, rows, id_)
        calls.append(name)
        if len(calls) == 2:
            raise SystemExit

    monkeypatch.setattr(Tables, "replace", dies_after)
    with pytest.raises(SystemExit):
        run(spec, spark=spark)
    small.set("bad")
    outcome = run(spec, spark=spark)
    assert calls == ["results", "log", "results", "log", "rejects", "results", "log"]
    assert [(one.results, one.failed) for one in outcome.passes] == [(50, 1), (1, 0)]
    assert small.called() == Counter(small.callable) + Counter(["k5"])
    found = [row.id for row in spark.table("lake.visits.results").collect()]
    assert Counter(found) == Counter(small.callable)
    log = spark.table("lake.visits.log")
    judged = audit(spark, log, interval=0.001, burst=30_000)
    assert (log.count(), judged.ok) == (52, True)
    assert spark.table("lake.visits.rejects").where("reason = 'call_failed'").count() == 1
    assert (
        remaining(requests.where("id like 'k%'"), "lake.visits.results", "id", format="iceberg").count() == 0
    )
    assert not list((small.folder / "out").glob("results"))


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
            # The stream's own thread plans it, after `start` has returned.
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()
