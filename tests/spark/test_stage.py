"""A Python worker's handling of its rows and of errors, run in this process: no Spark, a real store."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from intervalq import IntervalQueue
from intervalq.errors import (
    BadResult,
    RowFailed,
    UnknownOutcome,
)
from intervalq.spark import CallContext
from spark.stages import Calls, batches, made, outs, paced_here, staged, summary

TESTS = Path(__file__).parent.parent


def test_rows_get_what_the_function_gives_beside_what_they_had() -> None:
    calls = Calls()
    rows = list(staged(calls, batches(range(35))))
    assert outs(rows) == made(range(35))
    assert set(calls.of.values()) == {1}
    log = rows[0]["_iq"]
    assert (log["calls"], log["attempt"], log["replayed"], log["error"]) == (1, 1, False, None)
    assert log["started"] <= log["ended"]
    assert (log["ticket"], log["due"], log["key"]) == (None, None, None)


def test_a_plain_function_runs_in_threads_and_at_most_so_many() -> None:
    here, most, running = threading.get_ident(), 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=60)

    def plain(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        nonlocal most, running
        assert threading.get_ident() != here
        with lock:
            running += 1
            most = max(most, running)
        if row["id"]:  # the first one is called alone
            both.wait()  # two at a time, or never
        with lock:
            running -= 1
        return {"out": f"<{row['id']}>"}

    assert outs(list(staged(plain, batches(range(11)), concurrency=2))) == made(range(11))
    assert most == 2


IMPORTS = """
import sys
import pyarrow as pa
from intervalq import IntervalQueue
from spark.stages import staged

seen = set()

async def fetch(row, ctx):
    seen.update(sys.modules if not seen else ())
    return {"out": str(row["id"])}

queue = IntervalQueue("q", rate="1000/s", store=sys.argv[1])
batches = pa.ipc.open_stream(sys.argv[2])  # as Spark hands them over: making some imports what is in question
assert len(list(staged(fetch, iter(batches), queue=queue, key="id", run="r", ledger="store"))) == 40
print(*sorted(sys.modules.keys() - seen))
"""


def test_nothing_is_imported_once_a_task_holds_a_ticket(tmp_path: Path) -> None:
    """It would delay the slots of all tasks: Arrow's first array imports pandas, for seconds."""
    some = list(batches(range(40)))
    with pa.ipc.new_stream(str(tmp_path / "rows"), some[0].schema) as file:
        for batch in some:
            file.write_batch(batch)
    command = [sys.executable, "-c", IMPORTS, f"sqlite://{tmp_path}/state.db", str(tmp_path / "rows")]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    assert (ran.stdout.split(), ran.returncode) == ([], 0), ran.stderr


def test_nothing_comes_of_no_rows() -> None:
    assert list(staged(Calls(), batches([]))) == []
    assert list(staged(Calls(), iter([pa.RecordBatch.from_pydict({"id": pa.array([], pa.int64())})]))) == []


def test_the_window_bounds_what_is_read_ahead() -> None:
    """Rows that were read and have not ended are at most the window, plus the part that is read next."""
    read = ended = most = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches(range(400), size=1):
            read += 1
            yield batch

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        nonlocal ended, most
        most = max(most, read - ended)
        await anyio.lowlevel.checkpoint()
        ended += 1
        return {}

    assert len(list(staged(call, source(), window=8, concurrency=4))) == 400
    assert most <= 8 + 1


@pytest.mark.parametrize("gives", [{"out": 1}, {"out": "", "more": 1}, "text", [("out", "")]])
@pytest.mark.parametrize("with_ledger", [True, False])
def test_a_result_that_does_not_fit_is_named(gives: object, with_ledger: bool, ledger: str) -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> Any:
        return gives if row["id"] == 7 else {"out": None}

    kept: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger} if with_ledger else {}
    with pytest.raises(BadResult, match="row '7'" if with_ledger else "doesn't fit the schema"):
        list(staged(call, batches(range(10)), **kept))


