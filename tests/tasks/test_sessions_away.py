"""Sessions of stores that are unreachable or break their promises, and lost answers."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.lowlevel
import pytest

from intervalq.errors import CorruptState, StoreError, StoreUnavailable, TransactionConflict
from intervalq.tasks import ClaimLost
from intervalq.tasks.rules import Begin, Modify, Select, Work
from tasks.fake_store import FakeStore, claimed, handle, once
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_a_store_that_was_away_for_ten_seconds_is_only_waited_for(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        store.is_down = True
        seen: list[object] = []

        async def caller() -> None:
            seen.append((await tasks.claim("r")).value)

        async with anyio.create_task_group() as group:
            group.start_soon(caller)
            group.start_soon(claim.ack)
            await anyio.sleep(10)
            await store.behind.apply(Modify(inserts=(tasks.new("r", 7),)))
            store.is_down = False
        assert seen == [7]
        assert "q" not in await store.sizes()


@BACKENDS
@pytest.mark.parametrize("begun", [True, False])
@in_virtual_time
async def test_callers_wait_a_minute_for_a_store_that_is_away(backend: str, begun: bool) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        if begun:
            await tasks.try_claim("q")
        store.is_down = True
        took: list[float] = []
        for _ in range(2):
            before = anyio.current_time()
            with pytest.raises(StoreUnavailable):
                await tasks.claim("q")
            took.append(anyio.current_time() - before)
        store.is_down = False
        await tasks.insert("q", 1)
        await (await tasks.claim("q")).ack()
        store.is_down = True  # and again a minute
        before = anyio.current_time()
        claim = partial(tasks.claim, "q")
        with pytest.raises(StoreUnavailable):
            await claim()
        assert 60 <= anyio.current_time() - before <= 62
        store.is_down = False
        assert 60 <= took[0] <= 62
        assert took[1] <= 2


@in_virtual_time
async def test_an_acknowledgement_waits_a_minute_and_may_be_tried_again() -> None:
    store = FakeStore()
    async with handle(store, expiry=3600) as tasks:
        claim = await claimed(tasks)
        for changes in ((), (tasks.new("r", 1),)):
            store.is_down = True
            before = anyio.current_time()
            with pytest.raises(StoreUnavailable):
                await claim.ack(*changes)
            assert 60 <= anyio.current_time() - before <= 62
            store.is_down = False
            await tasks.try_claim("nothing")
            assert claim.open
        await claim.ack()
        assert await store.rows() == []


@in_virtual_time
async def test_a_refusal_is_told_to_everybody_at_once() -> None:
    store = FakeStore()
    tasks = handle(store)
    store.fails = lambda command: CorruptState("fake", "broken") if isinstance(command, Begin) else None
    with pytest.raises(CorruptState):
        await tasks.claim("q")
    store.fails = lambda command: None
    claim = await claimed(tasks)
    store.fails = lambda command: CorruptState("fake", "broken") if isinstance(command, Work) else None
    with pytest.raises(CorruptState):
        await claim.ack()
    with pytest.raises(CorruptState):
        await tasks.claim("q")
    store.fails = lambda command: None
    await claim.ack()
    await tasks.aclose()
    assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_store_that_breaks_its_promises_ends_no_event_loop(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        store.fails = lambda command: KeyError("bug") if isinstance(command, Work) else None
        with pytest.raises(StoreError, match="undocumented error"):
            await tasks.claim("r")
        store.fails = lambda command: None
        with pytest.raises(ClaimLost):  # that session is gone
            await claim.ack()
        await (await tasks.claim("q")).ack()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@BACKENDS
@in_virtual_time
async def test_a_conflict_is_sent_again(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        for changes in ((), (tasks.new("r", 1),)):
            claim = await claimed(tasks)
            conflict = once(Modify if changes else Work, lambda part: getattr(part, "settled", True))
            store.fails = lambda command, conflict=conflict: (  # type: ignore[misc]
                TransactionConflict("fake", "met another") if conflict(command) else None
            )
            await claim.ack(*changes)
        assert await store.sizes() == {"r": 1}


@BACKENDS
@in_virtual_time
async def test_what_was_claimed_by_a_call_whose_answer_was_lost_is_given_back(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        await tasks.insert("q", 1)
        store.loses = once(Work, lambda work: work.limit)
        claim = await tasks.claim("q")
        assert (claim.claims, claim.attempt) == (2, 1)  # the first was not counted
        await claim.ack()

        await tasks.insert("q", 2)
        claim = await tasks.claim("q")
        store.loses = once(Work, lambda work: work.settled)
        async with anyio.create_task_group() as group:  # given back, and claimed again by the lost call
            group.start_soon(partial(claim.nak, error="later"))
            group.start_soon(tasks.claim, "q")
        await anyio.sleep(1)
        rows = await store.rows()
        assert [row.id for row in rows] == [claim.id]
        assert set(tasks._session().batcher.claims) == {claim.id}
        assert rows[0].version == tasks._session().batcher.claims[claim.id].version


@BACKENDS
@pytest.mark.parametrize("verb", ["ack", "nak", "release", "term", "in_progress"])
@in_virtual_time
async def test_what_was_settled_by_a_call_whose_answer_was_lost_is_not_reported_as_lost(
    backend: str, verb: str
) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        store.loses = once(Work, lambda work: work.settled)
        await getattr(claim, verb)()
        if verb == "in_progress":
            assert claim.version == (await store.row(claim.id)).version
            await claim.ack()
        assert await store.sizes() == (
            {} if verb in {"ack", "in_progress"} else {"q.dead" if verb == "term" else "q": 1}
        )


@in_virtual_time
async def test_what_was_not_sent_is_not_taken_for_done() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await store.force(claim.id, queue="q", at=2_000_000_000_000_000)
        batcher = tasks._session().batcher
        batcher._doubt = True
        lost = once(Select)
        store.fails = lambda command: StoreUnavailable("fake", "away") if lost(command) else None
        with pytest.raises(ClaimLost):
            await claim.ack()
