"""Workers that get several claims at once: what is in a chunk, when it begins, and what becomes of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.errors import InvalidInterval, InvalidOption
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Work
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from tasks.fake_store import FakeStore, handle
from virtual_store import BACKENDS, gather, in_virtual_time


def values(claims: Sequence[Claim]) -> list[Any]:
    return sorted(claim.value for claim in claims)


@BACKENDS
@in_virtual_time
async def test_every_task_is_in_one_chunk_and_chunks_are_full_while_there_is_a_backlog(backend: str) -> None:
    store = FakeStore(delay=0.002)
    async with handle(store) as tasks:
        sizes: list[int] = []
        seen: Counter[int] = Counter()
        running: list[int] = []
        most = 0

        @tasks.worker("q", batch=20, concurrency=3)
        async def work(claims: Sequence[Claim]) -> None:
            nonlocal most
            sizes.append(len(claims))
            seen.update(values(claims))
            running.append(1)
            most = max(most, len(running))
            await anyio.sleep(0.05)
            running.pop()

        await tasks.put("q", range(1000))
        await tasks.run(until_empty=True)
        assert set(seen.values()) == {1}
        assert len(seen) == 1000
        assert max(sizes) == 20
        assert sizes.count(20) >= 45
        assert most == 3
        assert tasks._outcomes == {"done": 1000}
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_chunk_waits_for_nothing_unless_it_is_told_to(backend: str) -> None:
    async with handle(FakeStore()) as tasks:
        begins: list[tuple[float, int]] = []

        @tasks.worker("q", batch=100, concurrency=1)
        async def work(claims: Sequence[Claim]) -> None:
            begins.append((anyio.current_time(), len(claims)))
            await anyio.sleep(1)

        await tasks.modify(*[tasks.new("q", n) for n in range(3)])
        at = anyio.current_time()
        await gather(partial(tasks.run, until_empty=True), partial(_insert_later, tasks, 0.3, 5))
        assert begins == [(at, 3), (pytest.approx(at + 1), 5)]


async def _insert_later(tasks: Tasks, pause: float, count: int) -> None:
    await anyio.sleep(pause)
    await tasks.modify(*[tasks.new("q", n) for n in range(count)])


class WakingStore(FakeStore):
    """One that tells its sessions at once."""

    def wakeups(self, session: str) -> Any:
        return self.behind.wakeups(session)


@BACKENDS
@in_virtual_time
async def test_a_chunk_waits_for_its_time_from_the_first_task_or_until_it_is_full(backend: str) -> None:
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as producer:
        begins: list[tuple[float, int]] = []

        @tasks.worker("q", batch=8, within="100ms", concurrency=3)
        async def work(claims: Sequence[Claim]) -> None:
            begins.append((anyio.current_time(), len(claims)))

        async def insert() -> None:
            await anyio.sleep(1)
            for number in range(5):  # one each 30 ms: 4 within the time from the first one
                await producer.insert("q", number)
                await anyio.sleep(0.03)
            await anyio.sleep(1)
            await producer.modify(*[producer.new("q", number) for number in range(19)])
            await anyio.sleep(1)
            tasks.stop()

        at = anyio.current_time()
        await gather(tasks.run, insert)
        waits = [(round(begin - at, 6), size) for begin, size in begins]
        assert waits == [(1.1, 4), (1.22, 1), (2.15, 8), (2.15, 8), (2.25, 3)]
        assert tasks._outcomes == {"done": 24}


@in_virtual_time
async def test_what_waits_for_its_chunk_is_not_given_back_before_that() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        began: list[tuple[float, list[int]]] = []

        @tasks.worker("q", batch=100, within=30)
        async def work(claims: Sequence[Claim]) -> None:
            assert [claim.claims for claim in claims] == [1] * len(claims)
            began.append((anyio.current_time(), values(claims)))

        await tasks.modify(*[tasks.new("q", n) for n in range(3)])
        at = anyio.current_time()
        await tasks.run(until_empty=True)
        assert began == [(at + 30, [0, 1, 2])]


@BACKENDS
@in_virtual_time
async def test_a_chunk_is_acknowledged_in_one_step(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:

        @tasks.worker("q", batch=500, concurrency=1)
        async def work(claims: Sequence[Claim]) -> None:
            await anyio.sleep(0.2)

        await tasks.put("q", range(500))
        await tasks.run(until_empty=True)
        settled = [len(call.settled) for call in store.calls if isinstance(call, Work) and call.settled]
        assert settled == [500]


@BACKENDS
@in_virtual_time
async def test_the_starts_of_slow_chunks_are_reported(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:

        @tasks.worker("q", batch=5, within="100ms")
        async def work(claims: Sequence[Claim]) -> None:
            rows = await store.rows()
            assert [row.begun for row in rows] == [False] * 3  # those that wait for others have not begun
            await anyio.sleep(1)
            assert [(row.begun, row.attempt) for row in await store.rows()] == [(True, 1)] * 3
            assert [claim.attempt for claim in claims] == [1] * 3

        await tasks.modify(*[tasks.new("q", n) for n in range(3)])
        await tasks.run(until_empty=True)
        assert tasks._outcomes == {"done": 3}


@BACKENDS
@in_virtual_time
async def test_a_paced_chunk_takes_one_slot_and_fills_up_while_it_waits(backend: str) -> None:
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as producer:
        begins: list[tuple[float, int]] = []
        queue = IntervalQueue("p", interval=2, store=MemoryStore(clock=virtual_micros))

        @tasks.worker("q", batch=10, queue=queue)
        async def work(claims: Sequence[Claim]) -> None:
            begins.append((anyio.current_time(), len(claims)))

        async def insert() -> None:
            for number in range(40):
                await producer.insert("q", number)
                await anyio.sleep(0.25)

        await gather(tasks.run, insert, partial(_stop_when_empty, tasks, producer))
        await queue.close()
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(begins)]
        assert min(gaps) >= 2
        assert [size for _, size in begins[1:]] == pytest.approx([8] * (len(begins) - 1), abs=1)
        assert len(begins) == 6
        assert tasks._outcomes == {"done": 40}


async def _stop_when_empty(tasks: Tasks, producer: Tasks) -> None:
    await anyio.sleep(10)
    await producer.wait_empty("q")
    tasks.stop()


@BACKENDS
@in_virtual_time
async def test_idle_runners_take_no_slots(backend: str) -> None:
    async with handle(WakingStore()) as tasks:
        begins: list[float] = []
        queue = IntervalQueue("p", interval=1, store=MemoryStore(clock=virtual_micros))

        @tasks.worker("q", batch=10, queue=queue, concurrency=10)
        async def work(claims: Sequence[Claim]) -> None:
            begins.append(anyio.current_time())

        await tasks.modify(*[tasks.new("q", n) for n in range(5)])
        at = anyio.current_time()
        later = partial(_stop_when_empty, tasks, tasks)
        await gather(tasks.run, partial(_insert_later, tasks, 0.2, 3), later)
        assert begins == pytest.approx([at, at + 1], abs=0.01)
        assert (await queue.inspect()).ticket == 2
        await queue.close()


@BACKENDS
@in_virtual_time
async def test_full_paced_chunks_wait_for_slots_beside_each_other(backend: str) -> None:
    """No slot is left unused while there is a backlog, however long the function takes."""
    async with handle(FakeStore()) as tasks:
        begins: list[tuple[float, int]] = []
        queue = IntervalQueue("p", interval=1, store=MemoryStore(clock=virtual_micros))

        @tasks.worker("q", batch=10, queue=queue)
        async def work(claims: Sequence[Claim]) -> None:
            begins.append((anyio.current_time(), len(claims)))
            await anyio.sleep(5)

        await tasks.put("q", range(120))
        await tasks.run(until_empty=True)
        await queue.close()
        assert [size for _, size in begins] == [10] * 12
        assert begins[-1][0] - begins[0][0] < 11.1


@BACKENDS
@in_virtual_time
async def test_a_pace_that_cannot_be_asked_is_no_failed_attempt(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        attempts: list[int] = []
        queue = IntervalQueue("p", interval=100, store=MemoryStore(clock=virtual_micros), timeout=5)

        @tasks.worker("q", queue=queue, batch=5, max_attempts=2, concurrency=1)
        async def work(claims: Sequence[Claim]) -> None:
            attempts.extend(claim.attempt for claim in claims)

        async with queue.slot():
            pass
        await tasks.put("q", range(3))
        await tasks.run(until_empty=True)
        assert attempts == [1, 1, 1]
        assert tasks._outcomes["given back"] > 3
        await queue.close()


@BACKENDS
@in_virtual_time
async def test_a_stop_gives_back_what_waits_for_more_or_for_a_slot(backend: str) -> None:
    for options in ({"within": 60}, {"queue": True}):
        store = FakeStore()
        queue = IntervalQueue("p", interval=1000, store=MemoryStore(clock=virtual_micros))
        async with handle(store) as tasks:
            began: list[int] = []
            given = {"queue": queue} if "queue" in options else options

            @tasks.worker("q", batch=10, **given)
            async def work(claims: Sequence[Claim], began: list[int] = began) -> None:
                began.append(len(claims))

            async def stop(store: FakeStore = store, tasks: Tasks = tasks) -> None:
                await anyio.sleep(5)
                assert all(row.session for row in await store.rows())
                tasks.stop()

            async with queue.slot():
                pass
            await tasks.put("q", range(5))
            at = anyio.current_time()
            await gather(tasks.run, stop)
            assert anyio.current_time() - at < 6
            assert began == []
            assert [(row.session, row.attempt) for row in await store.rows()] == [(None, 0)] * 5
            assert tasks._outcomes == {"given back": 5}
        await queue.close()


@BACKENDS
@in_virtual_time
async def test_a_stop_reaches_runners_that_are_about_to_look_for_a_chunk(backend: str) -> None:
    for last in range(1, 12):
        async with handle(FakeStore()) as tasks:
            done: list[int] = []

            @tasks.worker("q", batch=2, concurrency=4)
            async def work(
                claims: Sequence[Claim], tasks: Tasks = tasks, done: list[int] = done, last: int = last
            ) -> None:
                done.append(len(claims))
                if len(done) == last:
                    tasks.stop()

            await tasks.put("q", range(24))
            at = anyio.current_time()
            await tasks.run()
            assert anyio.current_time() - at < 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_plain_functions_get_chunks_in_threads(backend: str) -> None:
    async def scenario() -> None:
        async with Tasks(f"memory://chunks-{backend}") as tasks:
            seen: list[int] = []

            @tasks.worker("q", batch=30)
            def work(claims: list[Claim]) -> object:
                assert threading.current_thread() is not threading.main_thread()
                seen.extend(claim.value for claim in claims)
                claims.clear()  # the list is the function's own
                return None

            await tasks.put("q", range(100))
            await tasks.run(until_empty=True)
            assert sorted(seen) == list(range(100))
            assert tasks._outcomes == {"done": 100}

    anyio.run(scenario, backend=backend)


def test_options_that_make_no_sense_are_refused() -> None:
    tasks = Tasks("memory://")
    for batch in (0, -1, 1001, True, 2.0, "10"):
        with pytest.raises(InvalidOption, match="from 1 to 1000"):
            tasks.worker("q", batch=batch)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="give batch="):
        tasks.worker("q", within=1)  # type: ignore[call-overload]
    for within in (-1, "soon", float("nan")):
        with pytest.raises(InvalidInterval):
            tasks.worker("q", batch=1, within=within)

    async def nothing() -> None: ...

    async def two(claims: list[Claim], more: int) -> None: ...

    async def named(*, claims: list[Claim]) -> None: ...

    wrong: list[Any] = [nothing, two, named]
    for function in wrong:
        with pytest.raises(InvalidOption, match="with a claim, or with a list"):
            tasks.worker("q", batch=1)(function)
        with pytest.raises(InvalidOption, match="with a claim, or with a list"):
            tasks.worker("q")(function)
    right: list[Any] = [print, partial(two, more=1)]
    for number, function in enumerate(right):
        assert tasks.worker(f"q{number}", batch=1)(function) is function
