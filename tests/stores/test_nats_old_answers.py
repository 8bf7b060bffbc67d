"""Answers from NATS may be outdated, and a server that was killed has less precise times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from intervalq.tasks.rules import SECOND, Beat
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._task import delivery as nats_task_delivery
from intervalq_stores.nats._task.commit import leftover, outdated
from intervalq_stores.nats._task.message import subject_of
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

store = nats_sessions.store
opened = nats_sessions.opened


async def nothing(*_: object) -> Any:
    return 0, None


async def no_lasts(*_: object) -> dict[str, int]:
    return {}


async def test_what_an_old_answer_does_not_show_is_not_removed(
    opened: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that no longer leads may not have the message yet."""
    first, other = opened(), opened()
    await first.apply(inserts(queue, "a", key="key"))
    mine = await begun(first)
    (row,) = await claim(first, mine, queue)
    ready = first._sessions[mine].holdings.deliveries["a"].ready
    assert ready is not None
    await ready
    await other.apply(inserts(queue, "b", key="key"))  # after it has looked for waiting tasks
    monkeypatch.setattr(first._stream, "last", nothing)
    assert await settled(first, mine, *done(row)) == ("a",)
    subject = subject_of(queue, "c")
    await other.apply(inserts(queue, "c"))
    (c,) = [row for row in await claim(other, await begun(other), queue) if row.id == "c"]
    await leftover(first._stream, batch.instead(subject, c.version, b"1", {}))
    monkeypatch.setattr(first._stream, "lasts", no_lasts)
    assert await outdated(first._stream, {c.version: subject}, []) == {c.version}
    assert await ids_in(other, queue) == ["a", "b", "c"]


async def test_a_server_that_was_killed_may_hand_out_a_second_earlier(
    own_nats: Callable[..., Server], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files have only the second of each delivery; a renewal corrects that."""
    monkeypatch.setattr(nats_task_delivery, "_FORGOTTEN", 0)
    server = own_nats()
    async with aclosing(NATSTaskStore(server.url)) as store:
        mine = await begun(store)
        await store.apply(inserts(queue, "a"))
        (row,) = await claim(store, mine, queue)
        held = store._sessions[mine].holdings.deliveries["a"]
        before = held.deadline
        await anyio.to_thread.run_sync(server.stop)
        await anyio.to_thread.run_sync(server.start)
        assert (await store.apply(Beat(mine))).claim_count == 1
        assert held.deadline == before - SECOND
        await store._stream.close()  # the same server
        assert (await store.apply(Beat(mine))).claim_count == 1
        assert held.deadline == before - SECOND
        await store._sessions[mine].holdings.renew([held])
        assert held.deadline > before - SECOND
        assert await settled(store, mine, *done(row)) == ()
