"""Claims that are lost or committed: leases, commits, lost answers, checkpoints."""

from __future__ import annotations

import anyio
import pytest

from intervalq.errors import (
    InvalidOption,
    StoreUnavailable,
    TransactionConflict,
    UnsupportedOperation,
)
from intervalq.tasks import Claim, ClaimLost, DependencyError
from intervalq.tasks.rules import Command, Delete, Modify, Work
from tasks.fake_store import (
    FakeStore,
    TransactionStore,
    claimed,
    handle,
    once,
    until,
)
from virtual_store import BACKENDS, in_virtual_time


async def _nothing(_command: Command[object]) -> None:
    return


@BACKENDS
@in_virtual_time
async def test_a_lease_ends_and_whoever_had_it_is_told(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks, handle(store.line()) as others:
        claim = await claimed(tasks, lease=2)
        assert await others.try_claim("q") is None
        lost = anyio.Event()
        claim._on_lost = lost.set
        again = await others.claim("q")
        assert (again.id, again.attempt) == (claim.id, 2)
        with anyio.fail_after(1.1):  # one heartbeat
            await lost.wait()
        with pytest.raises(ClaimLost):
            await claim.ack()
        await again.ack()


@in_virtual_time
async def test_a_task_that_is_claimed_anew_here_is_lost_to_its_first_claim() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks, lease=2)
        lost: list[str] = []
        claim._on_lost = lambda: lost.append(claim.id)
        again = await tasks.claim("q")
        assert [again.id] == [claim.id] == lost  # notified at once
        with pytest.raises(ClaimLost):
            await claim.ack()
        await again.ack()
        assert await store.rows() == []


@BACKENDS
@in_virtual_time
async def test_a_commit_is_done_with_its_statements_or_not_at_all(backend: str) -> None:
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


async def _divide(claim: Claim) -> None:
    async with claim.commit() as connection:
        connection.append(1 / 0)


async def _conflict() -> None:
    raise TransactionConflict("fake", "it met another: try again")


@BACKENDS
@in_virtual_time
async def test_a_beat_does_not_take_a_claim_for_lost_while_it_is_committed(backend: str) -> None:
    store = TransactionStore()
    store.commit_takes = 5  # its row is gone, and the answer is on its way
    lost: list[str] = []
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        claim._on_lost = lambda: lost.append("cancelled")
        async with claim.commit():
            pass
        with pytest.raises(ClaimLost):
            await claim.ack()
    assert lost == []


@BACKENDS
@in_virtual_time
async def test_a_renewal_that_was_faster_than_a_commit_does_not_stop_it(backend: str) -> None:
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


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_with_changes_whose_answer_was_lost_is_sent_again(backend: str) -> None:
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


@BACKENDS
@in_virtual_time
async def test_an_acknowledgement_with_changes_that_did_not_arrive_before_the_lapse_is_lost(
    backend: str,
) -> None:
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


@in_virtual_time
async def test_an_acknowledgement_that_is_cancelled_is_done_all_the_same() -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        with anyio.move_on_after(0.001):
            await claim.ack()
        await until(lambda: not tasks._session().batcher.claims)
        assert await store.rows() == []


@in_virtual_time
async def test_claims_are_changed_by_modify_too() -> None:
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
            assert session.batcher.claims == {}
        claim = await tasks.claim("later")
        with pytest.raises(DependencyError) as caught:
            await handle(store.line()).modify(claim.delete())
        assert caught.value.claims == (claim.id,)


@BACKENDS
@in_virtual_time
async def test_a_change_of_a_running_task_is_a_checkpoint(backend: str) -> None:
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
        assert tasks._outcomes == {"failed": 1, "done": 1}


@in_virtual_time
async def test_a_checkpoint_keeps_a_lease_and_what_cannot_be_one_is_refused() -> None:
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
