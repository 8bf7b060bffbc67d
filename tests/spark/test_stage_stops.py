"""A task that stops its run: calls of other tasks end first, and the stop doesn't outlast the task."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from intervalq._timing import outage
from intervalq.errors import RunCancelled, StoreUnavailable, TooManyFailures
from intervalq.ledger.rules import Answer, Cancel, Claim, Command, Count, Leave, Record, Release, Start
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.spark import CallContext
from intervalq.spark._paced.ledger_client import _STOP
from spark.stages import Calls, ask, batches, staged

HOUR = 3_600_000_000


class _Recorder:
    """A store that notes commands, and calls a function with each one and its answer.

    If that returns a command, it is applied, too, as somebody else's.
    """

    def __init__(self, store: LedgerStore, heed: Callable[[Command, Answer], Command | None]) -> None:
        self.url = store.url
        self._store = store
        self._heed = heed
        self.applied: list[Command] = []

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        answer = await self._store.apply(ledger, command, now)
        self.applied.append(command)
        if (theirs := self._heed(command, answer)) is not None:
            await self._store.apply(ledger, theirs)
        return answer

    async def names(self) -> list[str]:
        return await self._store.names()

    async def aclose(self) -> None:
        await self._store.aclose()


@pytest.mark.parametrize("policy", ["retry", "fail"])
def test_a_task_that_stops_lets_calls_of_others_end(
    ledger: str, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Spark kills the other tasks when one fails for good; by then the ends of their calls are recorded."""
    is_calling, may_end = threading.Event(), threading.Event()

    def heed(command: Command, answer: Answer) -> None:
        if isinstance(command, Start) and command.keys == (_STOP,) and answer.verdicts[0].attempt:
            may_end.set()  # now the other task knows

    store = _Recorder(open_ledger_store(ledger), heed)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    monkeypatch.setattr("intervalq.spark._paced.ledger_client._LAST", 0.0)
    calls: Counter[int] = Counter()

    def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        if row["id"] < 100:
            assert is_calling.wait(60)
            raise RuntimeError("down")
        is_calling.set()
        assert may_end.wait(20)
        return {"out": "theirs"}

    options: dict[str, Any] = {
        "key": "id", "run": "r", "ledger": ledger, "errors": "column", "concurrency": 1, "canary": False,
        "on_unknown": policy,
    }  # fmt: skip
    with ThreadPoolExecutor() as pool:
        other = pool.submit(lambda: list(staged(call, batches(range(100, 102)), **options)))
        with pytest.raises(TooManyFailures, match="3 rows failed one after the other"):
            list(staged(call, batches(range(50)), stop_after=3, **options))
        with pytest.raises(RunCancelled, match="stopped by another task"):
            other.result()
    assert len([key for key in calls if key >= 100]) == 1, "the other task began no more calls"
    places = {
        type(command): at
        for at, command in enumerate(store.applied)
        if (isinstance(command, Release) and command.keys == (_STOP,))
        or (isinstance(command, Record) and command.rows[0].key == "100")
    }
    assert places[Record] < places[Release], "the end of the other's call was recorded before this task ended"
    found = ask(ledger, Count())
    assert not found.cancelled
    assert found.summary is not None
    assert (found.summary.done, sum(found.summary[5:8])) == (1, 0), "no row is held or unknown"


class _Cancels(_Recorder):
    """A user cancels the run just before a task stops it."""

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Claim) and command.keys[0].startswith("intervalq:"):
            await super().apply(ledger, Cancel())
        return await super().apply(ledger, command, now)


