"""Changes that are returned for a chunk, chunks of plain tasks, and claims that are lost meanwhile."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from intervalq.errors import ClaimLost, DependencyError, StoreUnavailable
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Depend, Modify, Work
from tasks.fake_store import FakeStore, RangingStore, TransactionStore, handle, once
from tasks.test_chunk_outcomes import insert
from tasks.test_chunks import values
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_returned_changes_are_made_in_one_step_with_the_acknowledgement(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", batch=10)
        async def work(claims: Sequence[Claim]) -> Any:
            moved = [claim.change(queue="next") for claim in claims if claim.value > 2]
            return [*moved, tasks.new("sum", sum(claim.value for claim in claims))]

        await insert(tasks, *range(6))
        await tasks.run(until_empty=True)
        changes = [
            call for call in store.calls if isinstance(call, Modify) and (call.changes or call.deletes)
        ]
        assert [(len(c.inserts), len(c.changes), len(c.deletes)) for c in changes] == [(1, 3, 3)]
        assert await store.sizes() == {"next": 3, "sum": 1}
        assert [row.json for row in await store.rows("sum")] == ["15"]
        assert tasks._outcomes == {"done": 6}


@BACKENDS
@in_virtual_time
async def test_returned_changes_are_not_made_if_one_of_the_tasks_is_somebody_elses(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """That may be known when the function returns, or only to the store; no attempt counts."""
    caplog.set_level(logging.CRITICAL, "intervalq")
    for known in (False, True):
        store = FakeStore()
        async with handle(store) as tasks:

            @tasks.worker("q", batch=10, max_attempts=1)
            async def work(
                claims: Sequence[Claim], store: FakeStore = store, tasks: Tasks = tasks, known: bool = known
            ) -> Any:
                if len(claims) == 5:
                    lost = next(claim for claim in claims if claim.value == 3)
                    await store.force(lost.id, queue="other")
                    await anyio.sleep(3 if known else 0)
                assert {claim.attempt for claim in claims} == {1}
                return [tasks.new("done", values(claims))]

            @tasks.worker("other")
            async def other(claim: Claim, tasks: Tasks = tasks) -> Any:
                return tasks.new("done", [claim.value])

            await insert(tasks, *range(5))
            await tasks.run(until_empty=True)
            rows = [row.json for row in await store.rows()]
            assert sorted(rows) == ["[0,1,2,4]", "[3]"]
            assert tasks._outcomes == {"done": 5, "lost": 1, "given back": 4}


@BACKENDS
@in_virtual_time
async def test_changes_that_others_are_in_the_way_of(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        asked: list[tuple[list[int], list[str]]] = []
        runs: list[int] = []

        async def instead(claims: list[Claim], error: DependencyError) -> Any:
            asked.append((values(claims), list(error.depends)))
            return tasks.new("done", len(claims)) if len(asked) > 1 else None

        @tasks.worker("q", batch=10, max_attempts=1, on_dependency=instead)
        async def work(claims: Sequence[Claim]) -> Any:
            runs.append(len(claims))
            return [tasks.new("done", 0), Depend("nobody", 0)]

        await insert(tasks, 1, 2, 3)
        await tasks.run(until_empty=True)
        assert runs[0] == 3
        assert asked[0] == ([1, 2, 3], ["nobody"])
        assert sum(int(row.json) for row in await store.rows()) == 3
        assert tasks._outcomes == {"given back": asked[1:] and 3, "done": 3}


@BACKENDS
@in_virtual_time
async def test_losing_the_tasks_once_their_function_has_returned_cancels_nothing(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "intervalq")
    store = FakeStore()
    async with handle(store) as tasks:
        still_open: list[list[bool]] = []

        async def instead(claims: list[Claim], error: DependencyError) -> None:
            for claim in claims:
                await store.force(claim.id, queue="other")
            await anyio.sleep(3)
            still_open.append([claim.open for claim in claims])

        @tasks.worker("q", batch=10, on_dependency=instead)
        async def work(claims: Sequence[Claim]) -> Any:
            return [Depend("nobody", 0)]

        await insert(tasks, 1, 2)
        await tasks.run(until_empty=True)
        assert still_open == [[False, False]]
        assert tasks._outcomes == {"lost": 2}


@BACKENDS
@in_virtual_time
async def test_changes_whose_answer_was_lost_are_made_once(backend: str) -> None:
    for outage in (False, True):
        store = FakeStore()
        async with handle(store) as tasks:
            store.loses = once(Modify, lambda command: len(command.deletes) == 2 and bool(command.changes))
            if outage:
                store.fails = _fails_once(store)

            @tasks.worker("q", batch=10)
            async def work(claims: Sequence[Claim], tasks: Tasks = tasks) -> Any:
                ones = {claim.value: claim for claim in claims}
                return [tasks.new("done", 1), ones[0].change(queue="next", value=7)]

            await insert(tasks, 0, 1, 2)
            await tasks.run(until_empty=True)
            assert await store.sizes() == {"done": 1, "next": 1}
            assert tasks._outcomes == {"done": 3}


def _fails_once(store: FakeStore) -> Any:
    fails = once(Modify, lambda command: len(command.deletes) == 2)
    return lambda command: StoreUnavailable(store.url, "it is down: bring it up") if fails(command) else None


@BACKENDS
@in_virtual_time
async def test_tasks_of_ranges_come_in_chunks_too(backend: str) -> None:
    store = RangingStore(delay=0.001)
    async with handle(store) as tasks:
        seen: Counter[int] = Counter()
        sizes: Counter[int] = Counter()

        @tasks.worker("q", batch=25, backoff=0)
        async def work(claims: Sequence[Claim]) -> None:
            sizes[len(claims)] += 1
            seen.update(values(claims))
            for claim in claims:
                if claim.value % 50 == 7:
                    await claim.ack()
            if any(claim.value == 33 and claim.attempt == 1 for claim in claims):
                raise ValueError("no")

        await tasks.put("q", range(500))
        await tasks.run(until_empty=True)
        assert set(seen) == set(range(500))
        assert sizes[25] >= 18
        again = [value for value, times in seen.items() if times > 1]
        assert 33 in again
        assert len(again) <= 25
        assert len(store.done) + len(again) == 500
        assert tasks._outcomes == {"done": 500, "failed": sum(seen.values()) - 500}
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_quick_chunks_of_ranges_are_reported_together(backend: str) -> None:
    store = RangingStore(delay=0.001)
    async with handle(store) as tasks:

        @tasks.worker("q", batch=100)
        async def work(claims: Sequence[Claim]) -> None:
            return

        await tasks.put("q", range(5000))
        await tasks.run(until_empty=True)
        finished = [len(call.finished) for call in store.calls if isinstance(call, Work) and call.finished]
        assert sorted(map(int, store.done)) == list(range(5000))
        assert len(finished) < 20


@BACKENDS
@in_virtual_time
async def test_tasks_are_done_soon_after_the_function_has_returned_nothing(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:

        @tasks.worker("q", batch=10)
        async def work(claims: Sequence[Claim]) -> None:
            pass

        await insert(tasks, *range(25))
        with anyio.move_on_after(60):
            await tasks.run(until_empty=True)
        assert await store.sizes() == {}
        assert tasks._outcomes == {"done": 25}


@BACKENDS
@in_virtual_time
async def test_a_claim_that_is_lost_while_others_are_settled_does_not_end_the_function(backend: str) -> None:
    """Meanwhile none of the claims is open; the others stay claimed, and the function goes on with them."""
    store = TransactionStore()
    async with handle(store) as tasks:
        left: list[list[int]] = []

        @tasks.worker("q", batch=5)
        async def work(claims: Sequence[Claim]) -> None:
            await store.force(next(claim.id for claim in claims if claim.value == 1), queue="elsewhere")
            with pytest.raises(ClaimLost):
                async with tasks.commit(*claims) as connection:
                    connection.append(values(claims))
            await anyio.sleep(0.1)  # where it would be cancelled
            mine = [claim for claim in claims if claim.open]
            left.append(values(mine))
            async with tasks.commit(*mine) as connection:
                connection.append(values(mine))

        await insert(tasks, *range(4))
        await tasks.run(until_empty=True)
        assert left == store.written == [[0, 2, 3]]
        assert tasks._outcomes == {"done": 3, "lost": 1}
