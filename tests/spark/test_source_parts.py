"""The data source without Spark: what staged rows, buffers and logs bear, and what is refused."""

from __future__ import annotations

import base64
import json
import pickle
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from pyspark.sql.types import LongType, StringType, StructType

from intervalq.errors import InvalidOption, InvalidTask, StoreTimeout, UnknownStore
from intervalq.ledger.rules import Claim, Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.spark._source import log as _source_log
from intervalq.spark._source import read as _source_read
from intervalq.spark._source.datasource import IntervalqSource
from intervalq.spark._source.options import StreamOptions, read_options, stream_options, write_options
from intervalq.spark._source.publish import clean, write_of_batch, write_once
from intervalq.spark._source.read import TableReader
from intervalq.spark._source.stream_buffer import BufferTaken, StreamBuffer
from intervalq.spark._source.values import tasks_of
from intervalq.spark._source.write import BatchWriter
from intervalq.tasks import Tasks as AsyncTasks
from intervalq.tasks.sync import Tasks

ROWS = StructType().add("id", LongType()).add("json", StringType())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "app.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def queue(store: str) -> Iterator[str]:
    """A queue of its own, which is empty again in the end."""
    name = f"q{secrets.token_hex(6)}"
    yield name
    with Tasks(store) as tasks:
        while left := tasks.tasks(name, values=False):
            tasks.modify(*(task.delete() for task in left))


@pytest.fixture
def tasks(store: str) -> Iterator[Tasks]:
    with Tasks(store) as handle:
        yield handle


def writer(store: str, **options: str) -> BatchWriter:
    """One as it comes to a task of Spark."""
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


# --- writing -----------------------------------------------------------------------------------------------


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
    attempts.abort([won, None])  # nobody knows whether Spark does
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
    ("row", "options", "said"),
    [
        ({"id": None}, {"key": "id"}, "row 0 of partition 0 can't be a task: its 'id' is null"),
        ({"id": 1, "x": float("nan")}, {"key": "id"}, r"\(key '1'\) can't be a task: .*finite"),
        ({"x": "{"}, {"value": "x"}, "is not JSON"),
        ({"x": "abc"}, {"max_bytes": "8"}, "11 bytes as JSON, but 8 are allowed"),
        ({"queue": "no queue"}, {"queue": None}, "not a queue name"),
        ({"queue": None}, {"queue": None}, "its 'queue' is null"),
        ({"k": "\x00"}, {"exclusive_key": "k"}, "without control characters"),
    ],
)
def test_rows_that_are_no_tasks_are_named(
    row: dict[str, Any], options: dict[str, str | None], said: str, tmp_path: Path
) -> None:
    given = {"store": str(tmp_path / "app.db"), "queue": "calls", **options}
    made = write_options({k: v for k, v in given.items() if v is not None}, list(row), streams=False)
    with pytest.raises(InvalidTask, match=said):
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
    assert json.loads(made.insert.json) == {name: said for name, (_, _, said) in columns.items()}
    assert (made.name, made.insert.key) == ("2026-11-05T12:30:00.250000+00:00", "7")
    (elsewhere,) = tasks_of(iter([batch]), options, "w", 1)
    (other,) = tasks_of(iter([batch]), options, "w2", 0)
    assert made.insert.id == elsewhere.insert.id != other.insert.id


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "cars"}, "there is no table='cars'; there are tasks, queues, ledger, log"),
        ({"tables_": "tasks"}, "a read has no option 'tables_'; there are store, table"),
        ({"table": "ledger"}, "give ledger="),
        ({"table": "log"}, "give path="),
        ({"store": "memory://"}, "memory:// belongs to one process"),
        ({"queue": "no queue"}, "not a queue name"),
        ({"store": "file:///state.json"}, "for durable tasks use"),
    ],
)
def test_reads_that_can_not_be(options: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidOption, ValueError, UnknownStore), match=said):
        IntervalqSource({"store": str(tmp_path / "app.db"), **options}).schema()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give the option queue, or a column named queue"),
        ({"queue": "q", "key": "nr"}, "key='nr' is not a column of these rows; they have id, json"),
        ({"queue": "q", "max_bytes": "many"}, "max_bytes='many' is not a whole number"),
        ({"queue": "q", "run": "\n"}, "without control characters"),
    ],
)
def test_writes_that_can_not_be(options: dict[str, str], said: str, tmp_path: Path) -> None:
    source = IntervalqSource({"store": str(tmp_path / "app.db"), **options})
    with pytest.raises(ValueError, match=said):
        source.writer(ROWS, overwrite=False)


def test_streams_that_can_not_be(tmp_path: Path) -> None:
    given = {"store": str(tmp_path / "app.db"), "queue": "q"}
    for more, said in (({}, "give stream="), ({"stream": "x" * 101}, "too long"), ({"stream": "/"}, "name")):
        with pytest.raises(ValueError, match=said):
            stream_options({**given, **more})
    source = IntervalqSource({**given, "run": "june"})
    with pytest.raises(InvalidOption, match="omit run"):
        source.streamWriter(ROWS, overwrite=False)
    with pytest.raises(InvalidOption, match="can only be added"):
        source.writer(ROWS, overwrite=True)
    with pytest.raises(InvalidOption, match=r"omit \.schema"):
        IntervalqSource(given).reader(ROWS)


# --- buffers ------------------------------------------------------------------------------------------------


