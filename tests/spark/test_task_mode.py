"""The mode without a Spark slot held: Spark writes tasks, `intervalq work` calls, Spark reads the results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from cli.command_line import CommandLine
from intervalq.demo import countries
from intervalq.demo.api import DemoAPI
from intervalq.tasks.sync import Tasks
from spark.stand_in import SparkApi
from spark_tasks import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = """
import asyncio, urllib.request
from intervalq import IntervalQueue
from intervalq.tasks import Claim, Tasks

tasks = Tasks("app.db")
api = IntervalQueue("api", rate="200/s", burst=20, store="queues.db")

@tasks.worker("calls", queue=api, concurrency=20)
async def call(task: Claim):
    def get():
        with urllib.request.urlopen(f"URL/{task.value['id']}") as answer:
            return answer.status
    status = await asyncio.to_thread(get)
    # In the step that ends the task: the result is there, or the task is.
    return tasks.new("results", {"id": task.value["id"], "status": status})
"""

ROWS = 200


def test_spark_writes_workers_call_and_spark_reads(
    spark: SparkSession, spark_api: SparkApi, intervalq: CommandLine, tmp_path: Path
) -> None:
    store = str(tmp_path / "app.db")
    intervalq.write("app.py", APP.replace("URL", spark_api.url))
    rows = spark.range(ROWS, numPartitions=2).selectExpr("cast(id as string) as id")
    rows.write.format("intervalq").options(store=store, queue="calls", key="id", run="all").mode(
        "append"
    ).save()

    spark_api.hold("7")  # so that there is a moment in which a call is waiting
    workers = intervalq.start("work", "app", "--processes", "2", "--until-empty")
    spark_api.until(spark_api.in_flight)
    assert not spark.sparkContext.statusTracker().getActiveStageIds()
    spark_api.until(lambda: spark_api.count == ROWS)
    spark_api.release("7")
    assert workers.wait(60) == 0, workers.communicate()
    assert spark_api.per_key() == Counter(str(number) for number in range(ROWS))

    def result(table: DataFrame) -> DataFrame:
        return table.selectExpr("from_json(value, 'id string, status int') as result").select("result.*")

    results = spark.read.format("intervalq").options(store=store, queue="results").load()
    assert {tuple(row) for row in result(results).collect()} == {(str(n), 200) for n in range(ROWS)}

    stream = spark.readStream.format("intervalq").options(store=store, queue="results", stream="results")
    writer = result(stream.load()).writeStream.format("json").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out")
    ).awaitTermination()
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert Counter(json.loads(line)["id"] for line in lines) == spark_api.per_key()
    with Tasks(store) as tasks:
        assert {queue.name for queue in tasks.queues()} == {"intervalq.stream.results", "intervalq.writes"}


def test_the_demo_calls_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(DemoAPI(limit=50)) as api:
        done = run(spark, str(tmp_path / "app.db"), api, countries()[:20])
    assert done == {"rows": 20, "results": 20, "calls": 20, "refused": 0}
