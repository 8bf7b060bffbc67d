"""Cancelled tasks: functions are cancelled, nothing is committed, and keys are held until they have ended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from anyio import from_thread

from intervalq.errors import ClaimLost, InvalidOption
from intervalq.tasks import Cancelled, Claim, Task, Tasks
from intervalq.tasks.rules import Beat, Command, Work, Worked
from intervalq.tasks.sync import Tasks as BlockingTasks
from tasks.fake_store import FakeStore, TransactionStore, claimed, handle, once, until
from virtual_store import BACKENDS, gather, in_virtual_time


class WakingStore(FakeStore):
    """A store that tells its sessions of cancelled tasks at once."""

    def wakeups(self, session: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[Worked | None]]]:
        return self.behind.wakeups(session)


class KeepingStore(FakeStore):
    """A store that keeps outcomes, and tells its sessions of cancelled tasks with their heartbeats."""

    keeps_outcomes = True


@pytest.mark.parametrize(("kind", "within"), [(WakingStore, 0.001), (FakeStore, 1.001)])
@BACKENDS
@in_virtual_time
async def test_a_running_function_is_cancelled_within_a_heartbeat_or_at_once(
    backend: str, kind: type[FakeStore], within: float
) -> None:
    store = kind()
    async with handle(store) as tasks, handle(store.line()) as operator:
        began = anyio.Event()
        ended: list[float] = []

        @tasks.worker("q")
        async def work(task: Task) -> None:
            began.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(anyio.current_time())

        id_ = await tasks.insert("q", 1)

        async def cancel() -> None:
            await began.wait()
            await anyio.sleep(0.3)
            assert await operator.cancel(id_) == Cancelled(stopping=(id_,))
            at = anyio.current_time()
            await until(lambda: bool(ended))
            assert ended[0] - at <= within

        await gather(lambda: tasks.run(until_empty=True), cancel)
        assert len(ended) == 1
        assert await store.rows() == []
        assert tasks._outcomes == {"cancelled": 1}


@BACKENDS
@in_virtual_time
async def test_the_next_of_the_key_waits_for_the_function_to_end(backend: str) -> None:
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        running: list[int] = []
        log: list[str] = []

        @tasks.worker("q")
        async def work(task: Task) -> None:
            running.append(task.value)
            assert len(running) == 1
            log.append(f"begin {task.value}")
            try:
                await anyio.sleep(100 if task.value == 1 else 0)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(7)  # many heartbeats tell of it again
                log.append(f"end {task.value}")
                running.remove(task.value)

        ids = [await tasks.insert("q", value, key="k") for value in (1, 2)]

        async def cancel() -> None:
            await until(lambda: bool(running))
            await operator.cancel(ids[0])

        began = anyio.current_time()
        await gather(lambda: tasks.run(until_empty=True), cancel)
        assert log == ["begin 1", "end 1", "begin 2", "end 2"]
        assert anyio.current_time() - began < 20
        assert tasks._outcomes == {"cancelled": 1, "done": 1}


@BACKENDS
@in_virtual_time
async def test_tasks_claimed_ahead_and_those_that_wait_for_a_turn_alone_never_begin(backend: str) -> None:
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        began: list[int] = []

        @tasks.worker("q", concurrency=1)
        async def work(task: Task) -> None:
            began.append(task.value)
            await anyio.sleep(0.001 if task.value < 100 else 0.5)

        await tasks.put("q", range(100))
        slow = await tasks.insert("q", 100)
        ids = [await tasks.insert("q", 101 + n) for n in range(3)]

        async def cancel() -> None:
            await until(lambda: any(value >= 100 for value in began))
            await operator.cancel(slow, *ids)

        await gather(lambda: tasks.run(until_empty=True), cancel)
        assert len([value for value in began if value >= 100]) == 1
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_what_a_function_does_after_it_was_cancelled_is_not_committed(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It returns changes, settles its claim itself, raises, or ends in a thread: nothing of it counts."""
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        began: list[str] = []
        caught: list[str] = []
        go_on = anyio.Event()

        async def ends(task: Claim) -> object:
            began.append(task.value)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3)
                if task.value == "changes":
                    return tasks.new("after", 1)
                if task.value == "raises":
                    raise ValueError
                for settle in (task.ack, task.nak, task.term, task.release, task.in_progress):
                    with pytest.raises(ClaimLost):
                        await settle()
                    caught.append(settle.__name__)
                await task.ack()
            return None

        async def for_ever() -> None:
            with anyio.CancelScope(shield=True):
                await go_on.wait()

        def blocks(task: Task) -> object:
            began.append(task.value)
            from_thread.run(for_ever)
            return tasks.new("after", 1)

        tasks.worker("q")(ends)
        tasks.worker("blocking")(blocks)
        ids = [await tasks.insert("q", value) for value in ("changes", "raises", "settles")]
        ids.append(await tasks.insert("blocking", "blocks"))

        async def cancel() -> None:
            await until(lambda: len(began) == 4)
            await operator.cancel(*ids)

        with caplog.at_level(logging.WARNING, "intervalq"):
            await gather(lambda: tasks.run(until_empty=True), cancel)
        go_on.set()
        assert len(caught) == 5
        assert await store.rows() == []
        assert tasks._outcomes == {"cancelled": 4}
        assert caplog.messages == []


