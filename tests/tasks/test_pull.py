"""Pull consumers: ready tasks at once, or else a wait; their limits; the state that they report."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from intervalq.errors import InvalidInterval, InvalidName, InvalidOption, StoreTimeout, TooManyWaiting
from intervalq.tasks import ClaimLost, PullInfo, Reject, Task, Tasks
from intervalq.tasks.rules import Work, Worked
from tasks.fake_store import FakeStore, RangingStore, handle, until
from virtual_store import BACKENDS, gather, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_fetch_takes_what_is_there_and_waits_for_the_first_otherwise(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:
        pull = tasks.pull("q", "r", name="me")
        await tasks.put("q", range(3))
        before = anyio.current_time()
        assert len(await pull.fetch(2)) == 2
        assert len(await pull.fetch(5)) == 1  # not five: nobody waits for more than the first
        assert anyio.current_time() - before < 0.1
        assert await pull.fetch(5, no_wait=True) == []
        assert await pull.fetch(5, 0) == []
        assert anyio.current_time() - before < 0.1
        got: list[int] = []

        async def fetch() -> None:
            got.append(len(await pull.fetch(5, 60)))

        async with anyio.create_task_group() as group:
            group.start_soon(fetch)
            await anyio.sleep(30)
            await tasks.put("r", range(4))
        assert got == [4]


@BACKENDS
@pytest.mark.parametrize(("timeout", "until_"), [(5, 4.9), (0.5, 0.45), ("10s", 9.9)])
@in_virtual_time
async def test_a_request_expires_a_little_before_the_callers_time(
    backend: str, timeout: float | str, until_: float
) -> None:
    async with handle(FakeStore()) as tasks:
        pull = tasks.pull("q", name="me")
        await pull.fetch(no_wait=True)
        before = anyio.current_time()
        assert await pull.fetch(timeout=timeout) == []
        assert anyio.current_time() - before == pytest.approx(until_, abs=0.002)


@BACKENDS
@in_virtual_time
async def test_what_is_claimed_at_the_last_moment_reaches_the_caller(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        pull = tasks.pull("q", name="me")
        await pull.fetch(no_wait=True)

        async def slow(command: object) -> None:
            if isinstance(command, Work) and command.limit:
                await anyio.sleep(4.95)

        store.after = slow
        await tasks.insert("q", 2)
        before = anyio.current_time()
        assert len(await pull.fetch(timeout=5)) == 1
        assert 4.9 < anyio.current_time() - before < 5


@BACKENDS
@in_virtual_time
async def test_what_comes_too_late_is_given_back(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        pull = tasks.pull("q", name="me")
        await pull.fetch(no_wait=True)

        async def slow(command: object) -> None:
            if isinstance(command, Work) and command.limit:
                await anyio.sleep(20)

        store.after = slow
        await tasks.insert("q", 1)
        before = anyio.current_time()
        assert await pull.fetch(timeout=5) == []
        assert anyio.current_time() - before <= 5.001
        await anyio.sleep(60)
        (row,) = await store.rows()
        assert (row.session, row.attempt) == (None, 0)


@BACKENDS
@in_virtual_time
async def test_no_more_calls_wait_than_allowed(backend: str) -> None:
    async with handle(FakeStore()) as tasks, anyio.create_task_group() as group:
        pull = tasks.pull("q", name="me", max_waiting=3)
        for _ in range(3):
            group.start_soon(partial(pull.fetch, timeout=1000))
        await anyio.sleep(1)
        assert (await pull.info()).waiting == 3
        with pytest.raises(TooManyWaiting, match="3 calls") as caught:
            await pull.fetch()
        assert (caught.value.name, caught.value.limit) == ("me", 3)
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_unsettled_claims_are_limited_over_all_handles_of_a_name(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as one, handle(store.line()) as two, handle(store.line()) as three:
        first, second = (tasks.pull("q", name="me", max_ack_pending=5) for tasks in (one, two))
        other = three.pull("q", name="other", max_ack_pending=5)
        await one.put("q", range(20))
        claims = await first.fetch(3)
        more = await second.fetch(10)
        assert [len(claims), len(more)] == [3, 2]
        assert await first.fetch(no_wait=True) == []
        assert await second.fetch(timeout=2) == []
        assert len(await other.fetch(10)) == 5
        assert await one.try_claim("q") is not None  # the limit is the consumer's
        got: list[int] = []

        async def fetch() -> None:
            got.append(len(await second.fetch(10, 30)))

        async with anyio.create_task_group() as group:
            group.start_soon(fetch)
            await anyio.sleep(1)
            for claim in claims[:2]:
                await claim.ack()
        assert 1 <= got[0] <= 2
        info = await first.info()
        assert info.ack_pending == 3 + got[0]


@in_virtual_time
async def test_info() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        pull = tasks.pull("q", name="me")
        assert await pull.info() == PullInfo("me", 0, 0, 0, 0)
        await tasks.put("q", range(5))
        await tasks.insert("q", 1, delay=100)
        claims = await pull.fetch(3)
        assert await pull.info() == PullInfo("me", 2, 3, 0, 0)
        await claims[0].nak()
        await claims[1].term()
        await claims[2].in_progress()
        assert await pull.info() == PullInfo("me", 3, 1, 0, 0)
        await pull.fetch(5)
        assert await pull.info() == PullInfo("me", 0, 4, 1, 0)


@BACKENDS
@in_virtual_time
async def test_a_fetch_that_is_cancelled_leaves_nothing_behind(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        pull = tasks.pull("q", name="me")
        for moment in range(1, 80):
            claims = []
            with anyio.move_on_after(moment / 1000):
                claims = await pull.fetch(10)
            for claim in claims:
                await claim.release()
            if moment == 40:
                await tasks.put("q", range(5))
        session = tasks._session("me")
        await until(lambda: not session.batcher._settles and not session.batcher.busy)
        assert session.waiting() == 0
        assert not session.batcher.wanted
        rows = await store.rows()
        assert {row.session for row in rows} == {None}
        assert {row.attempt for row in rows} == {0}
        calls = len([call for call in store.calls if isinstance(call, Work)])
        await anyio.sleep(30)
        assert len([call for call in store.calls if isinstance(call, Work)]) == calls


def test_what_pull_refuses() -> None:
    tasks = Tasks("memory://")  # a consumer may be created where no event loop runs
    pull = tasks.pull("q", name="me")
    for bad in ("", "a b"):
        with pytest.raises(InvalidName):
            tasks.pull("q", name=bad)
    for worse in ({"max_waiting": 0}, {"max_ack_pending": 0}):
        with pytest.raises(InvalidOption):
            tasks.pull("q", name="me", **worse)
    with pytest.raises(InvalidOption):
        tasks.pull(name="me")

    async def scenario() -> None:
        for count in (0, 10_001, True, "1"):
            with pytest.raises(InvalidOption):
                await pull.fetch(count)  # type: ignore[arg-type]
        for timeout in (-1, float("nan"), "soon", None):
            with pytest.raises(InvalidInterval):
                await pull.fetch(timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(InvalidInterval):
            await pull.fetch(lease=0)

    anyio.run(scenario)


# --- plain tasks in ranges ---------------------------------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_plain_tasks_are_each_done_once_and_failed_ones_come_again(backend: str) -> None:
    store = RangingStore(delay=0.001)
    async with handle(store) as tasks:
        seen: list[tuple[int, int]] = []

        @tasks.worker("q", concurrency=4, max_attempts=2, backoff=1)
        async def work(task: Task) -> None:
            seen.append((task.value, task.attempt))
            if task.value % 10 == 3 and task.attempt == 1:
                raise ValueError(task.value)
            if task.value == 7:
                raise Reject("never")

        assert await tasks.put("q", range(50)) == 50
        await tasks.run(until_empty=True)
        expected = [(n, 1) for n in range(50)] + [(n, 2) for n in range(3, 50, 10)]
        assert sorted(seen) == sorted(expected)
        (dead,) = await store.rows()
        assert (dead.queue, dead.json, dead.attempt) == ("q.dead", "7", 1)
        assert store.leased == {}


@BACKENDS
@in_virtual_time
async def test_what_was_done_of_a_range_is_not_done_again_after_a_clean_end(backend: str) -> None:
    store = RangingStore()
    tasks = handle(store)
    await tasks.put("q", range(20))
    pull = tasks.pull("q", name="me")
    claims = await pull.fetch(10)
    assert len(claims) == 10
    await gather(*[claim.ack for claim in claims[:4]])
    await claims[4].nak(error="no")
    await claims[5].in_progress()
    with pytest.raises(InvalidOption, match="plain task"):
        await claims[5].ack(tasks.new("r", 1))
    await tasks.aclose()
    assert sorted(map(int, store.done)) == [claim.value for claim in claims[:4]]
    rows = {int(row.json): row for row in await store.rows()}
    assert set(rows) == {claim.value for claim in claims[4:]}
    assert {number: row.attempt for number, row in rows.items()} == {
        claim.value: int(claim is claims[4]) for claim in claims[4:]
    }
    assert rows[claims[4].value].error == "no"
    assert store.leased == {}
    with pytest.raises(ClaimLost):
        await claims[6].ack()


@BACKENDS
@in_virtual_time
async def test_plain_tasks_that_run_at_a_clean_end_are_cancelled(backend: str) -> None:
    store = RangingStore()
    tasks = handle(store)
    cancelled: list[int] = []

    @tasks.worker("q", concurrency=3)
    async def work(task: Task) -> None:
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            cancelled.append(1)
            raise

    await tasks.put("q", range(3))
    async with anyio.create_task_group() as group:
        group.start_soon(tasks.run)
        await anyio.sleep(1)
        await tasks.aclose()
    assert len(cancelled) == 3
    assert len(await store.rows()) == 3
    assert store.leased == {}


@in_virtual_time
async def test_a_range_that_is_slow_is_given_back_task_by_task() -> None:
    store = RangingStore()
    async with handle(store) as tasks:
        done: list[int] = []

        @tasks.worker("q", concurrency=1)
        async def work(task: Task) -> None:
            done.append(task.value)
            await anyio.sleep(0.0001 if task.value < 100 else 3)

        await tasks.put("q", range(110))
        await tasks.run(until_empty=True)
        assert sorted(done) == list(range(110))


@in_virtual_time
async def test_plain_tasks_that_came_with_a_lost_answer_are_handed_out_again() -> None:
    store = RangingStore()
    lost: list[int] = []
    work_of = store._work

    async def losing(command: Work, worked: Worked) -> Worked:
        worked = await work_of(command, worked)
        if worked.ranges and len(lost) < 2:
            lost.append(len(worked.ranges))
            raise StoreTimeout(store.url, "the answer was lost")
        return worked

    store._work = losing  # type: ignore[method-assign]
    async with handle(store) as tasks:
        done: list[int] = []

        @tasks.worker("q", concurrency=2)
        async def work(task: Task) -> None:
            done.append(task.value)
            await anyio.sleep(0.5)

        await tasks.put("q", range(30))
        with anyio.fail_after(100):
            await tasks.run(until_empty=True)
        assert len(lost) == 2
        assert sorted(done) == list(range(30))
        assert store.leased == {}
