"""The data source without Spark: what is refused, buffers of streams, and reads in pages."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from intervalq.errors import InvalidOption, InvalidTask, StoreTimeout, UnknownStore
from intervalq.ledger.rules import Claim, Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.spark._source import log as _source_log
from intervalq.spark._source import read as _source_read
from intervalq.spark._source.datasource import IntervalqSource
from intervalq.spark._source.options import StreamOptions, read_options, stream_options
from intervalq.spark._source.publish import clean, write_once
from intervalq.spark._source.read import TableReader
from intervalq.spark._source.stream_buffer import BufferTaken, StreamBuffer
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


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "cars"}, "there is no table='cars'; there are tasks, queues, ledger, log"),
        ({"tables_": "tasks"}, "a read has no option 'tables_'; there are store, table"),
        ({"table": "ledger"}, "give ledger="),
        ({"table": "log"}, "give path="),
        ({"store": "memory://"}, "memory:// belongs to one process"),
        ({"queue": "no  queue"}, "not a queue name"),
        ({"store": "file:///state.json"}, "for durable tasks use"),
    ],
)
def test_reads_that_can_not_be(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidOption, ValueError, UnknownStore), match=message):
        IntervalqSource({"store": str(tmp_path / "app.db"), **options}).schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give the option queue, or a column named queue"),
        ({"queue": "q", "key": "nr"}, "key='nr' is not a column of these rows; they have id, json"),
        ({"queue": "q", "max_bytes": "many"}, "max_bytes='many' is not a whole number"),
        ({"queue": "q", "run": "\n"}, "without control characters"),
    ],
)
def test_writes_that_can_not_be(options: dict[str, str], message: str, tmp_path: Path) -> None:
    source = IntervalqSource({"store": str(tmp_path / "app.db"), **options})
    with pytest.raises(ValueError, match=message):
        source.writer(ROWS, overwrite=False)


def test_streams_that_can_not_be(tmp_path: Path) -> None:
    given = {"store": str(tmp_path / "app.db"), "queue": "q"}
    for more, reported in (
        ({}, "give stream="),
        ({"stream": "x" * 101}, "too long"),
        ({"stream": "/"}, "name"),
    ):
        with pytest.raises(ValueError, match=reported):
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
