"""Outcomes of kept tasks: what workers leave, who waits for it, and stores that keep none."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from intervalq.errors import (
    DependencyError,
    InvalidInterval,
    InvalidOption,
    InvalidTask,
    UnsupportedOperation,
)
from intervalq.tasks import (
    Claim,
    FailedAttempt,
    NoOutcome,
    Outcome,
    Reject,
    Task,
    TaskCancelled,
    TaskFailed,
    Tasks,
)
from intervalq.tasks._spec.outcome import Kept, outcome
from intervalq.tasks.rules import SECOND, Begin, Modify, OutcomeRow, Row, Session, Work
from intervalq.tasks.sync import Tasks as BlockingTasks
from intervalq_stores._waiters import Waiters
from intervalq_stores.memory.tasks import MemoryTaskStore
from tasks.fake_store import FakeStore, handle
from virtual_store import BACKENDS, in_virtual_time

NO_IDS: list[Any] = ["", "a\0b", "\ud800", "x" * 129, 5, None, ["a"]]
RESULTS: list[Any] = [{"a": [1, "ü"]}, [1, 2], [], 0, "", "text", False, (1, 2)]


class KeepingStore(FakeStore):
    keeps_outcomes = True


@BACKENDS
@in_virtual_time
async def test_what_a_function_returns_is_the_result_of_a_kept_task(backend: str) -> None:
    async with handle(KeepingStore(delay=0.001)) as tasks:

        @tasks.worker("q")
        async def work(task: Task) -> object:
            await anyio.sleep(2)
            return RESULTS[task.value] if task.value < len(RESULTS) else None

        ids = [await tasks.insert("q", n, keep="7d") for n in range(len(RESULTS) + 1)]
        other = await tasks.insert("q", 0)
        await tasks.run(until_empty=True)
        assert [await tasks.result(id_) for id_ in ids] == [*RESULTS[:-1], [1, 2], None]
        for outcome in await tasks.wait(ids):
            assert (outcome.state, outcome.attempts, outcome.errors) == ("done", 1, [])
            assert outcome.started is not None
            assert outcome.ended - outcome.started == pytest.approx(2, abs=0.1)
            assert outcome.until == pytest.approx(outcome.ended + 7 * 86_400)
            assert outcome.host
            assert outcome.pid
        with pytest.raises(NoOutcome, match=other):
            await tasks.result(other)


@BACKENDS
@in_virtual_time
async def test_who_waits_has_the_result_soon_after_the_end(backend: str) -> None:
    store = KeepingStore()
    async with handle(store) as tasks, anyio.create_task_group() as group:

        @tasks.worker("q")
        async def work(task: Task) -> object:
            await anyio.sleep(task.value)
            return task.value

        ids = [await tasks.insert("q", n, keep="1h") for n in (20, 3, 0)]
        group.start_soon(tasks.run)
        began = anyio.current_time()
        assert await tasks.result(ids[1]) == 3
        assert 3 <= anyio.current_time() - began < 4.2
        with pytest.raises(TimeoutError, match=rf"task {ids[0]} did not end within 1 s"):
            await tasks.wait(ids, timeout=1)
        outcomes = await tasks.wait([*ids, ids[0]])
        assert [outcome.value for outcome in outcomes] == [20, 3, 0, 20]
        assert 20 <= anyio.current_time() - began < 21.2
        tasks.stop()


@BACKENDS
@in_virtual_time
async def test_all_who_wait_for_a_task_are_notified(backend: str) -> None:
    waiters = Waiters()
    with waiters.waiting(["a"]) as one, waiters.waiting(["a", "b"]) as other, waiters.waiting(["a"]) as third:
        assert waiters.alone(other) == ["b"]
        waiters.notify(["a"])
        await one.wait()
        await third.wait()
        assert other.left == {"b"}
        waiters.notify(["b", "c"])
        await other.wait()
    waiters.notify(["a", "b"])  # nobody waits any more


@BACKENDS
@in_virtual_time
async def test_a_worker_keeps_what_says_nothing_itself(backend: str) -> None:
    """It keeps those of failed tasks and of ones cancelled while they run; a task's own time comes first."""
    async with handle(KeepingStore()) as tasks, anyio.create_task_group() as group:
        began = anyio.Event()

        @tasks.worker("q", keep="2h", max_attempts=3, backoff=1)
        async def work(task: Task) -> object:
            if task.value == "fails":
                raise ValueError(f"no {task.attempt}")
            if task.value == "rejected":
                raise Reject("never")
            if task.value == "cancelled":
                began.set()
                await anyio.sleep_forever()
            return task.value

        names = ["done", "fails", "rejected", "cancelled"]
        ids = [await tasks.insert("q", name) for name in names]
        own = await tasks.insert("q", "own", keep="1h")
        group.start_soon(tasks.run)
        await began.wait()
        await tasks.cancel(ids[3])
        outcomes = await tasks.wait([*ids, own])
        assert [one.state for one in outcomes] == ["done", "failed", "failed", "cancelled", "done"]
        assert [round(one.until - one.ended) for one in outcomes] == [7200, 7200, 7200, 7200, 3600]
        errors = outcomes[1].errors
        assert [one.error for one in errors] == [f"ValueError: no {n}" for n in (1, 2, 3)]
        assert [one.attempt for one in errors] == [1, 2, 3]
        times = [one.at or 0 for one in errors]
        assert times[0] < times[1] < times[2] == outcomes[1].ended
        assert outcomes[2].errors == [FailedAttempt(1, outcomes[2].ended, "intervalq.tasks.Reject: never")]
        with pytest.raises(TaskFailed, match="no 3") as failed:
            await tasks.result(ids[1])
        assert failed.value.outcome.queue == "q"
        with pytest.raises(TaskCancelled):
            await tasks.result(ids[3])
        assert {one.id for one in await tasks.outcomes("q", state="failed")} == set(ids[1:3])
        assert len(await tasks.outcomes(limit=2)) == 2
        assert await tasks.outcomes(ids=[ids[0]], state="failed") == []
        assert await tasks.outcomes(ids=[]) == []

        (dead,) = [task for task in await tasks.tasks("q.dead") if task.value == "fails"]
        await tasks.modify(dead.change("done", queue="q"))
        assert await tasks.result(ids[1]) == "done"
        assert [one.state for one in await tasks.outcomes(ids=[ids[1]])] == ["done", "failed"]
        tasks.stop()


