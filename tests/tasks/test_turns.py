"""One call to the store for many: no claim is given back by mistake, and no queue is forgotten."""

from __future__ import annotations

import anyio
import pytest

from intervalq.tasks._session import batcher as _batcher
from intervalq.tasks.rules import Change, Work
from tasks.fake_store import FakeStore, claimed, handle, once
from virtual_store import BACKENDS, in_virtual_time


@BACKENDS
@in_virtual_time
async def test_a_claim_is_kept_although_the_answer_to_its_renewal_was_lost(backend: str) -> None:
    """The call that renewed it also wanted tasks; claims that it may have made are found and given back."""
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks, anyio.create_task_group() as group:
        claim = await claimed(tasks)
        before = await store.row(claim.id)
        group.start_soon(tasks.claim, "other")
        await anyio.sleep(0.005)  # its question is in flight
        lost = once(Work, lambda work: bool(work.limit) and any(isinstance(s, Change) for s in work.settled))
        store.loses = lost
        await claim.in_progress()
        row = await store.row(claim.id)
        assert row.session == before.session
        assert row.version > before.version
        assert claim.open
        await claim.ack()
        assert await store.rows() == []
        group.cancel_scope.cancel()
    assert not lost(Work("s", (Change("1", 1),), limit=1))  # it was lost


@BACKENDS
@in_virtual_time
async def test_a_queue_with_more_than_enough_does_not_starve_another(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call brings less than its callers want, and each call asks for everything that is wanted."""
    monkeypatch.setattr(_batcher, "MAX_ROWS", 5)

    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        await tasks.modify(*(tasks.new("many", number) for number in range(100)))
        await tasks.insert("few", 1)
        async with anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(tasks.claim, "many")
            group.start_soon(tasks.claim, "few")
    calls = [call.queues for call in store.calls if isinstance(call, Work) and call.limit]
    assert calls.count(("many",)) == 12
    assert calls.index(("few",)) < 3
