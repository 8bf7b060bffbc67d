"""Claims: settled once, renewed, given back when nobody wants them, together with changes or not at all."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from intervalq.errors import (
    InboxFull,
    InvalidOption,
    StoreUnavailable,
)
from intervalq.tasks import Claim, ClaimLost, DependencyError, Tasks
from intervalq.tasks.rules import Command, Modify
from tasks.fake_store import (
    FakeStore,
    TransactionStore,
    claimed,
    handle,
    once,
)
from virtual_store import BACKENDS, gather, in_virtual_time


@BACKENDS
@pytest.mark.parametrize(
    "verb", ["ack", "nak", "release", "term", "in_progress", "ack with changes", "commit"]
)
@in_virtual_time
async def test_a_claim_is_settled_once(backend: str, verb: str) -> None:
    store = TransactionStore()
    async with handle(store) as tasks:
        for first in ("ack", "nak", "release", "term", "ack with changes", "commit"):
            claim = await claimed(tasks)
            await _settle(tasks, claim, first)
            before = await store.rows()
            with pytest.raises(ClaimLost) as caught:
                await _settle(tasks, claim, verb)
            assert (caught.value.queue, caught.value.id) == ("q", claim.id)
            assert await store.rows() == before
            for row in before:
                await store.force(row.id, queue="elsewhere")


async def _settle(tasks: Tasks, claim: Claim, verb: str) -> None:
    if verb == "ack with changes":
        await claim.ack(tasks.new("results", 1))
    elif verb == "commit":
        async with claim.commit() as connection:
            connection.append(claim.id)
    else:
        await getattr(claim, verb)()


@in_virtual_time
async def test_what_each_way_to_settle_leaves() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await claim.nak(delay=10, error="not now")
        row = await store.row(claim.id)
        assert (row.session, row.attempt, row.error, row.queue) == (None, 1, "not now", "q")
        assert row.at == row.modified + 10_000_000
        assert await tasks.try_claim("q") is None
        claim = await tasks.claim("q")
        assert (claim.attempt, claim.claims, claim.error) == (2, 2, "not now")
        await claim.release()
        row = await store.row(claim.id)
        assert (row.session, row.attempt, row.claims) == (None, 1, 2)
        claim = await tasks.claim("q")
        await claim.term("never")
        row = await store.row(claim.id)
        assert (row.session, row.queue, row.error) == (None, "q.dead", "never")
        claim = await tasks.claim("q.dead")
        await claim.term("again")
        assert (await store.row(claim.id)).queue == "q.dead"
        claim = await tasks.claim("q.dead")
        await claim.ack()
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_twenty_renewals_at_once_and_then_an_acknowledgement(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await gather(*[claim.in_progress] * 20)
        assert claim.version == 2
        assert (await store.row(claim.id)).version == 2
        await gather(*[partial(claim.in_progress, lease) for lease in (10, 20, None, 10, 20, None)])
        assert claim.version == (await store.row(claim.id)).version == 5
        await claim.in_progress(30)
        assert (await store.row(claim.id)).until is not None
        async with anyio.create_task_group() as group:
            group.start_soon(claim.in_progress)
            await anyio.sleep(0.005)  # the renewal is in flight
            await claim.ack(tasks.new("results", 1))
        assert await store.sizes() == {"results": 1}


@BACKENDS
@in_virtual_time
async def test_a_renewal_that_was_cancelled_does_not_stand_for_the_next(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        claim = await claimed(tasks, lease=1)
        with anyio.move_on_after(0.005):
            await claim.in_progress(1)
        await anyio.sleep(0.9)
        await claim.in_progress(5)
        await anyio.sleep(3)
        assert await handle(store.line()).try_claim("q") is None
        await claim.ack()


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_with_changes_is_all_or_nothing(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await tasks.insert("other", 1, id="there")
        with pytest.raises(DependencyError) as caught:
            await claim.ack(tasks.new("results", 1), tasks.new("other", 1, id="there"))
        assert caught.value.inserts == ("there",)
        assert caught.value.deletes == ()
        assert await store.sizes() == {"q": 1, "other": 1}
        await tasks.insert("box", 1, key="k")
        with pytest.raises(InboxFull):
            await claim.ack(tasks.new("box", 2, key="k", inbox=0))
        with pytest.raises(InvalidOption, match="named twice"):
            await claim.ack(claim.delete(), claim.change(2))
        with pytest.raises(InvalidOption, match="named twice"):
            await claim.ack(claim.depend())
        with pytest.raises(InvalidOption, match="too many"):
            await claim.ack(*[tasks.new("results", n) for n in range(1000)])
        await claim.ack(tasks.new("results", 1))  # it is still usable
        assert await store.sizes() == {"results": 1, "other": 1, "box": 1}

        claim = await claimed(tasks)
        await store.force(claim.id, queue="q")
        with pytest.raises(ClaimLost):
            await claim.ack(tasks.new("results", 1))
        assert (await store.sizes())["results"] == 1
        with pytest.raises(ClaimLost):
            await claim.ack()


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_may_say_itself_what_becomes_of_the_task(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await claim.nak(error="once")
        claim = await tasks.claim("q")
        moves = claim.change(queue="next", value=2)
        await claim.in_progress()  # since then it has another version
        await claim.ack(moves, tasks.new("results", 1))
        row = await store.row(claim.id)
        assert (row.queue, row.json, row.session) == ("next", "2", None)
        assert (row.attempt, row.claims, row.error) == (0, 2, "")
        assert tasks._session().batcher.claims == {}
        with pytest.raises(ClaimLost):
            await claim.ack()
        claim = await tasks.claim("next")
        assert claim.attempt == 1
        await claim.ack(claim.change(queue="last", attempt=7, error="kept"))
        row = await store.row(claim.id)
        assert (row.queue, row.attempt, row.error) == ("last", 7, "kept")
        claim = await tasks.claim("last")
        await claim.ack(claim.change(3))  # it stays where it is, with its attempts
        row = await store.row(claim.id)
        assert (row.queue, row.attempt, row.error, row.session) == ("last", 8, "kept", None)
        claim = await tasks.claim("last")
        await claim.ack(claim.change(queue="last.dead"))
        row = await store.row(claim.id)
        assert (row.queue, row.attempt, row.error) == ("last.dead", 9, "kept")
        claim = await tasks.claim("last.dead")
        await claim.ack(claim.delete())
        assert await store.sizes() == {"results": 1}


@BACKENDS
@pytest.mark.parametrize("how", ["moved on", "new"])
@in_virtual_time
async def test_what_follows_on_an_acknowledgement_is_asked_for_at_once(backend: str, how: str) -> None:
    async with handle(FakeStore()) as tasks, anyio.create_task_group() as group:
        times: list[float] = []

        async def wait() -> None:
            await tasks.claim("next")
            times.append(anyio.current_time())

        group.start_soon(wait)
        await anyio.sleep(20.3)
        claim = await claimed(tasks)
        begun = anyio.current_time()
        await claim.ack(claim.change(queue="next") if how == "moved on" else tasks.new("next", 1))
        await anyio.sleep(1)
        assert times[0] - begun < 0.001


@BACKENDS
@pytest.mark.parametrize("since", ["nothing", "claimed", "done"])
@in_virtual_time
async def test_a_task_that_was_moved_on_by_a_call_whose_answer_was_lost(backend: str, since: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks, handle(store.line()) as others:

        async def after(command: Command[object]) -> None:
            if isinstance(command, Modify) and since != "nothing":
                taken = await others.claim("next")
                if since == "done":
                    await taken.ack()

        claim = await claimed(tasks)
        store.loses, store.after = once(Modify), after
        await claim.ack(claim.change(queue="next"), tasks.new("results", 1))
        assert await store.sizes() == {"results": 1} | ({} if since == "done" else {"next": 1})


@BACKENDS
@in_virtual_time
async def test_a_task_that_was_moved_by_hand_before_it_could_be_moved_on(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        is_first = once(Modify)
        store.fails = lambda call: StoreUnavailable("x", "y") if is_first(call) else None

        async def before(command: Command[object]) -> None:
            if isinstance(command, Modify):
                await store.force(claim.id, queue="elsewhere")

        store.before = before
        with pytest.raises(ClaimLost):
            await claim.ack(claim.change(queue="next"), tasks.new("results", 1))
        assert await store.sizes() == {"elsewhere": 1}