@BACKENDS
@in_virtual_time
async def test_changes_are_made_and_leave_no_result(backend: str) -> None:
    async with handle(KeepingStore()) as tasks:

        @tasks.worker("q", keep="1h")
        async def work(task: Task) -> object:
            return [tasks.new("next", 1, keep="1h")]

        @tasks.worker("chunks", batch=10, keep="1h")
        async def chunk(claims: list[Claim]) -> object:
            return [tasks.new("next", 2)]

        await tasks.insert("q", 1)
        for n in range(3):
            await tasks.insert("chunks", n)
        await tasks.run(until_empty=True)
        left = await tasks.outcomes()
        assert sorted(one.queue for one in left) == ["chunks", "chunks", "chunks", "q"]
        assert {(one.state, one.result, one.started is None) for one in left} == {("done", None, False)}

        for _ in range(2):
            claim = await tasks.claim("next")
            await anyio.sleep(5)
            await claim.ack()
        (one,) = await tasks.outcomes("next")
        assert (one.value, one.result, one.attempts) == (1, None, 1)
        assert one.started is not None
        assert one.ended - one.started == pytest.approx(5)


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_may_say_the_result(backend: str) -> None:
    async with handle(KeepingStore()) as tasks:

        @tasks.worker("q", batch=10, keep="1h")
        async def work(claims: list[Claim]) -> None:
            for claim in claims[:2]:
                await claim.ack(*[tasks.new("next", 0, keep="1h")] * claim.value, result=[claim.value])

        parts = [tasks.new("q", n) for n in range(3)]
        await tasks.modify(*parts, tasks.new("r", 3))
        await tasks.run(until_empty=True)
        assert [await tasks.result(part.id) for part in parts] == [[0], [1], None]
        await (await tasks.claim("r")).ack(result="of a task that isn't kept")
        await tasks.insert("r", 4, id="there")

        claim = await tasks.claim("next")
        with pytest.raises(InvalidTask, match="the result of a kept task must be JSON"):
            await claim.ack(result={1})
        with pytest.raises(DependencyError):
            await claim.ack(tasks.new("next", 1, id="there"), result="an earlier one")
        await claim.ack()
        assert await tasks.result(claim.id) is None


