"""`paced` on DataFrames: a local session, a stream, and a client of Spark Connect."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from pyspark.errors import PySparkException

from intervalq import IntervalQueue
from intervalq.errors import InvalidOption, LedgerNotFound, QueueNotFound
from intervalq.ledger.rules import Beat, Drop
from intervalq.ledger.store import open_ledger_store
from intervalq.spark import cancel, paced, plan, progress, remaining
from spark.clusters import Connect
from spark.program_calls import caller
from spark.stand_in import SparkApi

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECT: Final = Path(__file__).parent / "program_connect.py"


def doubler() -> Any:
    """A function that is pickled by value, because executors can't import this module."""

    async def double(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"twice": 2 * row["id"]}

    return double


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/state.db"


@pytest.fixture
def queue(store: str) -> IntervalQueue:
    return IntervalQueue("api", interval=0.005, burst=20, store=store)


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(40, numPartitions=2)


def test_columns_and_the_log(frame: DataFrame, queue: IntervalQueue) -> None:
    wide = frame.selectExpr("id", "named_struct('a', id) s", "timestamp_seconds(id) t", "array(id) l")
    out = wide.transform(paced(doubler(), "twice long, none string", queue=queue, key="id", run="r"))
    assert out.columns == ["id", "s", "t", "l", "twice", "none", "_iq"]
    rows = out.collect()
    assert sorted((row.id, row.s.a, row.l, row.twice, row.none) for row in rows) == [
        (key, key, [key], 2 * key, None) for key in range(40)
    ]
    tickets = {row._iq.key: row._iq.ticket for row in rows}
    assert len(set(tickets.values())) == 40  # not 1 to 40: a slot that is missed is given up
    assert len({row._iq.due for row in rows}) == 40
    assert tickets.keys() == {str(key) for key in range(40)}
    before = progress(queue, "r")
    assert (before.done, before.failed, before.in_flight) == (40, 0, 0)
    assert before.starts >= 40
    again = out.select("_iq").collect()  # another plan, with the log's column alone
    assert {row._iq.key: row._iq.ticket for row in again} == tickets
    assert progress(queue, "r").starts == before.starts  # not one slot more
    assert progress(queue).done is None


def test_order_within_a_task(spark: SparkSession, queue: IntervalQueue) -> None:
    upside_down = spark.range(20, numPartitions=1).selectExpr("id", "-id as rank")
    out = upside_down.transform(
        paced(doubler(), "twice long", queue=queue, ledger=None, order_by="rank", concurrency=1)
    )
    by_ticket = sorted((row._iq.ticket, row.id) for row in out.collect())
    assert [key for _, key in by_ticket] == list(range(19, -1, -1))


def test_columns_that_can_not_be(frame: DataFrame, queue: IntervalQueue) -> None:
    for schema, options, why in (
        ("ID long", {}, "two columns ID"),
        ("a long, A long", {}, "two columns A"),
        ("_iq long", {}, "two columns _iq"),
        ("a long", {"order_by": "b"}, "order_by='b' is not a column: there are id"),
        ("a long", {"key": "b", "run": "r", "ledger": "store"}, "key='b' is not a column"),
    ):
        settings: dict[str, Any] = {"ledger": None, **options}
        with pytest.raises(InvalidOption, match=why):
            frame.transform(paced(doubler(), schema, queue=queue, **settings))


def test_an_error_of_the_function_reaches_the_driver(frame: DataFrame, queue: IntervalQueue) -> None:
    async def fails(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        raise RuntimeError("the API is down")

    with pytest.raises(Exception, match=r"the API is down[\s\S]*row '\d+', call 1 of this task"):
        frame.transform(paced(fails, "a long", queue=queue, key="id", run="r")).collect()


def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, spark_api: SparkApi, store: str, tmp_path: Path
) -> None:
    """The ledger knows rows that an earlier start of the stream called, though the checkpoint was lost."""
    source = tmp_path / "in"
    calls = paced(caller(spark_api.url, "s"), "answer string", queue=None, key="id", run="s", ledger=store)

    def stream(checkpoint: str, out: str) -> int:
        rows = spark.readStream.schema("id long").json(str(source)).transform(calls)
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(availableNow=True).start(str(tmp_path / out))
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / out)).count()

    spark.range(10, numPartitions=1).write.json(str(source))
    assert stream("a", "one") == 10
    spark.range(10, 15, 1, 1).write.mode("append").json(str(source))
    assert stream("a", "one") == 15
    assert stream("b", "two") == 15
    assert spark_api.repeats() == {}
    assert spark_api.count == 15


def test_what_remains(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "published")
    assert remaining(frame, path, "id").count() == 40
    spark.range(10).selectExpr("id", "'x' as y").write.parquet(path)
    left = remaining(frame, path, "id")
    assert left.columns == ["id"]
    assert sorted(row.id for row in left.collect()) == list(range(10, 40))
    with pytest.raises(InvalidOption, match="key='b' is not a column"):
        remaining(frame, path, "b")
    with pytest.raises(InvalidOption, match="key='other' is not a column of"):
        remaining(frame.selectExpr("id as other"), path, "other")

    assert remaining(frame, "published", "id", format="table").count() == 40
    spark.read.parquet(path).write.option("path", f"{path}.table").saveAsTable("published")
    try:
        assert remaining(frame, "published", "id", format="table").count() == 30
    finally:
        spark.sql("drop table published")
    with pytest.raises(InvalidOption, match="format='xml' must be one of parquet, delta"):
        remaining(frame, path, "id", format="xml")