@BACKENDS
@in_virtual_time
async def test_a_commit_that_comes_after_the_cancel_is_rolled_back(backend: str) -> None:
    """Its process need not know of the cancel yet; a heartbeat then removes the task."""
    store = TransactionStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await tasks.cancel(claim.id)
        with pytest.raises(ClaimLost):
            async with claim.commit() as connection:
                connection.append(1)
        assert store.written == []
        with anyio.fail_after(1.1):
            await tasks.wait_empty("q")


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_on_its_way_is_lost(backend: str) -> None:
    """The store may get it before the process learns of the cancel, or after."""
    for kind in (FakeStore, WakingStore):
        store = kind()
        async with handle(store) as tasks, handle(store.line()) as operator:
            for with_it in (False, True):
                claim = await claimed(tasks)

                async def cancel(
                    _: object, claim: Claim = claim, store: FakeStore = store, operator: Tasks = operator
                ) -> None:
                    store.before = nothing
                    await operator.cancel(claim.id)
                    await anyio.sleep(0.1)

                async def nothing(_: object) -> None:
                    return

                store.before = cancel
                with pytest.raises(ClaimLost, match="cancelled it"):
                    await claim.ack(*([tasks.new("after", 1)] if with_it else []))
                with anyio.fail_after(1.1):
                    await tasks.wait_empty("q")
            assert await store.rows() == []


@pytest.mark.parametrize("options", [{}, {"batch": 5}], ids=["one by one", "chunks"])
@BACKENDS
@in_virtual_time
async def test_a_task_that_is_cancelled_between_the_end_of_its_function_and_the_acknowledgement(
    backend: str, options: dict[str, Any]
) -> None:
    """It is removed, and another one with its id isn't taken for it: it may fail, and is tried again."""
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        runs: list[str] = []

        @tasks.worker("q", backoff=0, **options)
        async def work(_: object) -> None:
            runs.append("")
            if len(runs) == 2:
                raise ValueError("only once")

        is_first = once(Work, lambda work: bool(work.settled))

        async def cancel(command: Command[Any]) -> None:
            if is_first(command):
                assert await operator.cancel("a") == Cancelled(stopping=("a",))
                await anyio.sleep(0.1)  # the worker hears of it first

        async def insert() -> None:
            for _ in range(2):
                await operator.insert("q", 1, id="a")
                with anyio.fail_after(10):
                    await operator.wait_empty("q")
            tasks.stop()

        store.before = cancel
        await gather(tasks.run, insert)
        assert len(runs) == 3
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_cancelled_task_is_removed_though_calls_fail(backend: str) -> None:
    """The removal is repeated if its answer is lost, and it goes with the session otherwise."""
    store = FakeStore()
    store.loses = once(Work, lambda work: bool(work.settled))
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await tasks.cancel(claim.id)
        with anyio.fail_after(3):
            await tasks.wait_empty("q")
        claim = await claimed(tasks)
        store.fails = lambda command: None if not isinstance(command, (Beat, Work)) else _down(store)
        await tasks.cancel(claim.id)
        await anyio.sleep(3)
        assert len(await store.rows()) == 1
        await store.lapse()
        assert await store.rows() == []
        store.fails = lambda _: None


def _down(store: FakeStore) -> Exception:
    from intervalq.errors import StoreUnavailable

    return StoreUnavailable(store.url, "it is down: bring it up")


@BACKENDS
@in_virtual_time
async def test_a_worker_that_finds_unknown_claims_leaves_cancelled_ones_to_their_functions(
    backend: str,
) -> None:
    """After a lost answer, unknown claims are given back: not this one, whose function still runs."""
    store = FakeStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        log: list[str] = []

        @tasks.worker("q")
        async def work(task: Task) -> None:
            log.append(f"begin {task.value}")
            if task.value == 1:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(9)
            log.append(f"end {task.value}")

        ids = [await tasks.insert("q", value, key="k") for value in (1, 2)]

        async def cancel() -> None:
            await until(lambda: bool(log))
            await operator.cancel(ids[0])
            await anyio.sleep(1.5)
            store.loses = once(Work, lambda work: work.limit > 0)

        await gather(lambda: tasks.run(until_empty=True), cancel)
        assert log == ["begin 1", "end 1", "begin 2", "end 2"]
        assert tasks._outcomes == {"cancelled": 1, "done": 1}
        assert await store.rows() == []


async def test_how_many_ids_may_be_given() -> None:
    async with handle(FakeStore()) as tasks:
        for ids in ((), [str(n) for n in range(1001)]):
            with pytest.raises(InvalidOption, match="from 1 to 1000"):
                await tasks.cancel(*ids)
        assert await tasks.cancel(*[str(n) for n in range(1000)]) == Cancelled()


def test_blocking_code_cancels(tmp_path: object) -> None:
    with BlockingTasks(f"sqlite://{tmp_path}/app.db") as tasks:
        id_ = tasks.insert("q", 1)
        assert tasks.cancel(id_, "unknown") == Cancelled(removed=(id_,))
        assert tasks.tasks() == []


@BACKENDS
@in_virtual_time
async def test_a_function_that_learns_of_it_by_a_report_holds_its_key_and_leaves_its_outcome(
    backend: str,
) -> None:
    store = KeepingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        running: list[object] = []
        overlaps: list[object] = []
        states: list[str] = []

        @tasks.worker("q", keep="1h")
        async def work(task: Claim) -> None:
            overlaps.extend(running)
            running.append(task.value)
            try:
                while task.value == 1:
                    await task.in_progress(progress=0.5)
                    await anyio.sleep(0.05)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(3)  # cleaning up, past the next heartbeats
                running.remove(task.value)

        first = await tasks.insert("q", 1, key="a")
        await tasks.insert("q", 2, key="a")

        async def cancel() -> None:
            await anyio.sleep(0.3)
            assert await operator.cancel(first) == Cancelled(stopping=(first,))
            states.extend(outcome.state for outcome in await tasks.wait([first]))

        await gather(lambda: tasks.run(until_empty=True), cancel)
        assert overlaps == []
        assert states == ["cancelled"]