def test_none_and_missing_columns_are_null() -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> Any:
        return None if row["id"] else {}

    assert [row["out"] for row in staged(call, batches(range(2)))] == [None, None]


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_ledger", [True, False])
def test_errors_go_into_a_column(with_ledger: bool, ledger: str) -> None:
    calls = Calls(lambda key, _: key % 10 == 3)
    kept: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger} if with_ledger else {}
    rows = list(staged(calls, batches(range(40)), errors="column", **kept))
    assert len(rows) == 40
    failed = {row["id"]: row["_iq"]["error"] for row in rows if row["_iq"]["error"]}
    assert failed == {key: f"RuntimeError: no {key}" for key in (3, 13, 23, 33)}
    assert all(row["out"] is None for row in rows if row["id"] in failed)
    if with_ledger:
        assert (summary(ledger).done, summary(ledger).failed) == (36, 4)
        again = list(staged(calls, batches(range(40)), errors="column", **kept))
        assert {row["id"]: row["_iq"]["error"] for row in again if row["_iq"]["error"]} == failed
        assert set(calls.of.values()) == {1}
        with pytest.raises(RowFailed, match=r"forget r --failed"):
            list(staged(calls, batches(range(40)), **kept))


def test_more_attempts_until_one_succeeds() -> None:
    calls = Calls(lambda _, call: call < 3)
    queue = IntervalQueue("attempts", interval=1e-3, burst=100, retries=2, backoff=0, store="memory://")
    rows = list(paced_here(calls, range(5), queue))
    assert set(calls.of.values()) == {3}
    assert {row["_iq"]["calls"] for row in rows} == {3}
    assert len({ctx.ticket for ctx in calls.contexts}) == 5  # a context belongs to a row: its last ticket
    assert max(row["_iq"]["ticket"] for row in rows) >= 15  # each attempt took a slot


def test_a_failing_task_lets_calls_end_and_keeps_them(ledger: str) -> None:
    """The fifth row fails while three others are in flight: they end and are kept, and no more are called."""
    begun = 0
    failed = anyio.Event()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        calls.of[row["id"]] += 1
        if begun == 5:
            failed.set()
            raise RuntimeError("down")
        if begun > 1:  # the first row is called alone
            await failed.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return {"out": f"<{row['id']}>"}

    calls = Calls()
    with pytest.raises(RuntimeError, match="down"):
        list(staged(call, batches(range(100)), key="id", run="r", ledger=ledger))
    assert sum(calls.of.values()) == 5
    found = summary(ledger)
    assert (found.done, found.claimed, found.started, found.unknown, found.sessions) == (4, 0, 0, 0, 0)
    rows = list(staged(calls, batches(range(100)), key="id", run="r", ledger=ledger))
    assert outs(rows) == made(range(100))
    assert sum(calls.of.values()) == 101  # the one that failed twice, all others once


def test_a_call_that_does_not_end_is_cut_and_stays_unknown(ledger: str) -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 1:
            raise RuntimeError("down")
        if row["id"] != 2:  # which is called alone, as the first one
            await anyio.sleep_forever()
        return {}

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "on_unknown": "fail"}
    with pytest.raises(RuntimeError, match="down"):
        list(staged(call, batches([2, 0, 1]), drain=0, **options))
    assert summary(ledger).unknown == 1
    calls = Calls()
    with pytest.raises(UnknownOutcome, match="forget r --unknown"):
        list(staged(calls, batches([0]), **options))
    rows = list(staged(calls, batches([0, 1]), **{**options, "errors": "column"}))
    assert not calls.of  # nor the one that failed, with at most once
    reported = {row["id"]: row["_iq"]["error"] for row in rows}
    assert "may have been made" in reported[0]
    assert reported[1] == "RuntimeError: down"


def test_spark_may_stop_reading(ledger: str) -> None:
    calls = Calls()
    rows = staged(calls, batches(range(10_000)), key="id", run="r", ledger=ledger, flush_rows=5)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert sum(calls.of.values()) < 1_000
    assert (summary(ledger).sessions, summary(ledger).claimed) == (0, 0)


def test_an_error_of_the_input_is_raised() -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from batches(range(10))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(staged(Calls(), source()))


def test_an_error_of_the_setup_is_raised() -> None:
    def setup() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(staged(Calls(), batches(range(10)), setup=setup))