def test_a_run_is_cancelled_from_the_driver(
    frame: DataFrame, spark_api: SparkApi, store: str, queue: IntervalQueue
) -> None:
    out = frame.transform(
        paced(caller(spark_api.url, "c"), "answer string", queue=queue, key="id", run="c", concurrency=2)
    )
    failed: list[str] = []

    def collect() -> None:
        try:
            out.collect()
        except PySparkException as error:
            failed.append(str(error))

    spark_api.hold()
    thread = threading.Thread(target=collect)
    thread.start()
    spark_api.until(lambda: len(spark_api.in_flight()) == 2, "both tasks' first calls")
    cancel("c", store=queue)
    spark_api.release()
    thread.join()
    (error,) = failed
    assert "uncancel c" in error
    assert spark_api.repeats() == {}
    assert progress(queue, "c").done == spark_api.count  # calls that ended are kept
    with pytest.raises(LedgerNotFound):
        cancel("nothing", store=store)


def test_the_plan(spark: SparkSession, frame: DataFrame, store: str) -> None:
    queue = IntervalQueue("p", rate="100/s", store=store)
    found = plan(frame.repartition(40), queue, latency=0.5)
    assert (found.rows, found.partitions, found.tasks_needed) == (40, 40, 4)
    assert (found.in_flight, found.rate) == (50, 100)
    assert found.seconds == pytest.approx(0.4)
    (warning,) = found.warnings
    assert "you need 4 tasks, not 40" in warning
    assert "you need 4 tasks, not 40" in str(found)
    assert plan(frame, queue, latency="10ms").warnings == ()
    (warning,) = plan(frame, queue, latency=10, concurrency=10).warnings
    assert "2 tasks keep too few calls in flight: use df.repartition(101)" in warning
    assert plan(frame, IntervalQueue("fast", rate="5000/s", store=store), latency=0).tasks_needed == 5
    limited = IntervalQueue("l", rate="100/s", limits=["5/s", "9 tokens/hour"], store=store)
    assert plan(frame, limited, latency=1).rate == 5
    tokens = plan(frame, IntervalQueue("t", limits=["9 tokens/hour"], store=store), latency=1)
    assert (tokens.rate, tokens.in_flight, tokens.seconds, tokens.warnings) == (None, None, None, ())
    assert "no interval, only limits" in str(tokens)
    with pytest.raises(InvalidOption, match="has no interval"):
        plan(frame, IntervalQueue("unknown", store=store), latency=1)
    with pytest.raises(QueueNotFound):
        progress(IntervalQueue("unknown", store=store))


def test_the_plan_warns_of_rows_that_are_paid_for_and_dropped(spark: SparkSession, store: str) -> None:
    queue = IntervalQueue("p", rate="100/s", store=store)

    def fetch(row: dict[str, Any], ctx: object) -> dict[str, Any]:
        raise AssertionError("plan calls nothing")

    before = spark.range(9).where("id > 2").limit(4)
    rows = before.transform(paced(fetch, "a int", queue=queue, ledger=None))
    others = spark.range(3)
    groups = rows.groupBy("a").count().where("count > 1").orderBy("count").limit(2)

    def warned(result: DataFrame) -> list[str]:
        return [
            text for text in plan(before, queue, latency=0, result=result).warnings if "after paced" in text
        ]

    for fine in (
        rows,
        rows.select("a"),
        rows.repartition(2),
        rows.join(others, "id"),
        rows.union(rows),
        groups,
    ):
        assert warned(fine) == []
    for result, step in [
        (rows.where("a = 1").select("id"), "Filter"),
        (rows.limit(3), "CollectLimit"),
        (rows.repartition(2).limit(3).join(others, "id"), "Limit"),
        (rows.orderBy("a").limit(2), "TakeOrdered"),
        (rows.sample(0.5), "Sample"),
        (rows.join(others, "id", "left_semi"), "LeftSemi"),
    ]:
        assert any(step in text for text in warned(result)), step
    (warning,) = warned(rows.orderBy("a"))
    assert "reads its input twice" in warning
    assert len(warned(rows.union(rows).where("a > 1"))) == 1
    with pytest.raises(InvalidOption, match="give the DataFrame before paced"):
        plan(rows, queue, latency=0)
    assert plan(others.withColumnRenamed("id", "intervalq_paced"), queue, latency=0).rows == 3


@pytest.fixture
def tag(redis_url: str) -> Iterator[str]:
    """A part of names; the ledger is dropped at the end."""
    tag = secrets.token_hex(4)

    async def forget() -> None:
        ledgers = open_ledger_store(redis_url)
        await ledgers.apply(f"connect-{tag}", Beat("x", 1))
        await ledgers.apply(f"connect-{tag}", Drop())
        await ledgers.aclose()

    yield tag
    anyio.run(forget)


def test_over_connect(connect_server: Connect, spark_api: SparkApi, redis_url: str, tag: str) -> None:
    program = connect_server.submit(CONNECT, spark_api.url, redis_url, tag)
    try:
        answer = json.loads(program.result())
    finally:
        program.close()
    assert len(set(answer.pop("tickets"))) == 30
    assert answer == {
        "answers": sorted(f"connect-{tag}-{key}" for key in range(30)),
        "plan": [30, 2, 1],
        "done": 30,
    }
    assert spark_api.repeats() == {}
