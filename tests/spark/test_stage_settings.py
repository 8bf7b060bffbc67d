"""Keys, contexts, clients, cool-downs and settings of a stage."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from itertools import pairwise
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from intervalq import IntervalQueue
from intervalq.errors import (
    InvalidOption,
)
from intervalq.spark import CallContext, paced
from intervalq.spark._paced import context as _context
from intervalq.spark._paced import handoff
from intervalq.spark._paced.partition import stage
from intervalq.spark._paced.validate import job_maker
from spark.stages import GIVES_TEXT, USUAL, Calls, batches, paced_here, staged


@pytest.mark.parametrize("key", [None, 1.5, b"x", True, "", "x" * 513, "a\0b", [1]])
def test_keys_that_are_none(key: object, ledger: str) -> None:
    with pytest.raises(InvalidOption, match="key"):
        list(staged(Calls(), batches([key]), key="id", run="r", ledger=ledger))


@pytest.mark.parametrize("key", ["ä\U0001f600\n", 7, -1, Decimal("1.50"), dt.date(2026, 11, 21), "x" * 512])
def test_keys_that_are_some(key: Any, ledger: str) -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"out": ctx.row_key}

    (row,) = staged(call, batches([key]), key="id", run="r", ledger=ledger)
    assert row["out"] == str(key)


def test_without_keys_there_is_no_idempotency_key() -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"out": ctx.key}

    with pytest.raises(InvalidOption, match="key and a run"):
        list(staged(call, batches([1])))


class _Client:
    opened: list[_Client] = []  # noqa: RUF012 - all of them, on purpose
    closed = 0

    async def __aenter__(self) -> Self:
        _Client.opened.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        _Client.closed += 1


def test_a_client_is_made_once_and_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_context, "_kept", None)
    used: set[object] = set()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        used.add(ctx.http)
        return {}

    for _ in range(3):
        list(staged(call, batches(range(5)), setup=_Client))
    assert len(used) == 1
    assert len(_Client.opened) == 1
    closed = _Client.closed
    list(staged(call, batches(range(5)), setup=lambda: "another"))
    assert "another" in used
    assert (closed, _Client.closed) == (0, 1)


class _Refused(Exception):
    def __init__(self) -> None:
        self.status = 429
        self.headers = {"Retry-After": "0.2"}


def test_a_retry_after_cools_the_queue_down_for_everybody() -> None:
    queue = IntervalQueue("cool", interval=0.02, tolerance=0.019, retries=1, store="memory://")
    refused: list[float] = []
    calls: list[float] = []

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls.append(time.monotonic())
        if not refused:
            refused.append(time.monotonic())
            raise _Refused
        return {}

    list(paced_here(call, range(20), queue))
    soon = [at for at in calls if refused[0] < at < refused[0] + 0.19]
    assert len(soon) < 8  # only those that were in flight, or granted before
    assert len(calls) == 21
    assert max(later - earlier for earlier, later in pairwise(sorted(calls))) >= 0.15


def test_a_function_may_cool_the_queue_down_too() -> None:
    queue = IntervalQueue("cool2", interval=1e-3, burst=100, store="memory://")
    cooled: list[int] = []

    def plain(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if not cooled:
            cooled.append(row["id"])
            ctx.cool_down(0.2)
        return {}

    dues = sorted(row["_iq"]["due"] for row in paced_here(plain, range(20), queue))
    assert max(later - earlier for earlier, later in pairwise(dues)) >= 0.19
    cooled.clear()
    with pytest.raises(InvalidOption, match="no queue"):
        list(staged(plain, batches([1])))


def test_only_configuration_travels(ledger: str) -> None:
    queue = IntervalQueue("q", interval=1, store=ledger)
    job = job_maker(Calls(), **{**USUAL, "queue": queue, "key": "id", "run": "r", "ledger": "store"})(
        GIVES_TEXT
    )
    data = cloudpickle.dumps(stage(job))  # type: ignore[no-untyped-call]
    assert len(data) < 20_000
    assert callable(cloudpickle.loads(data))
    assert job.queue is not None


@pytest.mark.parametrize(
    ("rate", "tickets"), [({"rate": "1/s"}, 1), ({"rate": "100/s"}, 5), ({"rate": "5000/s"}, 16), ({}, 1)]
)
def test_a_task_holds_the_tickets_of_a_short_time(ledger: str, rate: dict[str, Any], tickets: int) -> None:
    queue = IntervalQueue("q", store=ledger, **rate)
    job = job_maker(Calls(), **{**USUAL, "queue": queue})(GIVES_TEXT)
    assert job.queue is not None
    assert job.queue._options.lookahead == tickets


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ledger": "store"}, "key="),
        ({"ledger": "store", "key": "id", "run": "r"}, "without a queue"),
        ({"ledger": "memory://", "key": "id", "run": "r"}, "every Python worker is another"),
        ({"queue": IntervalQueue("q", interval=1, store="memory://")}, "every Python worker is another"),
        ({"on_unknown": "guess"}, "on_unknown='guess' must be"),
        ({"errors": "ignore"}, "errors='ignore' must be"),
        ({"errors": "column", "log": None}, "needs the log"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"window": 3}, "window=3 must be a whole number from 4"),
        ({"flush_rows": 0}, "flush_rows"),
        ({"retries": -1}, "retries"),
        ({"setup": 1}, "setup=1 is not a function"),
    ],
)
def test_settings_that_can_not_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        list(staged(Calls(), batches([1]), **options))


def test_a_store_without_ledgers_is_refused_on_the_driver() -> None:
    queue = IntervalQueue("q", rate="1/s", store="nats://there")
    with pytest.raises(InvalidOption, match=r"that store holds queues only.*or give ledger= the URL"):
        paced(Calls(), "out string", queue=queue, key="id", run="r")
    paced(Calls(), "out string", queue=queue, key="id", run="r", ledger="redis://there")


def test_a_function_gets_the_columns_that_are_chosen(ledger: str) -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"out": f"{ctx.row_key}: {row}"}

    source = [pa.RecordBatch.from_pydict({"id": [1, 2], "text": ["a", "b"], "more": [[1], [2]]})] * 2
    rows = list(staged(call, iter(source), columns=["text"], key="id", run="r", ledger=ledger))
    assert {(row["id"], row["more"][0], row["out"]) for row in rows} == {
        (1, 1, "1: {'text': 'a'}"), (2, 2, "2: {'text': 'b'}"),
    }  # fmt: skip
    for wrong in ([], "text", ["text", "text"], [1]):
        with pytest.raises(InvalidOption, match="must be a list of different names"):
            list(staged(call, iter(source), columns=wrong))


def test_a_window_grows_while_rows_end_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("intervalq.spark._paced.handoff.time.monotonic", lambda: now)
    exchange = handoff.Exchange(64, 1_024, flush_rows=10**9, flush_s=1)
    done = handoff.Done(pa.RecordBatch.from_pydict({}), 0, "", None, handoff.Stamp(), False, None)
    steps = []
    for took in (0.1, 0.1, 0.3, 0.1, 0.1, 0.1, 5.0, 5.0, *[5.0] * 4):
        rows = 4 * exchange.step
        assert exchange.enter(rows)
        exchange.finish([done] * (rows - 1))
        now += took
        exchange.finish([done])
        steps.append(exchange.step)
    assert steps == [32, 64, 64, 128, 256, 256, 128, 64, 32, 16, 16, 16]


def test_a_function_needs_a_row_and_a_context() -> None:
    for function in (lambda row: row, lambda: None, 7):
        with pytest.raises(InvalidOption):
            list(staged(function, batches([1])))  # type: ignore[arg-type]


def test_a_type_that_a_ledger_can_not_keep_is_refused_before_the_first_call(ledger: str) -> None:
    from pyspark.sql.types import DayTimeIntervalType, YearMonthIntervalType

    fits = StructType([StructField("a", DayTimeIntervalType()), StructField("b", IntegerType())])
    assert list(staged(Calls(), batches([]), fits, key="id", run="r", ledger=ledger)) == []
    with pytest.raises(Exception, match=r"(?i)interval"):
        list(
            staged(
                Calls(),
                batches([1]),
                StructType([StructField("a", YearMonthIntervalType()), StructField("t", StringType())]),
                key="id",
                run="r",
                ledger=ledger,
            )
        )


def test_a_codec_is_for_what_a_ledger_keeps() -> None:
    with pytest.raises(InvalidOption, match="ledger=None keeps none"):
        job_maker(Calls(), **{**USUAL, "codec": object()})
