"""Claims: settled once, renewed, given back when nobody wants them, together with changes or not at all."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from intervalq.errors import (
    InboxFull,
    InvalidOption,
    StoreUnavailable,
    TransactionConflict,
    UnsupportedOperation,
)
from intervalq.tasks import Claim, ClaimLost, DependencyError, Tasks
from intervalq.tasks.rules import Command, Delete, Modify, Work
from tasks.fake_store import (
    BACKENDS,
    FakeStore,
    TransactionStore,
    at_once,
    claimed,
    handle,
    once,
    scene,
    until,
)


@BACKENDS
@pytest.mark.parametrize(
    "verb", ["ack", "nak", "release", "term", "in_progress", "ack with changes", "commit"]
)
def test_a_claim_is_settled_once(backend: str, verb: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


async def _settle(tasks: Tasks, claim: Claim, verb: str) -> None:
    if verb == "ack with changes":
        await claim.ack(tasks.new("results", 1))
    elif verb == "commit":
        async with claim.commit() as connection:
            connection.append(claim.id)
    else:
        await getattr(claim, verb)()


def test_what_each_way_to_settle_leaves() -> None:
    async def scenario() -> None:
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

    scene(scenario)


@BACKENDS
def test_twenty_renewals_at_once_and_then_an_acknowledgement(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            await at_once(*[claim.in_progress] * 20)
            assert claim.version == 2
            assert (await store.row(claim.id)).version == 2
            await at_once(*[partial(claim.in_progress, lease) for lease in (10, 20, None, 10, 20, None)])
            assert claim.version == (await store.row(claim.id)).version == 5
            await claim.in_progress(30)
            assert (await store.row(claim.id)).until is not None
            async with anyio.create_task_group() as group:
                group.start_soon(claim.in_progress)
                await anyio.sleep(0.005)  # the renewal is under way
                await claim.ack(tasks.new("results", 1))
            assert await store.sizes() == {"results": 1}

    scene(scenario, backend=backend)


@BACKENDS
def test_a_renewal_that_was_cancelled_does_not_stand_for_the_next(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_an_acknowledgement_with_changes_is_all_or_nothing(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_an_acknowledgement_may_say_itself_what_becomes_of_the_task(backend: str) -> None:
    async def scenario() -> None:
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
            assert tasks.session().batcher.held == {}
            with pytest.raises(ClaimLost):
                await claim.ack()
            claim = await tasks.claim("next")
            assert claim.attempt == 1
            await claim.ack(claim.change(queue="last", attempt=7, error="kept"))
            row = await store.row(claim.id)
            assert (row.queue, row.attempt, row.error) == ("last", 7, "kept")
            claim = await tasks.claim("last")
            await claim.ack(claim.change(3))  # it stays where it is, and so do its attempts
            row = await store.row(claim.id)
            assert (row.queue, row.attempt, row.error, row.session) == ("last", 8, "kept", None)
            claim = await tasks.claim("last")
            await claim.ack(claim.change(queue="last.dead"))
            row = await store.row(claim.id)
            assert (row.queue, row.attempt, row.error) == ("last.dead", 9, "kept")
            claim = await tasks.claim("last.dead")
            await claim.ack(claim.delete())
            assert await store.sizes() == {"results": 1}

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("how", ["moved on", "new"])
def test_what_follows_on_an_acknowledgement_is_asked_for_at_once(backend: str, how: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
@pytest.mark.parametrize("since", ["nothing", "claimed", "done"])
def test_a_task_that_was_moved_on_by_a_call_whose_answer_was_lost(backend: str, since: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_a_task_that_was_moved_by_hand_before_it_could_be_moved_on(backend: str) -> None:
    async def scenario() -> None:
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

    scene(scenario, backend=backend)


@BACKENDS
def test_a_cancelled_claim_gives_back_what_it_had_just_been_given(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            await tasks.insert("q", 1)
            for moment in range(1, 60):
                with anyio.move_on_after(moment / 1000) as scope:
                    claim = await tasks.claim("q")
                    await claim.release()
                del scope
            await anyio.sleep(1)
            (row,) = await store.rows()
            assert (row.session, row.attempt) == (None, 0)
            assert tasks.session().batcher.held == {}

    scene(scenario, backend=backend)


@BACKENDS
def test_what_came_for_a_caller_who_left_does_not_end_the_wait_of_others(backend: str) -> None:
    async def scenario() -> int:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            with anyio.move_on_after(0.035):  # a call for it is under way
                await tasks.claim("q")
            values: list[int] = []

            async def wait() -> None:
                with anyio.fail_after(30):
                    values.append((await tasks.claim("q")).value)

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.sleep(0.1)
                assert tasks.session().waiting() == 1
                await tasks.insert("q", 5)
            assert not tasks.session().batcher.wanted
            return values[0]

    assert scene(scenario, backend=backend) == 5


@BACKENDS
def test_a_question_from_before_is_no_answer_to_try_claim(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks, anyio.create_task_group() as group:
            asked = anyio.Event()

            async def after(command: Command[object]) -> None:
                if isinstance(command, Work) and command.limit:
                    asked.set()
                    await anyio.sleep(0.05)

            store.after = after
            group.start_soon(tasks.claim, "q")
            await asked.wait()  # the store has looked, and found nothing
            store.after = _nothing
            await store.behind.apply(Modify(inserts=(tasks.new("q", 1), tasks.new("q", 2))))
            assert await tasks.try_claim("q") is not None
            group.cancel_scope.cancel()

    scene(scenario, backend=backend)


async def _nothing(_command: Command[object]) -> None:
    return


@BACKENDS
@pytest.mark.parametrize("timeout", [0, 0.000001, 0.001, 0.015])
def test_a_short_timeout_still_claims_what_is_there(backend: str, timeout: float) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            await tasks.insert("q", 1)
            claim = await tasks.claim("q", timeout=timeout)
            await claim.ack()
            with pytest.raises(TimeoutError, match="no task of q, r came within"):
                await tasks.claim("q", "r", timeout=timeout)
            assert tasks.session().waiting() == 0

    scene(scenario, backend=backend)


def test_a_timeout_ends_though_the_store_hangs() -> None:
    async def scenario() -> float:
        store = FakeStore()
        tasks = handle(store)
        await tasks.try_claim("q")
        store.hangs = True
        before = anyio.current_time()
        with pytest.raises(TimeoutError):
            await tasks.claim("q", timeout=5)
        took = anyio.current_time() - before
        await tasks.aclose()
        return took

    assert scene(scenario) <= 6.01


def test_claims_of_several_queues_and_at_most_as_many_as_there_are() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            await tasks.put("a", range(50))
            await tasks.insert("b", 1)
            got = [(await tasks.claim("a", "b")).queue for _ in range(30)]
            assert "b" in got  # it isn't held up by the long one
            many: list[str] = []

            async def one() -> None:
                many.append((await tasks.claim("a", "b")).id)

            await at_once(*[one] * 21)
            assert len(set(many)) == 21
            assert await tasks.try_claim("a", "b") is None
            with pytest.raises(InvalidOption, match="at least one queue"):
                await tasks.claim()

    scene(scenario)


@BACKENDS
def test_a_lease_ends_and_whoever_had_it_is_told(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks, handle(store.line()) as others:
            claim = await claimed(tasks, lease=2)
            assert await others.try_claim("q") is None
            lost = anyio.Event()
            claim.on_lost = lost.set
            again = await others.claim("q")
            assert (again.id, again.attempt) == (claim.id, 2)
            with anyio.fail_after(1.1):  # one beat
                await lost.wait()
            with pytest.raises(ClaimLost):
                await claim.ack()
            await again.ack()

    scene(scenario, backend=backend)


def test_a_task_that_is_claimed_anew_here_is_lost_to_its_first_claim() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks, lease=2)
            lost: list[str] = []
            claim.on_lost = lambda: lost.append(claim.id)
            again = await tasks.claim("q")
            assert [again.id] == [claim.id] == lost  # told at once
            with pytest.raises(ClaimLost):
                await claim.ack()
            await again.ack()
            assert await store.rows() == []

    scene(scenario)


@BACKENDS
def test_a_commit_is_done_with_its_statements_or_not_at_all(backend: str) -> None:
    async def scenario() -> None:
        store = TransactionStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            with pytest.raises(ZeroDivisionError):
                await _divide(claim)
            async with claim.commit() as connection:  # it may be tried again
                connection.append("first")
                await claim.in_progress()
            assert store.written == ["first"]
            assert await store.rows() == []

            claim = await claimed(tasks)
            await store.force(claim.id, queue="q")
            with pytest.raises(ClaimLost):
                async with claim.commit() as connection:
                    connection.append("lost")
            assert store.written == ["first"]

            claim = await claimed(tasks)
            store.on_commit = _conflict
            with pytest.raises(TransactionConflict):
                async with claim.commit() as connection:
                    connection.append("conflict")
            store.on_commit = None
            async with claim.commit() as connection:
                connection.append("second")
            assert store.written == ["first", "second"]
        async with handle(FakeStore(store.behind)) as tasks:
            claim = await claimed(tasks)
            with pytest.raises(UnsupportedOperation, match="idempotent"):
                async with claim.commit():
                    pass
            await claim.ack()

    scene(scenario, backend=backend)


async def _divide(claim: Claim) -> None:
    async with claim.commit() as connection:
        connection.append(1 / 0)


async def _conflict() -> None:
    raise TransactionConflict("fake", "it met another: try again")


@BACKENDS
def test_a_beat_does_not_take_a_claim_for_lost_while_it_is_committed(backend: str) -> None:
    async def scenario() -> list[str]:
        store = TransactionStore()
        store.commit_takes = 5  # its row is gone, and the answer is on its way
        lost: list[str] = []
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            claim.on_lost = lambda: lost.append("cancelled")
            async with claim.commit():
                pass
            with pytest.raises(ClaimLost):
                await claim.ack()
        return lost

    assert scene(scenario, backend=backend) == []


@BACKENDS
def test_a_renewal_that_was_faster_than_a_commit_does_not_stop_it(backend: str) -> None:
    async def scenario() -> None:
        store = TransactionStore(delay=0.01)

        async def slowly(command: Command[object]) -> None:
            if isinstance(command, Work) and any(isinstance(part, Delete) for part in command.settled):
                await anyio.sleep(0.1)

        async with handle(store) as tasks, anyio.create_task_group() as group:
            claim = await claimed(tasks)
            store.before = slowly
            async with claim.commit() as connection:
                connection.append("done")
                group.start_soon(claim.in_progress)
                await anyio.sleep(0.005)  # it is under way
        assert store.written == ["done"]
        assert await store.rows() == []

    scene(scenario, backend=backend)


@BACKENDS
def test_an_acknowledgement_with_changes_whose_answer_was_lost_is_sent_again(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            store.loses = once(Modify)
            await claim.ack(tasks.new("results", 1))
            assert await store.sizes() == {"results": 1}
            claim = await claimed(tasks)
            lost = once(Modify)
            store.fails = lambda command: StoreUnavailable("fake", "away") if lost(command) else None
            await claim.ack(tasks.new("results", 2))  # it did not arrive the first time
            assert await store.sizes() == {"results": 2}

    scene(scenario, backend=backend)


@BACKENDS
def test_an_acknowledgement_with_changes_that_did_not_arrive_before_the_lapse_is_lost(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.001)
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            down = once(Modify)

            def fails(command: Command[object]) -> Exception | None:
                return StoreUnavailable("fake", "away") if down(command) else None

            async def lapses(command: Command[object]) -> None:
                if isinstance(command, Modify):
                    store.before = _nothing
                    await store.lapse()
                    (row,) = await store.rows("q")
                    await store.behind.apply(Modify(deletes=(Delete(row.id, row.version),)))

            store.fails, store.before = fails, lapses
            with pytest.raises(ClaimLost):
                await claim.ack(tasks.new("results", 1))
            assert await store.sizes() == {}

    scene(scenario, backend=backend)


def test_an_acknowledgement_that_is_cancelled_is_done_all_the_same() -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            with anyio.move_on_after(0.001):
                await claim.ack()
            await until(lambda: not tasks.session().batcher.held)
            assert await store.rows() == []

    scene(scenario)


def test_claims_are_changed_by_modify_too() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks)
            await tasks.modify(claim.delete(), tasks.new("results", 1))
            with pytest.raises(ClaimLost):
                await claim.ack()
            (claim,) = await tasks.pull("results", name="me").fetch()
            await tasks.modify(claim.change(queue="later"))
            with pytest.raises(ClaimLost):
                await claim.ack()
            assert await store.sizes() == {"later": 1}
            for session in tasks._sessions.values():
                assert session.batcher.held == {}
            claim = await tasks.claim("later")
            with pytest.raises(DependencyError) as caught:
                await handle(store.line()).modify(claim.delete())
            assert caught.value.claims == (claim.id,)

    scene(scenario)


@BACKENDS
def test_a_change_of_a_running_task_is_a_checkpoint(backend: str) -> None:
    async def scenario() -> None:
        store = FakeStore(delay=0.01)
        async with handle(store) as tasks:
            seen: list[tuple[object, int]] = []

            @tasks.worker("q", concurrency=1, backoff=0)
            async def work(task: Claim) -> None:
                seen.append((task.value, task.attempt))
                for step in range(2):
                    await tasks.modify(task.change({"step": step + task.value["step"]}))
                    assert task.value["step"] == seen[-1][0]["step"] + step  # type: ignore[index]
                    await anyio.sleep(3)
                if task.attempt == 1:
                    raise ValueError("not yet")

            id_ = await tasks.insert("q", {"step": 0})
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await anyio.sleep(1)
                row = await store.row(id_)
                assert (row.session is not None, row.begun, row.attempt) == (True, True, 1)
                await tasks.wait_empty("q")
                tasks.stop()
            assert seen == [({"step": 0}, 1), ({"step": 1}, 2)]
            assert tasks.counts == {"failed": 1, "done": 1}

    scene(scenario, backend=backend)


def test_a_checkpoint_keeps_a_lease_and_what_cannot_be_one_is_refused() -> None:
    async def scenario() -> None:
        store = FakeStore()
        async with handle(store) as tasks:
            claim = await claimed(tasks, lease=10)
            await anyio.sleep(8)
            (after,) = (await tasks.modify(claim.change("half"))).changed
            assert (after.value, claim.version, claim.claimant) == ("half", after.version, after.claimant)
            await anyio.sleep(8)
            before = await store.row(claim.id)
            assert before.until is not None
            for change in (claim.change(delay=5), claim.change(at=5)):
                with pytest.raises(InvalidOption, match="claimed by this handle"):
                    await tasks.modify(change)
            with pytest.raises(InvalidOption, match="connection="):
                await tasks.modify(claim.change(1), connection=object())
            assert await store.row(claim.id) == before
            await claim.ack()
            assert await store.rows() == []

    scene(scenario)
