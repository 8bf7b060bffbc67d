"""What becomes of the claims of a chunk: each by itself, and none suffers from another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq.errors import ClaimLost, InvalidOption, TransactionConflict
from intervalq.tasks import Claim, Reject, Retry, Snooze, Tasks
from tasks.fake_store import FakeStore, TransactionStore, handle
from tasks.test_chunks import WakingStore, values
from virtual_store import BACKENDS, gather, in_virtual_time


async def insert(tasks: Tasks, *some: object, **options: Any) -> list[str]:
    """Insert tasks in one step, so that they are in one chunk."""
    parts = [tasks.new("q", value, **options) for value in some]
    await tasks.modify(*parts)
    return [part.id for part in parts]


@BACKENDS
@in_virtual_time
async def test_what_the_function_has_not_settled_fails_when_it_raises(backend: str) -> None:
    for error, state in {
        ValueError("no"): ("q", 1, "ValueError: no"),
        Retry("no", delay=300): ("q", 1, "intervalq.tasks.Retry: no"),
        Reject("no"): ("q.dead", 1, "intervalq.tasks.Reject: no"),
        Snooze(300): ("q", 0, ""),
    }.items():
        store = FakeStore()
        async with handle(store) as tasks:

            @tasks.worker("q", batch=10, backoff=300)
            async def work(claims: Sequence[Claim], tasks: Tasks = tasks, error: Exception = error) -> None:
                for claim in claims:
                    if claim.value == 0:
                        await claim.ack(tasks.new("done", 0))
                    if claim.value == 1:
                        await claim.nak(500, "by hand")
                tasks.stop()
                raise error

            ids = await insert(tasks, 0, 1, 2, 3, 4)
            await tasks.run()
            for id_ in ids[2:]:
                row = await store.row(id_)
                assert (row.queue, row.attempt, row.error) == state
                assert row.session is None
            row = await store.row(ids[1])
            assert (row.queue, row.attempt, row.error) == ("q", 1, "by hand")
            assert await store.sizes() == {"done": 1, "q": 1} | Counter([state[0]] * 3) + Counter(q=1)
            kind = {"Snooze": "snoozed", "Reject": "dead"}.get(type(error).__name__, "failed")
            assert tasks._outcomes == {"done": 2, kind: 3}


@BACKENDS
@in_virtual_time
async def test_no_task_is_dead_because_of_another_one(backend: str) -> None:
    """One of fifty always fails, and with it every task that shares its chunk."""
    store = FakeStore()
    async with handle(store) as tasks:
        runs: Counter[int] = Counter()
        sizes: list[int] = []

        @tasks.worker("q", batch=50, max_attempts=3, backoff=0)
        async def work(claims: Sequence[Claim]) -> None:
            sizes.append(len(claims))
            runs.update(values(claims))
            await anyio.sleep(0.1)
            if 13 in values(claims):
                raise ValueError("it is 13")

        await insert(tasks, *range(50))
        await tasks.run(until_empty=True)
        (dead,) = await store.rows()
        assert (dead.json, dead.queue, dead.attempt) == ("13", "q.dead", 3)
        assert runs[13] == max(runs.values()) == 3
        assert sizes[0] == 50
        assert tasks._outcomes["done"] == 49


@BACKENDS
@in_virtual_time
async def test_last_attempts_are_not_made_in_the_company_of_others(backend: str) -> None:
    async with handle(FakeStore()) as tasks:
        chunks: list[list[int]] = []

        @tasks.worker("q", batch=10, max_attempts=3, concurrency=2)
        async def work(claims: Sequence[Claim]) -> None:
            chunks.append([claim.attempt for claim in claims])

        ids = await insert(tasks, *range(60))
        for task in await tasks.tasks(ids=ids[::3]):
            await tasks.modify(task.change(attempt=2))
        for task in await tasks.tasks(ids=ids[1::3]):
            await tasks.modify(task.change(attempt=1))
        await tasks.run(until_empty=True)
        assert chunks.count([3]) == 20
        assert all(len(chunk) == 1 for chunk in chunks if 3 in chunk)
        assert any({1, 2} == set(chunk) for chunk in chunks)


@BACKENDS
@in_virtual_time
async def test_a_single_attempt_is_made_in_company(backend: str) -> None:
    async with handle(FakeStore()) as tasks:
        sizes: list[int] = []

        @tasks.worker("q", batch=5, max_attempts=1)
        async def work(claims: Sequence[Claim]) -> None:
            sizes.append(len(claims))

        await insert(tasks, *range(5))
        await tasks.run(until_empty=True)
        assert sizes == [5]


@BACKENDS
@in_virtual_time
async def test_tasks_of_a_chunk_that_killed_its_worker_run_alone(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        chunks: list[list[int]] = []
        running: list[int] = []

        @tasks.worker("q", batch=10, max_attempts=3, concurrency=3)
        async def work(claims: Sequence[Claim]) -> None:
            chunks.append(values(claims))
            running.append(1)
            if len(chunks) > 1:
                assert len(running) == 1
                assert all(row.begun for row in await store.rows() if row.json == str(claims[0].value))
            try:
                await anyio.sleep(0.1)
                if 13 in values(claims):
                    await store.lapse()  # as if this process had died
                    await anyio.sleep(100)
            finally:
                with anyio.CancelScope(shield=True):  # the others wait for that, and no longer
                    await anyio.sleep(5 if len(chunks) == 1 else 0)
                running.pop()

        await insert(tasks, 1, 2, 13, 4, 5)
        at = anyio.current_time()
        await tasks.run(until_empty=True)
        assert 5 < anyio.current_time() - at < 25
        assert chunks[0] == [1, 2, 4, 5, 13]
        assert all(len(chunk) == 1 for chunk in chunks[1:])
        counts = Counter(value for chunk in chunks for value in chunk)
        assert counts == {13: 3, 1: 2, 2: 2, 4: 2, 5: 2}
        (dead,) = await store.rows()
        assert (dead.queue, dead.json, dead.attempt) == ("q.dead", "13", 3)


@BACKENDS
@in_virtual_time
async def test_a_lost_claim_does_not_disturb_the_others(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        seen: list[list[bool]] = []

        @tasks.worker("q", batch=5)
        async def work(claims: Sequence[Claim]) -> None:
            mine = {claim.value: claim for claim in claims}
            await store.force(mine[2].id, queue="elsewhere")
            await anyio.sleep(3)  # a heartbeat finds it
            seen.append([mine[value].open for value in range(5)])
            with pytest.raises(ClaimLost):
                await mine[2].ack()
            with pytest.raises(ClaimLost):
                await mine[2].in_progress()
            await mine[3].ack()

        await insert(tasks, *range(5))
        await tasks.run(until_empty=True)
        assert seen == [[True, True, False, True, True]]
        assert await store.sizes() == {"elsewhere": 1}
        assert tasks._outcomes == {"done": 4, "lost": 1}


@BACKENDS
@in_virtual_time
async def test_a_loss_that_nobody_knows_of_yet_does_not_disturb_the_others_either(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", batch=5)
        async def work(claims: Sequence[Claim]) -> None:
            await store.force(claims[2].id, queue="elsewhere")

        await insert(tasks, *range(5))
        await tasks.run(until_empty=True)
        assert await store.sizes() == {"elsewhere": 1}


@BACKENDS
@in_virtual_time
async def test_an_error_about_a_lost_claim_gives_the_others_back(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        attempts: list[tuple[int, int]] = []

        @tasks.worker("q", batch=5, max_attempts=2)
        async def work(claims: Sequence[Claim]) -> None:
            attempts.extend((claim.value, claim.attempt) for claim in claims)
            for claim in claims:
                if claim.value == 0:
                    await store.force(claim.id, queue="elsewhere")
                    await claim.ack()

        await insert(tasks, *range(5))
        await tasks.run(until_empty=True)
        assert sorted(attempts) == [(0, 1), *[(n, 1) for n in (1, 1, 2, 2, 3, 3, 4, 4)]]
        assert tasks._outcomes == {"lost": 1, "given back": 4, "done": 4}


@BACKENDS
@in_virtual_time
async def test_the_function_is_cancelled_when_it_can_settle_nothing_any_more(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        ends: list[str] = []

        @tasks.worker("q", batch=5, concurrency=1)
        async def work(claims: Sequence[Claim]) -> None:
            first = claims[0]
            await first.ack()
            if len(ends) == 0:
                await anyio.sleep(1)
                await store.lapse()
                try:
                    await anyio.sleep(50)
                finally:
                    ends.append(f"open {sum(claim.open for claim in claims)}")

        await insert(tasks, *range(5))
        await tasks.run(until_empty=True)
        assert anyio.current_time() < 20
        assert ends == ["open 0"]
        assert tasks._outcomes == {"lost": 4, "done": 5}
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_cancelled_task_is_not_committed_and_keeps_its_key_until_the_chunk_has_ended(
    backend: str,
) -> None:
    store = WakingStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        log: list[str] = []

        @tasks.worker("q", batch=5, concurrency=2)
        async def work(claims: Sequence[Claim]) -> None:
            log.append(f"begin {values(claims)}")
            if len(log) == 1:
                await anyio.sleep(0.1)
                await operator.cancel(ids[0])
                await anyio.sleep(3)
                assert [claim.id for claim in claims if not claim.open] == [ids[0]]
            log.append(f"end {values(claims)}")

        ids = [await tasks.insert("q", value, key="k" if value < 2 else None) for value in range(4)]
        await tasks.run(until_empty=True)
        assert log == ["begin [0, 2, 3]", "end [0, 2, 3]", "begin [1]", "end [1]"]
        assert tasks._outcomes == {"cancelled": 1, "done": 3}
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_results_of_single_claims_are_committed_and_a_conflict_repeats_only_the_others(
    backend: str,
) -> None:
    store = TransactionStore()
    async with handle(store) as tasks:
        given: list[list[int]] = []
        conflicts = [TransactionConflict(store.url, "it can't be serialized")]

        @tasks.worker("q", batch=10)
        async def work(claims: Sequence[Claim]) -> None:
            given.append(values(claims))
            for claim in sorted(claims, key=lambda claim: int(claim.value)):
                async with claim.commit() as connection:
                    connection.append(claim.value)
                    if claim.value == 2 and conflicts:
                        raise conflicts.pop()

        await insert(tasks, *range(4))
        await tasks.run(until_empty=True)
        assert given == [[0, 1, 2, 3], [2, 3]]
        assert store.written == [0, 1, 2, 3]
        assert tasks._outcomes == {"done": 4}


@BACKENDS
@in_virtual_time
async def test_one_commit_ends_all_claims_of_a_chunk_or_none(backend: str) -> None:
    store = TransactionStore()
    async with handle(store) as tasks:
        given: list[list[int]] = []
        conflicts = [TransactionConflict(store.url, "it can't be serialized")]

        @tasks.worker("q", batch=10)
        async def work(claims: Sequence[Claim]) -> None:
            given.append(values(claims))
            if len(given) == 2:
                await store.force(next(claim.id for claim in claims if claim.value == 1), queue="elsewhere")
            async with tasks.commit(*claims) as connection:
                connection.append(values(claims))
                if conflicts:
                    raise conflicts.pop()

        await insert(tasks, *range(4))
        await tasks.run(until_empty=True)
        assert given == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3]]
        assert store.written == [[0, 2, 3]]
        assert [row.queue for row in await store.rows()] == ["elsewhere"]
        assert tasks._outcomes == {"given back": 3, "done": 3, "lost": 1}


@BACKENDS
@in_virtual_time
async def test_a_commit_of_several_needs_claims_of_one_handle(backend: str) -> None:
    store = TransactionStore()
    async with handle(store) as tasks, handle(store) as others:
        await insert(tasks, 1, 2)
        mine, theirs = await tasks.claim("q"), await others.claim("q")
        for claims in ((), (mine, theirs)):
            with pytest.raises(InvalidOption, match="claims of one handle"):
                tasks.commit(*claims)
        async with tasks.commit(mine, mine) as connection:
            connection.append("twice is once")
        assert store.written == ["twice is once"]
        await theirs.ack()


@BACKENDS
@in_virtual_time
async def test_a_chunk_that_takes_too_long_has_failed_and_one_that_is_stopped_has_not(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", batch=10, timeout=2, max_attempts=1)
        async def work(claims: Sequence[Claim]) -> None:
            await anyio.sleep(60)

        @tasks.worker("slow", batch=10)
        async def slow(claims: Sequence[Claim]) -> None:
            tasks.stop()
            await anyio.sleep(60)

        await insert(tasks, 0, 1)
        at = anyio.current_time()

        async def second() -> None:
            await anyio.sleep(5)
            await tasks.put("slow", range(3))

        await gather(partial(tasks.run, grace=4), second)
        assert anyio.current_time() - at < 11
        assert [(row.attempt, row.error) for row in await store.rows("q.dead")] == [(1, "TimeoutError")] * 2
        assert [(row.attempt, row.session) for row in await store.rows("slow")] == [(0, None)] * 3
        assert tasks._outcomes == {"dead": 2, "given back": 3}


@BACKENDS
@in_virtual_time
async def test_a_function_that_ends_the_process_fails_its_chunk(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", batch=10)
        async def work(claims: Sequence[Claim]) -> None:
            raise SystemExit(3)

        await insert(tasks, 0, 1)
        with pytest.raises(SystemExit):
            await tasks.run()
        assert [(row.attempt, row.error) for row in await store.rows()] == [(1, "SystemExit: 3")] * 2