@BACKENDS
@in_virtual_time
async def test_a_result_that_cannot_be_kept_is_a_failed_attempt(backend: str) -> None:
    async with handle(KeepingStore(), max_bytes=100) as tasks:

        @tasks.worker("q", max_attempts=1)
        async def work(task: Task) -> object:
            return "x" * 100 if task.value == "large" else float("nan")

        ids = [await tasks.insert("q", value, keep="1h") for value in ("nan", "large")]
        await tasks.insert("q", "nan")  # it isn't kept, so nobody misses its result
        await tasks.run(until_empty=True)
        assert [one.state for one in await tasks.wait(ids)] == ["failed", "failed"]
        for id_, why in zip(ids, ("must be JSON", "takes 102 bytes"), strict=True):
            with pytest.raises(TaskFailed, match=f"the result of a kept task {why}"):
                await tasks.result(id_)
        assert len(await tasks.tasks("q.dead")) == 2


async def test_a_task_that_was_put_back_has_its_last_outcome_whatever_the_clock_does() -> None:
    clock = [10**15]
    async with Tasks(MemoryTaskStore(clock=lambda: clock[0])) as tasks:
        id_ = await tasks.insert("q", 1, keep="1d")
        await (await tasks.claim("q")).term("no")
        with pytest.raises(TaskFailed):
            await tasks.result(id_)
        clock[0] -= 3600 * SECOND
        (dead,) = await tasks.tasks("q.dead")
        await tasks.modify(dead.change(queue="q"))
        await (await tasks.claim("q")).ack()
        assert await tasks.result(id_) is None
        clock[0] += 7200 * SECOND
        again = await tasks.insert("q", 2, id=id_, keep="1d")
        await (await tasks.claim("q")).term("no again")
        with pytest.raises(TaskFailed, match="no again"):
            await tasks.result(again)


async def test_a_store_that_keeps_nothing_says_so() -> None:
    async with handle(FakeStore()) as tasks:
        with pytest.raises(UnsupportedOperation, match="keeps no outcomes"):
            await tasks.insert("q", 1, keep="1h")
        with pytest.raises(UnsupportedOperation, match="one after the other"):
            await tasks.insert("q", 1, key="k", concurrency_per_key=2)
        for ask in (tasks.outcomes(), tasks.result("a"), tasks.wait(["a"])):
            with pytest.raises(UnsupportedOperation):
                await ask

        @tasks.worker("q", keep="1h")
        async def work(task: Task) -> object:
            return tasks.new("next", 1)

        with pytest.raises(UnsupportedOperation):
            await tasks.run()
        claim_of = await tasks.insert("q", 1)
        claim = await tasks.claim("q")
        assert claim.id == claim_of
        with pytest.raises(UnsupportedOperation):
            await claim.ack(tasks.new("next", 1, keep="1h"))
        await claim.ack()


async def test_options_out_of_range_are_refused() -> None:
    tasks = Tasks("memory://keeps")
    for keep in ("0.9s", "401d", 0):
        with pytest.raises(InvalidInterval, match="keep"):
            tasks.new("q", 1, keep=keep)
        with pytest.raises(InvalidInterval, match="keep"):
            tasks.worker("q", keep=keep)
    assert tasks.new("q", 1, keep="400d").keep_for == 400 * 86_400_000_000
    with pytest.raises(InvalidOption, match="done, failed, cancelled"):
        await tasks.outcomes(state="lost")