async def test_a_shelf_keeps_tasks_by_number_whoever_has_it(store: str, queue: str) -> None:
    options = StreamOptions(store=store, queue=queue, stream=queue, max_tasks=10)
    first, second = StreamBuffer(options, "first"), StreamBuffer(options, "second")
    async with AsyncTasks(store) as tasks:
        await tasks.modify(*(tasks.new(queue, number) for number in range(1_000)))
        await tasks.put(queue, range(1_000, 1_010))  # on Postgres these can't be claimed with other changes
        assert await first.fill(0, 600) == 600
        seen = [(row.id, row.json) for row in await second.rows(1, 600)]
        assert seen == [(row.id, row.json) for row in await first.rows(1, 600)]
        assert await second.fill(600, 5_000) == 1_010
        rows = [*await second.rows(1, 600), *await second.rows(601, 1_010)]
        assert Counter(row.json for row in rows) == Counter(map(str, range(1_010)))
        assert {row.queue for row in rows} == {queue}
        assert await tasks.queues(queue) == []

        for after in (first.fill(600, 601), first.commit(600)):
            with pytest.raises(BufferTaken, match="taken over by another query"):
                await after
        await second.commit(950)
        await second.commit(2)  # is behind
        head = await second.head()
        assert (head.moved, head.committed) == (1_010, 950)
        with pytest.raises(InvalidOption, match="only 60 are left"):
            await second.rows(950, 1_010)
        await second.commit(5_000)
        (left,) = await tasks.tasks(f"intervalq.stream.{queue}")
        await tasks.modify(left.delete())
    await first.aclose()
    await second.aclose()


async def test_a_move_whose_answer_is_lost_is_done_once(
    store: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modify = AsyncTasks.modify
    lost: list[object] = []

    async def loses(self: AsyncTasks, *parts: Any, connection: Any = None) -> Any:
        modified = await modify(self, *parts, connection=connection)
        if len(lost) < 2:
            lost.append(parts)
            raise StoreTimeout(store, "no answer")
        return modified

    buffer = StreamBuffer(StreamOptions(store=store, queue=queue, stream=queue, max_tasks=10), "one")
    async with AsyncTasks(store) as tasks:
        for number in range(3):
            await tasks.insert(queue, number)
        monkeypatch.setattr(AsyncTasks, "modify", loses)  # of the owner's name, and of the tasks
        assert await buffer.fill(0, 10) == 3
        assert len(lost) == 2
        assert sorted(row.json for row in await buffer.rows(1, 3)) == ["0", "1", "2"]
        await buffer.commit(3)
        (left,) = await tasks.tasks(f"intervalq.stream.{queue}")
        await tasks.modify(left.delete())
    await buffer.aclose()


# --- tables -------------------------------------------------------------------------------------------------


def test_tasks_are_read_in_pages(
    store: str, queue: str, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_source_read, "_PAGE", 10)
    given = {tasks.insert(queue, number, id=f"{queue}-{number}") for number in range(30)}
    table = TableReader(read_options({"store": store, "queue": queue}))
    (partition,) = table.partitions()
    read = Counter(row[0] for row in table.read(partition))
    assert read == Counter(given)
    tasks.insert(queue, 0, id=f"{queue}-30")
    half = table.read(partition)
    assert next(half)[0] in {*given, f"{queue}-30"}
    half.close()  # type: ignore[attr-defined]  # it is a generator


async def test_a_ledger_is_read_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_source_read, "_PAGE", 10)
    url = f"sqlite://{tmp_path}/state.db"
    ledgers = open_ledger_store(url)
    ends = tuple(Ended(f"k{number:02}", f'"{number}"', number == 7) for number in range(25))
    await ledgers.apply("june", Record("me", 1, ends))
    await ledgers.apply("june", Claim("gone", 1, ("x",), started=True))
    await ledgers.aclose()
    table = TableReader(read_options({"store": url, "table": "ledger", "ledger": "june"}))
    (partition,) = table.partitions()
    rows = await to_thread.run_sync(lambda: sorted(table.read(partition)))
    assert [row[:5] for row in rows] == [
        *(("june", end.key, "failed" if end.failed else "done", 1, end.value) for end in ends),
        ("june", "x", "unknown", 1, None),
    ]
    assert all(isinstance(row[5], datetime) for row in rows)


def test_a_log_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_source_log, "_PIECE", 100)
    line = '{{"job": "{}", "shard": 0, "ticket": {}, "due": 1, "started": 1, "ended": 2, "exit_code": 0, '
    line += '"stdout": "", "stderr": "", "attempt": 1}}\n'
    whole = "".join(line.format("x" * (n * 7 % 90), n) for n in range(50))
    (tmp_path / "log").mkdir()
    path = tmp_path / "log" / "a.jsonl"
    path.write_text(whole + "\n" + line.format("cut", 99)[:-20])
    found = list(_source_log.pieces(str(tmp_path / "log")))
    assert len(found) == -(-path.stat().st_size // 100)
    assert [row[2] for piece in found for row in _source_log.results(piece)] == list(range(50))
    path.write_text(f'{whole}{{"job": 1}}\n{whole}')
    with pytest.raises(InvalidTask, match=r"a.jsonl: the line that ends at byte \d+ is not a result .*'due'"):
        [*(row for piece in _source_log.pieces(str(path)) for row in _source_log.results(piece))]
    with pytest.raises(InvalidOption, match="is not a file"):
        list(_source_log.pieces(str(tmp_path / "nothing")))


async def test_cleaning_never_fails_a_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.db").write_bytes(b"no database at all" * 100)
    async with AsyncTasks(str(tmp_path / "broken.db")) as tasks:
        await clean(tasks, write_once("token", None), sweep=True)
    assert "left behind" in caplog.text
