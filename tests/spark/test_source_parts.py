"""The data source without Spark: its writes, whatever happens to attempts, commits and drivers."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from intervalq.errors import InvalidOption, InvalidTask, StoreTimeout
from intervalq.spark._source.datasource import IntervalqSource
from intervalq.spark._source.options import write_options
from intervalq.spark._source.publish import write_of_batch
from intervalq.spark._source.values import tasks_of
from intervalq.spark._source.write import BatchWriter
from intervalq.tasks import Tasks as AsyncTasks
from intervalq.tasks.sync import Tasks
from spark import source_stores
from spark.source_stores import ROWS

queue = source_stores.queue
store = source_stores.store
tasks = source_stores.tasks


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def writer(store: str, **options: str) -> BatchWriter:
    """A copy, as each task of Spark gets one."""
    source = IntervalqSource({"store": store, **options})
    made: BatchWriter = pickle.loads(pickle.dumps(source.writer(ROWS, overwrite=False)))
    return made


def batches(*ids: int | None, size: int = 700) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(ids), size):
        some = ids[first : first + size]
        texts = [f'{{"n": {number}}}' for number in some]
        yield pa.RecordBatch.from_pydict({"id": pa.array(some, pa.int64()), "json": texts})


def breaking(*ids: int) -> Iterator[pa.RecordBatch]:
    yield from batches(*ids)
    raise ValueError("half-way")


def numbers(tasks: Tasks, queue: str) -> list[int]:
    return sorted(task.value["n"] for task in tasks.tasks(queue, limit=None))


def test_only_attempts_that_won_are_inserted(store: str, queue: str, tasks: Tasks) -> None:
    attempts = writer(store, queue=queue, key="id", value="json")
    with pytest.raises(ValueError, match="half-way"):
        attempts.write(breaking(*range(2_000)))
    won = attempts.write(batches(*range(2_000)))
    attempts.write(batches(*range(2_000)))  # a speculative copy
    assert tasks.queues(queue) == []
    assert tasks.queues(attempts.identity.staging)[0].size > 3

    attempts.commit([won, None])
    assert numbers(tasks, queue) == list(range(2_000))
    assert tasks.queues(attempts.identity.staging) == []
    attempts.abort([won, None])  # Spark may or may not do that
    assert len(numbers(tasks, queue)) == 2_000
    with pytest.raises(InvalidTask, match="are gone"):
        attempts.commit([won])
    assert len(numbers(tasks, queue)) == 2_000


@pytest.mark.parametrize("run", [None, "named"])
def test_a_commit_whose_answer_is_lost_is_done_once(
    store: str, queue: str, tasks: Tasks, run: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = AsyncTasks.transaction
    lost: list[str] = []

    @asynccontextmanager
    async def loses(self: AsyncTasks) -> AsyncIterator[Any]:
        async with whole(self) as connection:
            yield connection
        if not lost:
            lost.append(store)
            raise StoreTimeout(store, "no answer")

    once = writer(store, queue=queue, value="json", **({"run": f"{run}{queue}"} if run else {}))
    won = [once.write(batches(*range(5))), once.write(batches())]
    monkeypatch.setattr(AsyncTasks, "transaction", loses)
    once.commit(won)
    assert lost
    assert numbers(tasks, queue) == list(range(5))


def test_a_commit_that_fails_between_two_chunks_inserts_nothing(
    store: str, queue: str, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = writer(store, queue=queue, key="id", value="json")
    won = attempt.write(batches(*range(1_000), 3))
    with pytest.raises(InvalidOption, match=r"keys occur twice .* nothing was inserted: '3';"):
        attempt.commit([won])
    assert tasks.queues(queue) == []
    attempt.abort([won])
    assert tasks.queues(attempt.identity.staging) == []
    with pytest.raises(InvalidOption, match="'7', '8'; keep"):
        attempt.commit([attempt.write(batches(7, 8, 8, 7))])


def test_what_dead_drivers_left_is_removed_after_a_week(
    store: str, queue: str, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other, later = (writer(store, queue=queue, value="json") for _ in range(3))
    dead.write(batches(1))
    other.commit([other.write(batches(2))])
    assert tasks.queues(dead.identity.staging)[0].size == 1  # it may be alive
    monkeypatch.setattr("intervalq.spark._source.publish._OLD", -60)
    later.commit([later.write(batches(3))])
    assert tasks.queues(dead.identity.staging) == []
    assert numbers(tasks, queue) == [2, 3]


def test_a_run_is_written_once_with_its_number_of_rows(store: str, queue: str, tasks: Tasks) -> None:
    for given in ([1, 2, 3], [3, 2, 1]):
        june = writer(store, queue=queue, key="id", value="json", run=f"june-{queue}")
        june.commit([june.write(batches(*given)), june.write(batches())])
        assert numbers(tasks, queue) == [1, 2, 3]
        assert tasks.queues(june.identity.staging) == []
    with pytest.raises(InvalidOption, match="written before, with 3 rows, and these are 2"):
        june.commit([june.write(batches(4, 5))])
    july = writer(store, queue=queue, key="id", value="json", run=f"july-{queue}")
    july.commit([july.write(batches(1))])
    assert numbers(tasks, queue) == [1, 1, 2, 3]


def test_a_batch_of_a_stream_is_inserted_once(store: str, queue: str, tasks: Tasks) -> None:
    for batch, given, there in (
        (0, [1, 2], [1, 2]),
        (0, [5], [1, 2]),
        (3, [3], [1, 2, 3]),
        (0, [4], [1, 2, 3]),
    ):
        attempt = writer(store, queue=queue, value="json")
        attempt.identity = write_of_batch(queue, batch)
        attempt.commit([attempt.write(batches(*given))])
        assert numbers(tasks, queue) == there
        assert tasks.queues(attempt.identity.staging) == []


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"id": None}, {"key": "id"}, "row 0 of partition 0 can't be a task: its 'id' is null"),
        ({"id": 1, "x": float("nan")}, {"key": "id"}, r"\(key '1'\) can't be a task: .*finite"),
        ({"x": "{"}, {"value": "x"}, "is not JSON"),
        ({"x": "abc"}, {"max_bytes": "8"}, "11 bytes as JSON, but 8 are allowed"),
        ({"queue": "no  queue"}, {"queue": None}, "not a queue name"),
        ({"queue": None}, {"queue": None}, "its 'queue' is null"),
        ({"k": "\x00"}, {"exclusive_key": "k"}, "without control characters"),
    ],
)
def test_rows_that_are_no_tasks_are_named(
    row: dict[str, Any], options: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    given = {"store": str(tmp_path / "app.db"), "queue": "calls", **options}
    made = write_options({k: v for k, v in given.items() if v is not None}, list(row), streams=False)
    with pytest.raises(InvalidTask, match=message):
        list(tasks_of(iter([pa.RecordBatch.from_pylist([row])]), made, "w", 0))


def test_values_of_all_types(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 5, 12, 30, 0, 250_000, UTC)
    columns: dict[str, tuple[Any, pa.DataType, Any]] = {
        "id": (7, pa.int32(), 7),
        "at": (moment, pa.timestamp("us", "America/New_York"), "2026-11-05T12:30:00.250000+00:00"),
        "local": (moment.replace(tzinfo=None), pa.timestamp("us"), "2026-11-05T12:30:00.250000"),
        "day": (date(2026, 11, 5), pa.date32(), "2026-11-05"),
        "price": (Decimal("0.0000001"), pa.decimal128(20, 10), "0.0000001000"),
        "bytes": (b"\xff\x00", pa.binary(), base64.b64encode(b"\xff\x00").decode()),
        "pause": (timedelta(seconds=1.5), pa.duration("us"), 1.5),
        "map": ([(1, moment)], pa.map_(pa.int32(), pa.timestamp("us", "UTC")), {"1": moment.isoformat()}),
        "list": ([b"a", None], pa.list_(pa.binary()), ["YQ==", None]),
        "struct": ({"d": Decimal(1)}, pa.struct([("d", pa.decimal128(5, 1))]), {"d": "1.0"}),
        "none": (None, pa.map_(pa.string(), pa.string()), None),
    }
    batch = pa.RecordBatch.from_arrays(
        [pa.array([value], kind) for value, kind, _ in columns.values()], names=list(columns)
    )
    given = {"store": str(tmp_path / "app.db"), "queue": "calls", "key": "at", "exclusive_key": "id"}
    options = write_options(given, list(columns), streams=False)
    (made,) = tasks_of(iter([batch]), options, "w", 0)
    assert json.loads(made.insert.json) == {name: reported for name, (_, _, reported) in columns.items()}
    assert (made.name, made.insert.key) == ("2026-11-05T12:30:00.250000+00:00", "7")
    (elsewhere,) = tasks_of(iter([batch]), options, "w", 1)
    (other,) = tasks_of(iter([batch]), options, "w2", 0)
    assert made.insert.id == elsewhere.insert.id != other.insert.id