async def test_a_transaction_leaves_its_outcome_or_is_rolled_back_with_it(tmp_path: Path) -> None:
    async with Tasks(tmp_path / "app.db") as tasks:
        id_ = await tasks.insert("q", 1, keep="1h")
        claim = await tasks.claim("q")
        with pytest.raises(ZeroDivisionError):
            async with claim.commit():
                raise ZeroDivisionError
        assert await tasks.outcomes() == []
        async with claim.commit() as connection:
            connection.execute("CREATE TABLE mine (n)")
        assert [one.state for one in await tasks.wait([id_])] == ["done"]


def test_blocking_code_waits_too(tmp_path: Path) -> None:
    with BlockingTasks(tmp_path / "app.db") as tasks:
        id_ = tasks.insert("q", 1, keep="1h")
        tasks.cancel(id_)
        with pytest.raises(TaskCancelled):
            tasks.result(id_, timeout=5)
        (outcome,) = tasks.wait([id_])
        assert isinstance(outcome, Outcome)
        assert repr(outcome) == f"<Outcome {id_} of 'q': cancelled>"
        assert [one.id for one in tasks.outcomes("q")] == [id_]


@in_virtual_time
async def test_a_worker_keeps_those_whose_attempts_killed_their_processes() -> None:
    """Nothing runs any more: the attempts are used up. Each lost attempt is listed once."""
    store = KeepingStore()
    async with handle(store) as tasks:

        @tasks.worker("q", keep="1h", max_attempts=1)
        async def work(task: Task) -> None:
            raise AssertionError

        @tasks.worker("chunks", keep="1h", max_attempts=1, batch=10)
        async def chunks(claims: list[Claim]) -> None:
            raise AssertionError

        parts = [tasks.new(queue, 1, keep=keep) for queue in ("q", "chunks") for keep in (None, "2h")]
        await store.apply(Modify(inserts=tuple(parts)))
        other = str(uuid4())
        await store.apply(Begin(Session(other, "far", 7, expiry=1)))
        claimed = await store.apply(Work(other, queues=("q", "chunks"), limit=4, begins=2))
        assert [row.attempt for row in claimed.claimed] == [1, 1, 1, 1]
        await anyio.sleep(1)
        await tasks.run(until_empty=True)
        for outcome in await tasks.wait([part.id for part in parts]):
            assert (outcome.state, outcome.attempts) == ("failed", 1)
            assert [(error.attempt, error.error[:14]) for error in outcome.errors] == [(1, "far:7 was lost")]


def test_a_cancelled_task_has_no_result_although_its_function_returned_one() -> None:
    row = Row("a", 3, "q", 0, "1", keep_for=SECOND)
    left = [outcome(row, state, Kept(0, "5"), None, SECOND) for state in ("done", "cancelled")]
    assert [OutcomeRow._make(fields).result for fields in left] == ["5", ""]


@in_virtual_time
async def test_who_does_not_want_to_wait_still_gets_what_is_there() -> None:
    async with handle(KeepingStore(delay=0.01)) as tasks:

        @tasks.worker("q", max_attempts=1)
        async def work(task: Task) -> object:
            return 5 / task.value

        done = await tasks.insert("q", 5, keep="1h")
        dead = await tasks.insert("q", 0)
        await tasks.run(until_empty=True)
        assert await tasks.result(done, timeout=0) == 1
        with pytest.raises(NoOutcome, match=r"is in queue 'q\.dead', and left no outcome"):
            await tasks.result(dead)
        with pytest.raises(InvalidOption, match="one text"):
            await tasks.wait(done)


@pytest.mark.parametrize("bad", NO_IDS)
async def test_what_can_not_be_an_id_is_refused_and_disturbs_nobody_who_waits(
    bad: Any, tmp_path: Path
) -> None:
    """Those who wait at the same time ask the store together."""
    async with Tasks(f"sqlite://{tmp_path}/tasks.db") as tasks:
        id_ = await tasks.insert("q", 1, keep="1h")

        async def wait() -> None:
            with pytest.raises(TimeoutError, match=id_):
                await tasks.result(id_, timeout=0)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(wait)
            for refused in (tasks.result(bad), tasks.wait([id_, bad]), tasks.outcomes(ids=[bad])):
                with pytest.raises(InvalidTask, match="id="):
                    await refused