def test_a_task_that_stops_leaves_a_run_cancelled_that_was(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody withdraws what a user has asked for."""
    store = _Cancels(open_ledger_store(ledger), lambda _, __: None)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    calls = Calls(lambda _, __: True)
    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "errors": "column"}
    with pytest.raises(TooManyFailures):
        list(staged(calls, batches(range(50)), stop_after=2, concurrency=1, **options))
    assert Cancel() in store.applied
    assert ask(ledger, Count()).cancelled


class _Dies(_Recorder):
    """A store that a process no longer reaches once it waits for the other tasks."""

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        if isinstance(command, Count) or Count() in self.applied:
            self.applied.append(command)
            raise StoreUnavailable(self.url, "the process was killed")
        return await super().apply(ledger, command, now)


class _Later(_Recorder):
    """A store whose clock is an hour ahead."""

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        return await super().apply(ledger, command, (await super().apply(ledger, Count())).now + HOUR)


STOPS: dict[str, Any] = {"stop_after": 2, "concurrency": 1, "errors": "column", "canary": False}


def test_a_task_that_is_killed_while_it_stops_a_run_leaves_it_open(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "OUTAGE", 0)
    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger}
    store: _Recorder = _Dies(open_ledger_store(ledger), lambda _, __: None)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    with pytest.raises(TooManyFailures):
        list(staged(Calls(lambda _, __: True), batches(range(50)), **STOPS, **options))
    store = _Later(open_ledger_store(ledger), lambda _, __: None)
    assert len(list(staged(Calls(), batches(range(100, 103)), **options))) == 3


def test_a_task_that_stops_does_not_wait_for_its_own_calls(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were cut, and have no end to wait for."""
    store = _Recorder(open_ledger_store(ledger), lambda _, __: None)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    is_calling = anyio.Event()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 0:
            is_calling.set()
            await anyio.sleep_forever()
        await is_calling.wait()
        raise RuntimeError("down")

    options: dict[str, Any] = {**STOPS, "concurrency": 2, "key": "id", "run": "r", "ledger": ledger}
    with pytest.raises(TooManyFailures):
        list(staged(call, batches(range(50)), drain=0, **options))
    assert store.applied.count(Count()) == 1


def test_other_tasks_wait_until_the_one_that_stops_the_run_lets_go(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else theirs would be the error that the job shows. Busy ones learn of the stop within a second, too."""

    def heed(command: Command, _: Answer) -> Command | None:
        is_third = command == Count() and store.applied.count(Count()) == 3
        return Leave("stopper") if is_third else None

    store = _Recorder(open_ledger_store(ledger), heed)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    monkeypatch.setattr("intervalq.spark._paced.ledger_client._LAST", 0.0)
    calls = Calls()

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if not calls.of:
            await store.apply("r", Claim("stopper", HOUR, (_STOP,)))
        await anyio.sleep(0.01)
        return await calls(row, ctx)

    with pytest.raises(RunCancelled, match="stopped by another task"):
        list(staged(call, batches(range(1_000)), key="id", run="r", ledger=ledger, drain=0, concurrency=1))
    assert store.applied.count(Count()) == 3


def test_a_user_who_cancels_a_run_while_a_task_stops_it_is_heeded(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Recorder(open_ledger_store(ledger), lambda c, _: Cancel() if c == Count() else None)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)
    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger}
    with pytest.raises(TooManyFailures):
        list(staged(Calls(lambda _, __: True), batches(range(50)), **STOPS, **options))
    assert ask(ledger, Count()).cancelled


def test_claims_are_small_where_answers_are_large(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that the store makes in one step must not have hundreds of large values."""
    monkeypatch.setattr("intervalq.spark._paced.ledger_client._MAX_ANSWER", 16_000)

    def heed(command: Command, answer: Answer) -> None:
        if isinstance(command, Claim):
            claims.append((len(command.keys), sum(len(verdict.value) for verdict in answer.verdicts)))

    store = _Recorder(open_ledger_store(ledger), heed)
    monkeypatch.setattr("intervalq.spark._paced.row_scheduler.ledger_store", lambda _: store)

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"out": "x" * (1_000 if row["id"] >= 400 else 1)}

    options: dict[str, Any] = {"key": "id", "run": "r", "ledger": ledger, "window": 4_000, "concurrency": 64}
    for expected in ([16, 32, 64, 128, 256, 104], [16, 32, 64, 64, 64, 64]):
        claims: list[tuple[int, int]] = []
        assert len(list(staged(call, batches(range(600), size=600), **options))) == 600
        assert [keys for keys, _ in claims[:6]] == expected
    first = next(at for at, (_, size) in enumerate(claims) if size > 16_000)
    assert all(size <= 16_000 for _, size in claims[first + 1 :])
    assert sum(keys for keys, _ in claims) == 600
