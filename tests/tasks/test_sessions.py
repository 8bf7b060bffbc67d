"""Sessions: one heartbeat for all claims; lapses, clean ends, stores that go away, answers that are lost."""

from __future__ import annotations

import logging
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint

from intervalq.errors import CorruptState, QueueClosed, StoreError, StoreUnavailable, TransactionConflict
from intervalq.tasks import Claim, ClaimLost
from intervalq.tasks.rules import Beat, Begin, Command, End, Modify, Select, Work
from tasks.fake_store import BACKENDS, FakeStore, at_once, claimed, handle, once, scene, until


def test_one_heartbeat_for_all_claims() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            await tasks.put("q", range(100))
            claims = [await tasks.claim("q") for _ in range(100)]
            assert await store.sessions() == 1
            before = store.sent(Beat)
            await anyio.sleep(10.5)
            assert store.sent(Beat) - before == 10
            assert store.sent(Select) == 0  # nothing was missed, so nothing was looked for
            await handle(store.line()).apply(Beat("somebody"))
            await at_once(*[claim.ack for claim in claims])
            assert await store.rows() == []

    scene(scenario)


@BACKENDS
def test_a_session_that_has_lapsed_loses_all_and_another_begins(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        async with handle(store) as tasks:
            claims = [await claimed(tasks) for _ in range(3)]
            lost: list[str] = []
            for claim in claims:
                claim.on_lost = partial(lost.append, claim.id)
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

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("verb", ["ack", "in_progress", "ack with changes"])
def test_a_lapse_that_nobody_has_heard_of_is_seen_at_the_next_step(backend: str, verb: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            await store.lapse()
            with pytest.raises(ClaimLost):
                await (claim.ack(tasks.new("r", 1)) if " " in verb else getattr(claim, verb)())
            assert await store.sizes() == {"q": 1}
            await (await tasks.claim("q")).ack()

    scene(scenario, backend=backend)


@BACKENDS
def test_what_a_call_claims_while_its_session_lapses_is_not_handed_out(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            first = await claimed(tasks)
            claimed_meanwhile = once(Work, lambda work: work.limit)

            async def lapses(command: Command[object]) -> None:
                if claimed_meanwhile(command):
                    await store.lapse()
                    await anyio.sleep(2)  # a beat finds out first

            await tasks.insert("r", 1)
            store.after = lapses
            claim = await tasks.claim("r")
            assert not first.open
            await claim.ack()
            assert await store.sizes() == {"q": 1}

    scene(scenario, backend=backend)


@BACKENDS
def test_an_acknowledgement_is_not_taken_for_done_because_its_session_lapsed(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


async def _nothing(_command: Command[object]) -> None:
    return


@BACKENDS
def test_a_clean_end_frees_at_once_and_counts_no_attempt(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_what_is_to_be_settled_is_settled_before_the_end(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        tasks = handle(store)
        claim = await claimed(tasks)
        async with anyio.create_task_group() as group:
            group.start_soon(claim.ack)
            await anyio.lowlevel.checkpoint()
            await tasks.aclose()
        assert await store.rows() == []

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("trouble", ["hangs", "is_down"])
def test_the_end_is_bounded_whatever_the_store_does(backend: str, trouble: str) -> None:
    async def scenario() -> None:
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
        assert len(results) == 1  # whoever waited was told

    scene(scenario, backend=backend)


@BACKENDS
def test_callers_at_the_end_are_told_and_do_not_wait_for_ever(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_a_store_that_was_away_for_ten_seconds_is_only_waited_for(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("begun", [True, False])
def test_callers_wait_a_minute_for_a_store_that_is_away(backend: str, begun: bool) -> None:
    async def scenario() -> tuple[float, float]:
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
            return took[0], took[1]

    first, second = scene(scenario, backend=backend)
    assert 60 <= first <= 62
    assert second <= 2


def test_an_acknowledgement_waits_a_minute_and_may_be_tried_again() -> None:
    async def scenario() -> None:
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

    scene(scenario)


def test_a_refusal_is_told_to_everybody_at_once() -> None:
    async def scenario() -> None:
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

    scene(scenario)


@BACKENDS
def test_a_store_that_breaks_its_promises_ends_no_event_loop(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@BACKENDS
def test_a_conflict_is_sent_again(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_what_was_claimed_by_a_call_whose_answer_was_lost_is_given_back(backend: str) -> None:
    async def scenario() -> None:
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
            async with anyio.create_task_group() as group:  # given back and claimed again by the lost call
                group.start_soon(partial(claim.nak, error="later"))
                group.start_soon(tasks.claim, "q")
            await anyio.sleep(1)
            rows = await store.rows()
            assert [row.id for row in rows] == [claim.id]
            assert set(tasks.session().batcher.held) == {claim.id}
            assert rows[0].version == tasks.session().batcher.held[claim.id].version

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("verb", ["ack", "nak", "release", "term", "in_progress"])
def test_what_was_settled_by_a_call_whose_answer_was_lost_is_not_reported_as_lost(
    backend: str, verb: str
) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


def test_what_was_not_sent_is_not_taken_for_done() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            await store.force(claim.id, queue="q", at=2_000_000_000_000_000)
            batcher = tasks.session().batcher
            batcher._doubt = True
            lost = once(Select)
            store.fails = lambda command: StoreUnavailable("fake", "away") if lost(command) else None
            with pytest.raises(ClaimLost):
                await claim.ack()

    scene(scenario)


@BACKENDS
def test_a_task_that_was_changed_by_force_is_lost_within_a_beat(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claims = [await claimed(tasks) for _ in range(3)]
            lost: list[Claim] = []
            for claim in claims:
                claim.on_lost = partial(lost.append, claim)
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

    scene(scenario, backend=backend)


def test_beats_that_fail_are_borne(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            store.fails = lambda command: (
                StoreUnavailable("fake", "away") if isinstance(command, Beat) else None
            )
            await anyio.sleep(4)
            store.fails = lambda command: None
            await anyio.sleep(4)
            await claim.ack()
            assert await store.rows() == []

    caplog.set_level(logging.WARNING)
    scene(scenario)
    assert caplog.records == []


@BACKENDS
def test_a_session_is_not_begun_twice_and_ends_as_often_as_it_begins(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        tasks = handle(store)
        for _ in range(3):
            await at_once(*[partial(tasks.try_claim, "q")] * 5)
            await tasks.aclose()
        assert store.sent(Begin) == store.sent(End) == 3
        await tasks.aclose()
        assert store.sent(End) == 3

    scene(scenario, backend=backend)


@BACKENDS
def test_a_renewal_that_nobody_waits_for_any_more_leaves_nothing(backend: str) -> None:
    """As where the work renews its claim beside itself, and is done."""

    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            async with anyio.create_task_group() as group:
                group.start_soon(claim.in_progress)
                while not tasks.session()._renewals:
                    await checkpoint()
                group.cancel_scope.cancel()
            await claim.ack()
            await anyio.sleep(1)
            assert not tasks.session()._renewals

    scene(scenario, backend=backend)
