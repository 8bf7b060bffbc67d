"""What a Python worker does with its rows, run in this process: no Spark, a real store."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import anyio
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from intervalq import IntervalQueue
from intervalq.errors import (
    BadResult,
    InvalidOption,
    RowFailed,
    RunCancelled,
    StoreUnavailable,
    UnknownOutcome,
)
from intervalq.ledger.rules import Answer, Cancel, Claim, Command, Count, Ended, Record, Summary
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.spark import CallContext, _claims, _context
from intervalq.spark._job_maker import job_maker
from intervalq.spark._stage import stage
from spark.stages import GIVES_TEXT, USUAL, batches, staged

LONG, SHORT = 3_600_000_000, 1
"""Expiries: of a session that lives, and of one that has lapsed when anybody looks."""


class Calls:
    """A function that counts its calls by key."""

    def __init__(self, fails: Callable[[int, int], bool] = lambda _key, _call: False) -> None:
        self.of: Counter[int] = Counter()
        self.contexts: list[CallContext] = []
        self._fails = fails

    async def __call__(self, row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        self.of[row["id"]] += 1
        self.contexts.append(ctx)
        await anyio.lowlevel.checkpoint()
        if self._fails(row["id"], self.of[row["id"]]):
            raise RuntimeError(f"no {row['id']}")
        return {"out": f"<{row['id']}>"}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    _claims.ledger_store.cache_clear()


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/state.db"


def _ask(url: str, command: Command, run: str = "r") -> Answer:
    async def ask() -> Answer:
        store = open_ledger_store(url)
        try:
            return await store.apply(run, command)
        finally:
            await store.aclose()

    return anyio.run(ask)


def _summary(url: str) -> Summary:
    summary = _ask(url, Count()).summary
    assert summary is not None
    return summary


def _outs(rows: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    return sorted((row["id"], row["out"]) for row in rows)


def _all(keys: range) -> list[tuple[int, str]]:
    return [(key, f"<{key}>") for key in keys]


def test_rows_get_what_the_function_gives_beside_what_they_had() -> None:
    calls = Calls()
    rows = list(staged(calls, batches(range(35))))
    assert _outs(rows) == _all(range(35))
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
        both.wait()  # two at a time, or never
        with lock:
            running -= 1
        return {"out": f"<{row['id']}>"}

    assert _outs(list(staged(plain, batches(range(10)), concurrency=2))) == _all(range(10))
    assert most == 2


def test_nothing_comes_of_no_rows() -> None:
    assert list(staged(Calls(), batches([]))) == []
    assert list(staged(Calls(), iter([pa.RecordBatch.from_pydict({"id": pa.array([], pa.int64())})]))) == []


def test_the_window_bounds_what_is_read_ahead() -> None:
    """Rows that were read and have not ended are at most the window, and the part that is read next."""
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
        assert (_summary(ledger).done, _summary(ledger).failed) == (36, 4)
        again = list(staged(calls, batches(range(40)), errors="column", **kept))
        assert {row["id"]: row["_iq"]["error"] for row in again if row["_iq"]["error"]} == failed
        assert set(calls.of.values()) == {1}
        with pytest.raises(RowFailed, match=r"forget r --failed"):
            list(staged(calls, batches(range(40)), **kept))


def test_more_attempts_until_one_succeeds() -> None:
    calls = Calls(lambda _, call: call < 3)
    queue = IntervalQueue("q", interval=1e-3, burst=100, retries=2, backoff=0, store="memory://")
    rows = list(_paced(calls, range(5), queue))
    assert set(calls.of.values()) == {3}
    assert {row["_iq"]["calls"] for row in rows} == {3}
    assert len({ctx.ticket for ctx in calls.contexts}) == 5  # a context is of a row: its last ticket
    assert max(row["_iq"]["ticket"] for row in rows) >= 15  # each attempt took a slot


def test_a_failing_task_lets_calls_end_and_keeps_them(ledger: str) -> None:
    """Row 5 fails while three others are in flight: they end, are kept, and nothing new is called."""
    begun = 0
    failed = anyio.Event()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        nonlocal begun
        begun += 1
        calls.of[row["id"]] += 1
        if begun == 4:
            failed.set()
            raise RuntimeError("down")
        await failed.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return {"out": f"<{row['id']}>"}

    calls = Calls()
    with pytest.raises(RuntimeError, match="down"):
        list(staged(call, batches(range(100)), key="id", run="r", ledger=ledger))
    assert sum(calls.of.values()) == 4
    found = _summary(ledger)
    assert (found.done, found.claimed, found.started, found.unknown, found.sessions) == (3, 0, 0, 0, 0)
    rows = list(staged(calls, batches(range(100)), key="id", run="r", ledger=ledger))
    assert _outs(rows) == _all(range(100))
    assert sum(calls.of.values()) == 101  # the one that failed twice, all others once


def test_a_call_that_does_not_end_is_cut_and_stays_unknown(ledger: str) -> None:
    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 1:
            raise RuntimeError("down")
        await anyio.sleep_forever()
        return {}

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "on_unknown": "fail"}
    with pytest.raises(RuntimeError, match="down"):
        list(staged(call, batches(range(2)), drain=0, **options))
    assert _summary(ledger).unknown == 1
    calls = Calls()
    with pytest.raises(UnknownOutcome, match="forget r --unknown"):
        list(staged(calls, batches([0]), **options))
    rows = list(staged(calls, batches([0, 1]), **{**options, "errors": "column"}))
    assert not calls.of[0]
    shown = {row["id"]: (row["out"], bool(row["_iq"]["error"])) for row in rows}
    assert shown == {0: (None, True), 1: ("<1>", False)}


def test_spark_may_stop_reading(ledger: str) -> None:
    calls = Calls()
    rows = staged(calls, batches(range(10_000)), key="id", run="r", ledger=ledger, flush_rows=5)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert sum(calls.of.values()) < 1_000
    assert (_summary(ledger).sessions, _summary(ledger).claimed) == (0, 0)


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


# --- the ledger -----------------------------------------------------------------------------------------


def test_what_is_known_is_not_called_again(ledger: str) -> None:
    calls = Calls()
    first = list(staged(calls, batches(range(50)), key="id", run="r", ledger=ledger))
    again = list(staged(calls, batches(range(60)), key="id", run="r", ledger=ledger))
    assert _outs(again) == _all(range(60))
    assert set(calls.of.values()) == {1}
    logs = {row["id"]: row["_iq"] for row in first}
    for row in again:
        if row["id"] < 50:  # when it started, and where, is what it was
            assert row["_iq"] == {**logs[row["id"]], "replayed": True}
    keys = {ctx.key for ctx in calls.contexts}
    assert len(keys) == 60
    list(staged(calls, batches([0]), key="id", run="another", ledger=ledger))
    assert calls.contexts[-1].key not in keys
    assert calls.of[0] == 2


def test_rows_of_the_same_key_share_one_call(ledger: str) -> None:
    calls = Calls()
    rows = list(staged(calls, batches([1, 2, 1, 1, 2] * 10), key="id", run="r", ledger=ledger))
    assert calls.of == {1: 1, 2: 1}
    assert len(rows) == 50
    assert sum(not row["_iq"]["replayed"] for row in rows) == 2


@pytest.mark.parametrize("policy", ["retry", "fail"])
def test_rows_of_a_process_that_died(ledger: str, policy: str) -> None:
    _ask(ledger, Claim("dead", SHORT, ("1",), started=True))
    _ask(ledger, Claim("gone", SHORT, ("2",), started=False))
    calls = Calls()
    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "on_unknown": policy}
    rows = {row["id"]: row for row in staged(calls, batches(range(4)), errors="column", **options)}
    assert rows[2]["_iq"]["attempt"] == 2
    assert rows[3]["_iq"]["attempt"] == 1
    if policy == "retry":
        assert set(calls.of) == {0, 1, 2, 3}
        assert rows[1]["_iq"]["attempt"] == 2
    else:
        assert set(calls.of) == {0, 2, 3}
        assert "may have been made" in rows[1]["_iq"]["error"]


def test_a_row_of_a_live_process_is_waited_for(ledger: str) -> None:
    _ask(ledger, Claim("alive", LONG, ("0", "1")))
    value = '{"value":{"out":"theirs"},"log":[7,1.0,2.0,3.0,"there",9,1,1]}'
    store = open_ledger_store(ledger)

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        assert row["id"] == 2
        await store.apply("r", Record("alive", LONG, (Ended("0", value),)))
        await store.apply("r", Record("alive", LONG, (Ended("1", value),)))
        await store.aclose()
        return {"out": "ours"}

    rows = {row["id"]: row for row in staged(call, batches(range(3)), key="id", run="r", ledger=ledger)}
    assert {key: row["out"] for key, row in rows.items()} == {0: "theirs", 1: "theirs", 2: "ours"}
    assert rows[0]["_iq"]["replayed"]
    assert (rows[0]["_iq"]["ticket"], rows[0]["_iq"]["host"]) == (7, "there")


def test_a_result_that_comes_second_gives_way_to_the_first(ledger: str) -> None:
    store = open_ledger_store(ledger)

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        value = '{"value":{"out":"theirs"},"log":[7,1.0,2.0,3.0,"there",9,1,1]}'
        await store.apply("r", Record("other", LONG, (Ended("0", value),)))
        await store.aclose()
        return {"out": "ours"}

    (row,) = staged(call, batches([0]), key="id", run="r", ledger=ledger)
    assert (row["out"], row["_iq"]["replayed"]) == ("theirs", True)


@pytest.mark.parametrize("policy", ["retry", "fail"])
def test_a_cancelled_run_calls_nothing_more(ledger: str, policy: str) -> None:
    store = open_ledger_store(ledger)
    calls = Calls()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if not calls.of:
            await store.apply("r", Cancel())
            await store.aclose()
        return await calls(row, ctx)

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "on_unknown": policy}
    with pytest.raises(RunCancelled, match="uncancel r"):
        list(staged(call, batches(range(5_000)), **options))
    assert sum(calls.of.values()) < 100
    before = sum(calls.of.values())
    with pytest.raises(RunCancelled):
        list(staged(calls, batches(range(5_000)), **options))
    assert sum(calls.of.values()) == before
    _ask(ledger, Cancel(on=False))
    assert len(list(staged(calls, batches(range(200)), **options))) == 200
    assert set(calls.of.values()) == {1}


class _Trouble:
    """A store whose answers are lost now and then, after or before the step was done."""

    def __init__(self, store: LedgerStore, lost: int) -> None:
        self.url = store.url
        self._store = store
        self.lost = lost
        self.asked = 0

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        self.asked += 1
        trouble = self.asked % 3 == 0 and self.lost > 0
        if trouble:
            self.lost -= 1
        if trouble and self.asked % 2:
            raise StoreUnavailable(self.url, "away")
        answer = await self._store.apply(ledger, command, now)
        if trouble:
            raise StoreUnavailable(self.url, "lost")
        return answer

    async def names(self) -> list[str]:
        return await self._store.names()

    async def aclose(self) -> None:
        await self._store.aclose()


@pytest.mark.parametrize("policy", ["retry", "fail"])
def test_lost_answers_of_the_store_are_asked_for_again(
    ledger: str, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    trouble = _Trouble(open_ledger_store(ledger), 6)
    monkeypatch.setattr("intervalq.spark._flow.ledger_store", lambda _: trouble)
    calls = Calls()
    rows = list(staged(calls, batches(range(40)), key="id", run="r", ledger=ledger, on_unknown=policy))
    assert _outs(rows) == _all(range(40))
    assert set(calls.of.values()) == {1}
    assert trouble.lost == 0


def test_a_store_that_stays_away_fails_the_task(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claims, "_OUTAGE", 0.0)
    trouble = _Trouble(open_ledger_store(ledger), 1_000_000)
    monkeypatch.setattr("intervalq.spark._flow.ledger_store", lambda _: trouble)
    with pytest.raises(StoreUnavailable):
        list(staged(Calls(), batches(range(40)), key="id", run="r", ledger=ledger))


def test_a_process_that_was_stopped_asks_whether_its_rows_are_still_its_own(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it stood still its session lapsed, and another process took row 1 and recorded it."""
    store = open_ledger_store(ledger)
    calls = Calls()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 0:
            value = '{"value":{"out":"theirs"},"log":[7,1.0,2.0,3.0,"there",9,1,1]}'
            await store.apply("r", Record("other", LONG, (Ended("1", value),)))
            await store.aclose()
            monkeypatch.setattr(_claims, "_EXPIRY", 0.0)  # no answer is young enough now
        return await calls(row, ctx)

    rows = {
        row["id"]: row
        for row in staged(call, batches(range(2)), key="id", run="r", ledger=ledger, concurrency=1)
    }
    assert calls.of == {0: 1}
    assert rows[1]["out"] == "theirs"


