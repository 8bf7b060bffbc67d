"""Reports on the work on a task: progress, notes, and checkpoints that the next attempt gets."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from intervalq.errors import ClaimLost, InvalidOption, InvalidTask, UnreadableValue
from intervalq.tasks import Claim
from intervalq.tasks.rules import Change, Modify, Work
from tasks.fake_store import FakeStore, RangingStore, claimed, handle, once
from virtual_store import BACKENDS, gather, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_everybody_sees_what_was_reported_and_the_next_attempt_gets_it(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks, handle(store.line()) as operator:
        seen: list[tuple[Any, ...]] = []

        @tasks.worker("q", backoff=0.1)
        async def work(task: Claim) -> None:
            seen.append((task.attempt, task.progress, task.note, task.checkpoint))
            if task.attempt == 1:
                await task.in_progress(progress=0.25, note="first part", checkpoint={"row": 10})
                await task.in_progress(progress=0.5)
                (there,) = await operator.tasks("q")
                assert (there.progress, there.note, there.checkpoint) == (0.5, "first part", {"row": 10})
                assert there.claimant == task.claimant
                assert (task.progress, task.note, task.checkpoint) == (0.5, "first part", {"row": 10})
                raise ValueError
            if task.attempt == 2:
                await task.in_progress(note="", checkpoint=None)
                raise ValueError

        await tasks.insert("q", 1)
        await tasks.run(until_empty=True)
        assert seen == [(1, None, "", None), (2, 0.5, "first part", {"row": 10}), (3, 0.5, "", None)]


@BACKENDS
@in_virtual_time
async def test_a_report_keeps_the_lease_and_a_renewal_keeps_the_report(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks, lease=10)
        await anyio.sleep(6)
        await claim.in_progress(progress=1)
        await anyio.sleep(6)
        row = await store.row(claim.id)
        assert row.until is not None
        await claim.in_progress(20)
        assert (await store.row(claim.id)).progress == row.progress
        await claim.in_progress()
        assert (await store.row(claim.id)).until is None
        assert claim.progress == 1
        await claim.ack()


@BACKENDS
@in_virtual_time
async def test_reports_at_the_same_moment_are_all_kept(backend: str) -> None:
    store = FakeStore(delay=0.1)
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await gather(
            lambda: claim.in_progress(progress=0.1),
            lambda: claim.in_progress(note="a"),
            claim.in_progress,
            lambda: claim.in_progress(checkpoint=[1]),
        )
        (there,) = await tasks.tasks("q")
        assert (there.progress, there.note, there.checkpoint) == (0.1, "a", [1])
        await claim.ack()


@BACKENDS
@in_virtual_time
async def test_a_report_on_a_lost_claim_is_not_kept(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await store.force(claim.id)
        with pytest.raises(ClaimLost):
            await claim.in_progress(progress=0.1)
        assert (await store.row(claim.id)).progress == ""


@BACKENDS
@in_virtual_time
async def test_a_task_that_moves_on_begins_anew_and_a_dead_one_does_not(backend: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await claim.in_progress(progress=0.9, checkpoint=1)
        await claim.term("never")
        (dead,) = await tasks.tasks("q.dead")
        assert (dead.progress, dead.checkpoint) == (0.9, 1)
        await tasks.modify(dead.change(queue="q"))
        claim = await tasks.claim("q")
        assert claim.checkpoint == 1
        await claim.ack(claim.change(queue="next"))
        (moved,) = await tasks.tasks("next")
        assert (moved.progress, moved.note, moved.checkpoint) == (None, "", None)


async def test_what_cannot_be_reported() -> None:
    async with handle(FakeStore(), max_bytes=10) as tasks:
        claim = await claimed(tasks)
        for progress in (-0.1, 1.1, float("nan"), True, "half"):
            with pytest.raises(InvalidOption, match="from 0 to 1"):
                await claim.in_progress(progress=progress)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="not a text"):
            await claim.in_progress(note=1)  # type: ignore[arg-type]
        for checkpoint in ("x" * 20, object()):
            with pytest.raises(InvalidTask):
                await claim.in_progress(checkpoint=checkpoint)
        await claim.in_progress(note="x" * 2_000)
        assert claim.note == "x" * 1_000
        assert claim.progress is None
        await claim.ack()


async def test_plain_tasks_in_ranges_and_stores_whose_claims_are_deliveries_have_none() -> None:
    async with handle(RangingStore()) as tasks:
        await tasks.put("q", [1])
        claim = await tasks.claim("q")
        with pytest.raises(InvalidOption, match="insert such tasks"):
            await claim.in_progress(progress=0.5)
        await claim.in_progress()
        await claim.ack()


@pytest.mark.parametrize("text", ["[", "[]", '{"p":"x"}', '{"n":1}', '{"c":{}}', '{"c":"["}'])
async def test_a_damaged_report_is_an_error_and_the_next_one_heals_it(text: str) -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await claim.nak()
        row = await store.row(claim.id)
        await store.apply(Modify(changes=(Change(row.id, row.version, progress=text),)))
        claim = await tasks.claim("q")
        with pytest.raises(UnreadableValue):
            _ = claim.progress, claim.note, claim.checkpoint
        await claim.in_progress(progress=0.5, checkpoint=None)
        assert (claim.progress, claim.note, claim.checkpoint) == (0.5, "", None)
        await claim.ack()


async def test_a_checkpoint_goes_through_the_codec_and_a_note_does_not() -> None:
    class Reversed:
        def encode(self, value: bytes) -> bytes:
            return value[::-1]

        def decode(self, value: bytes) -> bytes:
            return value[::-1]

    store = FakeStore()
    async with handle(store, codec=Reversed()) as tasks, handle(store.line()) as blind:
        claim = await claimed(tasks)
        await claim.in_progress(note="plain", checkpoint={"secret": 1})
        assert claim.checkpoint == {"secret": 1}
        row = await store.row(claim.id)
        assert "secret" not in row.progress
        (there,) = await blind.tasks("q")
        assert there.note == "plain"
        with pytest.raises(UnreadableValue, match="codec"):
            _ = there.checkpoint
        await claim.ack()


async def test_a_report_whose_answer_was_lost_is_repeated() -> None:
    store = FakeStore()
    store.loses = once(Work, lambda work: bool(work.settled))
    async with handle(store) as tasks:
        claim = await claimed(tasks)
        await claim.in_progress(progress=0.5)
        assert (await store.row(claim.id)).progress == '{"p": 0.5}'
        await claim.in_progress(note="more")
        assert (claim.progress, claim.note) == (0.5, "more")
        await claim.ack()
    assert await store.rows() == []
