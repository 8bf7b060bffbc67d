"""A stage and its ledger: rows that are known, held by dead or live processes, cancelled, or lost."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import anyio
import pytest

from intervalq._timing import heartbeat, outage
from intervalq.errors import (
    BadResult,
    RowFailed,
    RunCancelled,
    StoreUnavailable,
)
from intervalq.ledger.rules import (
    MAX_VALUE,
    Answer,
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Ended,
    Leave,
    Record,
)
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.spark import CallContext
from intervalq.spark._paced import ledger_client
from spark.stages import Calls, ask, batches, made, outs, staged

LONG, SHORT = 3_600_000_000, 1
"""Expiries of a live session, and of one that has lapsed when anybody looks."""


def test_what_is_known_is_not_called_again(ledger: str) -> None:
    calls = Calls()
    first = list(staged(calls, batches(range(50)), key="id", run="r", ledger=ledger))
    again = list(staged(calls, batches(range(60)), key="id", run="r", ledger=ledger))
    assert outs(again) == made(range(60))
    assert set(calls.of.values()) == {1}
    logs = {row["id"]: row["_iq"] for row in first}
    for row in again:
        if row["id"] < 50:  # when and where it started, as recorded
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
    ask(ledger, Claim("dead", SHORT, ("1",), started=True))
    ask(ledger, Claim("gone", SHORT, ("2",), started=False))
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
    ask(ledger, Claim("alive", LONG, ("0", "1")))
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
    ask(ledger, Cancel(on=False))
    assert len(list(staged(calls, batches(range(200)), **options))) == 200
    assert set(calls.of.values()) == {1}


class _Other:
    """A store that, asked the third time which sessions are active, is told that the other task has left."""

    def __init__(self, store: LedgerStore) -> None:
        self.url = store.url
        self._store = store
        self.looks = 0

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Count):
            self.looks += 1
            if self.looks == 3:
                await self._store.apply(ledger, Leave("other"))
        return await self._store.apply(ledger, command, now)

    async def names(self) -> list[str]:
        return await self._store.names()

    async def aclose(self) -> None:
        await self._store.aclose()


def test_a_cancelled_run_fails_when_no_other_task_is_at_work(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark stops every task as soon as one has failed, so calls of others would be lost.

    The session of a pipeline's driver has no rows, so no task waits for it.
    """
    store = _Other(open_ledger_store(ledger))
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    ask(ledger, Claim("other", LONG, ("elsewhere",), started=True))
    ask(ledger, Beat("driver", LONG))
    ask(ledger, Cancel())
    with pytest.raises(RunCancelled):
        list(staged(Calls(), batches(range(10)), key="id", run="r", ledger=ledger))
    assert store.looks == 3


class _Trouble:
    """A store whose answers are sometimes lost, before or after the step was done."""

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
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: trouble)
    calls = Calls()
    rows = list(staged(calls, batches(range(40)), key="id", run="r", ledger=ledger, on_unknown=policy))
    assert outs(rows) == made(range(40))
    assert set(calls.of.values()) == {1}
    assert trouble.lost == 0


def test_a_store_that_stays_away_fails_the_task(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "OUTAGE", 0)
    trouble = _Trouble(open_ledger_store(ledger), 1_000_000)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: trouble)
    with pytest.raises(StoreUnavailable):
        list(staged(Calls(), batches(range(40)), key="id", run="r", ledger=ledger))


class _Away(_Trouble):
    """A store that can't be reached when the first end is to be recorded."""

    def __init__(self, store: LedgerStore) -> None:
        super().__init__(store, 0)
        self.was_away = anyio.Event()

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Record) and not self.was_away.is_set():
            self.was_away.set()
            raise StoreUnavailable(self.url, "away")
        return await super().apply(ledger, command, now)


def test_an_end_that_could_not_be_recorded_is_recorded_with_the_next(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails, but its calls in flight end, and the store may be back by then."""
    monkeypatch.setattr(outage, "OUTAGE", 0)
    store = _Away(open_ledger_store(ledger))
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    calls = Calls()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 1:
            await store.was_away.wait()
            await anyio.sleep(0.01)  # the task has failed by now
        return await calls(row, ctx)

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "canary": False}
    with pytest.raises(StoreUnavailable):
        list(staged(call, batches([0, 1]), **options))
    assert len(list(staged(calls, batches([0, 1]), **options))) == 2
    assert calls.of == {0: 1, 1: 1}


def test_a_process_that_was_stopped_asks_whether_its_rows_are_still_its_own(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it stalled, its session lapsed, and another process took row 1 and recorded its end."""
    store = open_ledger_store(ledger)
    calls = Calls()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 0:
            value = '{"value":{"out":"theirs"},"log":[7,1.0,2.0,3.0,"there",9,1,1]}'
            await store.apply("r", Record("other", LONG, (Ended("1", value),)))
            await store.aclose()
            monkeypatch.setattr(heartbeat, "_SURE", 0.0)  # no answer is recent enough now
        return await calls(row, ctx)

    rows = {
        row["id"]: row
        for row in staged(call, batches(range(2)), key="id", run="r", ledger=ledger, concurrency=1)
    }
    assert calls.of == {0: 1}
    assert rows[1]["out"] == "theirs"


class _Late(_Trouble):
    """A store whose first answer to a claim is under way for so long that the rows may be free by then."""

    def __init__(self, store: LedgerStore) -> None:
        super().__init__(store, 0)
        self.claims = 0
        self.late = 0.0

    def monotonic(self) -> float:
        """The clock of the process."""
        return time.monotonic() + self.late

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        answer = await super().apply(ledger, command, now)
        if isinstance(command, Claim):
            self.claims += 1
            self.late = 4.9  # of five seconds
        return answer


def test_rows_whose_claim_was_answered_late_are_claimed_again_before_their_call(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Late(open_ledger_store(ledger))
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    for module in (heartbeat, ledger_client):
        monkeypatch.setattr(module, "time", store)
    calls = Calls()
    rows = list(staged(calls, batches(range(1)), key="id", run="r", ledger=ledger))
    assert (outs(rows), store.claims) == (made(range(1)), 2)


def test_at_most_once_a_failed_call_is_not_repeated_by_a_retried_task(ledger: str) -> None:
    """The effect of a call that raised is unknown, so a retried task doesn't call that row again."""
    calls = Calls(lambda key, _: key == 3)
    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "on_unknown": "fail"}
    with pytest.raises(RuntimeError, match="no 3"):
        list(staged(calls, batches(range(6)), **options))
    with pytest.raises(RowFailed, match="no 3"):
        list(staged(calls, batches(range(6)), **options))
    assert calls.of[3] == 1
    rows = list(staged(calls, batches(range(6)), **{**options, "errors": "column"}))
    assert [row["id"] for row in rows if row["_iq"]["error"]] == [3]
    assert set(calls.of.values()) == {1}


def test_a_result_that_is_too_large_is_an_error_of_its_row(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server, unless a folder is given."""
    monkeypatch.setattr("intervalq.spark._paced.row_ends.beside", lambda _: None)
    calls: Counter[int] = Counter()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        return {"out": "x" * (MAX_VALUE if row["id"] == 1 else 10)}

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "retries": 3}
    rows = list(staged(call, batches(range(3)), errors="column", **options))
    (error,) = [row["_iq"]["error"] for row in rows if row["_iq"]["error"]]
    assert "row '1'" in error
    assert set(calls.values()) == {1}  # another call would give the same
    with pytest.raises(BadResult, match="row '1'"):
        list(staged(call, batches([1]), **{**options, "run": "another"}))