# --- keys, contexts, clients -----------------------------------------------------------------------------


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
    refused: list[int] = []

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if not refused:
            refused.append(row["id"])
            raise _Refused
        return {}

    rows = list(_paced(call, range(20), queue))
    starts = sorted(row["_iq"]["started"] for row in rows)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert max(gaps) >= 0.19
    assert gaps.index(max(gaps)) < 8  # only those that were in flight, or told to go, came before


def test_a_function_may_cool_the_queue_down_too() -> None:
    queue = IntervalQueue("cool2", interval=1e-3, burst=100, store="memory://")
    cooled: list[int] = []

    def plain(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if not cooled:
            cooled.append(row["id"])
            ctx.cool_down(0.2)
        return {}

    dues = sorted(row["_iq"]["due"] for row in _paced(plain, range(20), queue))
    assert max(later - earlier for earlier, later in pairwise(dues)) >= 0.19
    cooled.clear()
    with pytest.raises(InvalidOption, match="no queue"):
        list(staged(plain, batches([1])))


def _paced(
    function: Callable[..., Any], keys: range, queue: IntervalQueue, **options: Any
) -> Iterator[dict[str, Any]]:
    """As `staged`, with a queue in this process's memory, which users may not give."""
    from intervalq.spark import _job_maker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_job_maker, "_check_store", lambda _: None)
        yield from staged(function, batches(keys), queue=queue, **options)


def test_only_configuration_travels(ledger: str) -> None:
    queue = IntervalQueue("q", interval=1, store=ledger)
    job = job_maker(Calls(), **{**USUAL, "queue": queue, "key": "id", "run": "r", "ledger": "store"})(
        GIVES_TEXT
    )
    data = cloudpickle.dumps(stage(job))  # type: ignore[no-untyped-call]
    assert len(data) < 20_000
    assert callable(cloudpickle.loads(data))
    assert job.queue is not None
    assert job.queue._options.lookahead == 1


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
        ({"setup": 1}, "setup=1 is no function"),
    ],
)
def test_settings_that_can_not_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        list(staged(Calls(), batches([1]), **options))


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
