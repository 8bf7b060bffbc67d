"""Sessions: one heartbeat for all claims; lapses, clean ends, and claims that others take."""

from __future__ import annotations

import logging
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint

from intervalq.errors import QueueClosed, StoreUnavailable
from intervalq.tasks import Claim, ClaimLost
from intervalq.tasks.rules import Beat, Begin, Command, End, Modify, Select, Work
from tasks.fake_store import FakeStore, claimed, handle, once, until
from virtual_store import BACKENDS, gather, in_virtual_time


@in_virtual_time
async def test_one_heartbeat_for_all_claims() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        await tasks.put("q", range(100))
        claims = [await tasks.claim("q") for _ in range(100)]
        assert await store.sessions() == 1
        before = store.sent(Beat)
        await anyio.sleep(10.5)
        assert store.sent(Beat) - before == 10
        assert store.sent(Select) == 0  # nothing was missed, so nothing was looked for
        await handle(store.line())._apply(Beat("somebody"))
        await gather(*[claim.ack for claim in claims])
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_session_that_has_lapsed_loses_all_and_another_begins(backend: str) -> None:
    store = FakeStore(delay=0.001)
    async with handle(store) as tasks:
        claims = [await claimed(tasks) for _ in range(3)]
        lost: list[str] = []
        for claim in claims:
            claim._on_lost = partial(lost.append, claim.id)
        await store.lapse()
        with anyio.fail_after(1.1):
            await until(lambda: len(lost) == 3)
        for claim in claims:
            with pytest.raises(ClaimLost):
                await claim.ack()
        again = [await tasks.claim("q") for _ in range(3)]
        assert {claim.id for claim in again} == {claim.id for claim in claims}
        assert {claim.error.endswith("was lost") for claim in again} == {True}
        assert {claim.attempt for claim in again} == {2}
        assert await store.sessions() == 1


