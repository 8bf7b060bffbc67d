"""The data source `intervalq` with a real Spark: rows go in and out exactly once, whatever is repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from intervalq.cli._run.results import Result
from intervalq.spark._source.datasource import IntervalqSource, register
from intervalq.spark._source.options import stream_options
from intervalq.spark._source.stream_buffer import StreamBuffer
from intervalq.spark._source.write import StreamWriter
from intervalq.tasks.sync import Tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Read = Callable[..., "DataFrame"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "app.db")


@pytest.fixture
def tasks(store: str) -> Iterator[Tasks]:
    with Tasks(store) as handle:
        yield handle


def sizes(tasks: Tasks) -> dict[str, int]:
    return {queue.name: queue.size for queue in tasks.queues()}


def save(rows: DataFrame, store: str, **options: str) -> None:
    rows.write.format("intervalq").options(store=store, queue="calls", **options).mode("append").save()


def test_a_named_write_is_done_once_however_often_the_job_is_run(
    spark: SparkSession, store: str, tasks: Tasks
) -> None:
    def breaks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if 39 in batch.column("id").to_pylist():
                raise ValueError("half-way")

    rows = spark.range(60, numPartitions=3).selectExpr("id", "concat('u', id) as url")
    with pytest.raises(Exception, match="half-way"):
        save(rows.mapInArrow(breaks, "id long, url string"), store, key="id", run="june")
    assert "calls" not in sizes(tasks)

    save(rows, store, key="id", run="june")
    first = {task.id: task.value for task in tasks.tasks("calls", limit=None)}
    assert sorted(value["id"] for value in first.values()) == list(range(60))
    save(rows.repartition(2), store, key="id", run="june")
    assert {task.id for task in tasks.tasks("calls", limit=None)} == set(first)


def test_a_stream_whose_commit_fails_after_it_was_done_inserts_once(
    spark: SparkSession, store: str, tasks: Tasks, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"

    class Failing(StreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if not failed.exists():
                failed.touch()
                raise RuntimeError("after it was done")

    class Source(IntervalqSource):
        @classmethod
        def name(cls) -> str:
            return "intervalq_failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802
            return Failing(super().streamWriter(schema, overwrite).options)

    def stream() -> StreamingQuery:
        writer = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).writeStream
        writer = writer.format("intervalq_failing").options(store=store, queue="calls", key="id")
        return writer.trigger(availableNow=True).start(checkpointLocation=str(tmp_path / "checkpoint"))

    spark.dataSource.register(Source)
    spark.range(40, numPartitions=2).write.parquet(str(tmp_path / "in"))
    with pytest.raises(Exception, match="after it was done"):
        stream().awaitTermination()
    inserted = {task.id for task in tasks.tasks("calls", limit=None)}
    assert len(inserted) == 40  # which the abort has not undone

    spark.range(10).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    stream().awaitTermination()
    assert inserted < {task.id for task in tasks.tasks("calls", limit=None)}
    assert sizes(tasks) == {"calls": 50, "intervalq.writes": 1}


async def test_a_stream_reads_a_batch_that_had_not_ended_again(
    spark: SparkSession, store: str, tasks: Tasks, tmp_path: Path
) -> None:
    planned: list[str] = []
    done: Counter[str] = Counter()

    def fails(batch: DataFrame, number: int) -> None:
        planned.extend(row.id for row in batch.collect())
        raise RuntimeError("before it was done")

    def works(batch: DataFrame, number: int) -> None:
        ids = [row.id for row in batch.collect()]
        assert number > 0 or ids == planned
        done.update(ids)

    def stream(work: Callable[[DataFrame, int], None]) -> None:
        reader = spark.readStream.format("intervalq").options(**options).load()
        writer = reader.writeStream.foreachBatch(work).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start().awaitTermination()

    options = {"store": store, "queue": "cars", "stream": "test", "max_tasks": "20"}
    given = [tasks.insert("cars", number, key=f"k{number % 31}") for number in range(30)]
    with pytest.raises(Exception, match="before it was done"):
        stream(fails)
    assert len(planned) == 20

    # Meanwhile another driver has claimed some, and died before its checkpoint had them.
    given += [tasks.insert("cars", number) for number in range(5)]
    buffer = StreamBuffer(stream_options(options), "dead")
    assert await buffer.fill(20, 24) == 24
    await buffer.aclose()

    stream(works)
    assert done == Counter(given)
    left = sizes(tasks)
    assert set(left) == {"intervalq.stream.test"}
    assert left["intervalq.stream.test"] <= 16  # the head, and the last batch


def test_tables_are_what_the_store_has(spark: SparkSession, store: str, tasks: Tasks, tmp_path: Path) -> None:
    def read(**options: str) -> DataFrame:
        return spark.read.format("intervalq").options(store=store, **options).load()

    tasks.insert("cars", {"color": "red"}, key="car1", id="one")
    tasks.insert("trains", [1, 2.5])
    (car,) = read(queue="cars").collect()
    assert (car.id, car.queue, car.key, json.loads(car.value)) == ("one", "cars", "car1", {"color": "red"})
    assert car.error is None
    assert car.claimant is None
    assert abs(car.created.timestamp() - tasks.tasks(ids=["one"])[0].created) < 1e-3
    assert {row.queue: row.size for row in read(table="queues").collect()} == {"cars": 1, "trains": 1}

    result = Result(
        job={"n": 1}, shard=1, ticket=7, due=1.5, started=1.6, ended=2.0, exit_code=None, stdout="out",
        stderr="", attempt=2,
    )  # fmt: skip
    (tmp_path / "log.jsonl").write_text(f"{result.to_json()}\n")
    register(spark)  # a repetition does no harm
    (line,) = read(table="log", path=str(tmp_path / "log.jsonl")).collect()
    assert (line.job, line.ticket, line.exit_code, line.attempt) == ('{"n":1}', 7, None, 2)
    assert line.due.timestamp() == 1.5