@BACKENDS
@pytest.mark.parametrize("verb", ["ack", "in_progress", "ack with changes"])
@in_virtual_time
async def test_a_lapse_that_nobody_has_heard_of_is_seen_at_the_next_step(backend: str, verb: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await store.lapse()
        with pytest.raises(ClaimLost):
            await (claim.ack(tasks.new("r", 1)) if " " in verb else getattr(claim, verb)())
        assert await store.sizes() == {"q": 1}
        await (await tasks.claim("q")).ack()


@BACKENDS
@in_virtual_time
async def test_what_a_call_claims_while_its_session_lapses_is_not_handed_out(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        first = await claimed(tasks)
        claimed_meanwhile = once(Work, lambda work: work.limit)

        async def lapses(command: Command[object]) -> None:
            if claimed_meanwhile(command):
                await store.lapse()
                await anyio.sleep(2)  # a heartbeat finds out first

        await tasks.insert("r", 1)
        store.after = lapses
        claim = await tasks.claim("r")
        assert not first.open
        await claim.ack()
        assert await store.sizes() == {"q": 1}


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_is_not_taken_for_done_because_its_session_lapsed(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)

        async def first_lapses(command: Command[object]) -> None:
            if isinstance(command, Work) and command.settled:
                store.before = _nothing
                await store.lapse()
                await anyio.sleep(2)
                raise StoreUnavailable("fake", "away")

        store.before = first_lapses
        with pytest.raises(ClaimLost):
            await claim.ack()
        assert await store.sizes() == {"q": 1}


@BACKENDS
@pytest.mark.parametrize("changes", [False, True])
@in_virtual_time
async def test_an_acknowledgement_sent_again_is_not_taken_for_done_because_another_session_did_the_task(
    backend: str, changes: bool
) -> None:
    store = FakeStore()
    async with handle(store) as tasks, handle(store.line()) as others:
        claim = await claimed(tasks)
        is_first = once(Modify if changes else Work, lambda command: not changes or command.inserts)

        async def never_arrives(command: Command[object]) -> None:
            if is_first(command):
                await store.behind.apply(
                    End(claim._row.session or "")
                )  # frees it as a lapse does, but at once
                await (await others.claim("q")).ack()
                raise StoreUnavailable("fake", "away")

        store.before = never_arrives
        with pytest.raises(ClaimLost):
            await claim.ack(*[tasks.new("r", 1)] * changes)
        assert await store.sizes() == {}


async def _nothing(_command: Command[object]) -> None:
    return


@BACKENDS
@in_virtual_time
async def test_a_clean_end_frees_at_once_and_counts_no_attempt(backend: str) -> None:
    store = FakeStore(delay=0.001)
    tasks = handle(store)
    claim = await claimed(tasks)
    before = anyio.current_time()
    await tasks.aclose()
    assert anyio.current_time() - before < 0.1
    (row,) = await store.rows()
    assert (row.id, row.session, row.attempt, row.error) == (claim.id, None, 0, "")
    assert await store.sessions() == 0
    assert store.is_closed
    with pytest.raises(ClaimLost):
        await claim.ack()
    again = await tasks.claim("q")  # the handle can be used again
    await again.ack()
    await tasks.aclose()
    assert await store.sessions() == 0


@BACKENDS
@in_virtual_time
async def test_a_handle_that_is_being_closed_is_closed_when_another_call_returns(backend: str) -> None:
    store = FakeStore(delay=0.01)
    tasks = handle(store)
    await claimed(tasks)
    ended: list[int] = []

    async def close() -> None:
        await tasks.aclose()
        ended.append(await store.sessions())

    await gather(close, close)
    assert ended == [0, 0]


@BACKENDS
@in_virtual_time
async def test_what_is_to_be_settled_is_settled_before_the_end(backend: str) -> None:
    store = FakeStore(delay=0.01)
    tasks = handle(store)
    claim = await claimed(tasks)
    async with anyio.create_task_group() as group:
        group.start_soon(claim.ack)
        await anyio.lowlevel.checkpoint()
        await tasks.aclose()
    assert await store.rows() == []


@BACKENDS
@pytest.mark.parametrize("trouble", ["hangs", "is_down"])
@in_virtual_time
async def test_the_end_is_bounded_whatever_the_store_does(backend: str, trouble: str) -> None:
    store = FakeStore()
    tasks = handle(store)
    claim = await claimed(tasks)
    results: list[object] = []

    async def ack() -> None:
        try:
            await claim.ack()
        except ClaimLost as error:
            results.append(error)

    async with anyio.create_task_group() as group:
        setattr(store, trouble, True)
        group.start_soon(ack)
        await anyio.sleep(1)
        before = anyio.current_time()
        await tasks.aclose()
        assert anyio.current_time() - before <= 10.1
    assert len(results) == 1  # waiting callers were notified


@BACKENDS
@in_virtual_time
async def test_callers_at_the_end_are_told_and_do_not_wait_for_ever(backend: str) -> None:
    store = FakeStore()
    tasks = handle(store)
    pull = tasks.pull("p", name="me")
    caught: list[str] = []

    async def wait(call: object) -> None:
        assert callable(call)
        try:
            await call()
        except QueueClosed as error:
            caught.append(error.queue)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, partial(tasks.claim, "q", "r"))
        group.start_soon(wait, partial(pull.fetch, timeout=1000))
        await anyio.sleep(1)
        await tasks.aclose()
    assert sorted(caught) == ["p", "q, r"]
    assert await store.sessions() == 0


@BACKENDS
@in_virtual_time
async def test_a_task_that_was_changed_by_force_is_lost_within_a_beat(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claims = [await claimed(tasks) for _ in range(3)]
        lost: list[Claim] = []
        for claim in claims:
            claim._on_lost = partial(lost.append, claim)
        await store.force(claims[1].id, queue="elsewhere")
        with anyio.fail_after(1.1):
            await until(lambda: bool(lost))
        assert lost == [claims[1]]
        await claims[0].ack()
        with pytest.raises(ClaimLost):
            await claims[1].ack()
        await claims[2].ack()
        await anyio.sleep(5)
        assert lost == [claims[1]]


@in_virtual_time
async def test_beats_that_fail_are_borne(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        store.fails = lambda command: StoreUnavailable("fake", "away") if isinstance(command, Beat) else None
        await anyio.sleep(4)
        store.fails = lambda command: None
        await anyio.sleep(4)
        await claim.ack()
        assert await store.rows() == []
    assert caplog.records == []


@BACKENDS
@in_virtual_time
async def test_a_session_is_not_begun_twice_and_ends_as_often_as_it_begins(backend: str) -> None:
    store = FakeStore(delay=0.001)
    tasks = handle(store)
    for _ in range(3):
        await gather(*[partial(tasks.try_claim, "q")] * 5)
        await tasks.aclose()
    assert store.sent(Begin) == store.sent(End) == 3
    await tasks.aclose()
    assert store.sent(End) == 3


@BACKENDS
@in_virtual_time
async def test_a_renewal_that_nobody_waits_for_any_more_leaves_nothing(backend: str) -> None:
    """The function renews its claim in a task beside its work, and the work is done."""
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        async with anyio.create_task_group() as group:
            group.start_soon(claim.in_progress)
            while not tasks._session()._renewals:
                await checkpoint()
            group.cancel_scope.cancel()
        await claim.ack()
        await anyio.sleep(1)
        assert not tasks._session()._renewals
