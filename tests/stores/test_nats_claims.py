"""Tasks on NATS: which session has claimed one, and for how long."""

from __future__ import annotations

import anyio
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Change,
    Delete,
    Modify,
    Row,
    Select,
    Work,
)
from intervalq_stores.nats.tasks import NATSTaskStore
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

store = nats_sessions.store


opened = nats_sessions.opened


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("verb", ["change", "move", "delete", "follow-up"])
async def test_an_acknowledgement_says_that_others_were_faster(
    opened: Open, queue: str, verb: str, key: str | None, late: bool
) -> None:
    """This holds whatever the others did, and whether an acknowledgement or a heartbeat notices it."""
    first, second = opened(), opened()
    mine = await begun(first, 2 * SECOND)
    await first.apply(inserts(queue, "a", "b", key=key))
    rows = await claim(first, mine, queue, limit=2)
    (row,) = (row for row in rows if row.id == "a")
    other = f"{queue} 2"
    steps = {
        "change": Modify(changes=(Change("a", row.version, json='"new"'),)),
        "move": Modify(changes=(Change("a", row.version, queue=other),)),
        "delete": Modify(deletes=(Delete("a", row.version),)),
        "follow-up": Modify(deletes=(Delete("a", row.version),), inserts=inserts(other, "c").inserts),
    }
    await second.apply(steps[verb])
    if late:
        with anyio.fail_after(30):
            while (await first.apply(Beat(mine))).claim_count == len(rows):
                await anyio.lowlevel.checkpoint()
    there = await second.apply(Select())
    assert await settled(first, mine, Delete("a", row.version)) == ("a",)
    assert await second.apply(Select()) == there


async def test_who_is_slower_than_an_acknowledgement_is_told(opened: Open, queue: str) -> None:
    first, second = opened(), opened()
    mine = await begun(first)
    await first.apply(inserts(queue, "a"))
    await first.apply(inserts(queue, "k", key="key"))
    rows = {row.id: row for row in await claim(first, mine, queue, limit=2)}
    assert await settled(first, mine, *done(*rows.values())) == ()
    for row in rows.values():
        for command in (Modify(deletes=done(row)), Modify(changes=(Change(row.id, row.version, json="1"),))):
            with pytest.raises(errors.DependencyError):
                await second.apply(command)
    assert await ids_in(second, queue) == []


async def test_a_worker_that_is_gone_loses_its_tasks_once(opened: Open, queue: str) -> None:
    """After the ack wait, others get the tasks at a new version; no attempt is counted."""
    first, second = opened(), opened()
    dead, alive = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a", "b"))
    await first.apply(inserts(queue, "k", "l", key="key"))
    before = {row.id: row for row in await claim(first, dead, queue, limit=9)}
    assert list(before) == ["a", "b", "k"]
    after: dict[str, Row] = {}
    with anyio.fail_after(30):
        while len(after) < 3:
            rows = await second.pull(Work(alive, queues=(queue,), limit=9, begins=2), 0.1)
            assert (await second.apply(Beat(alive))).alive
            after |= {row.id: row for row in rows}
    for id_, row in after.items():
        assert (row.attempt, row.claims, row.error, row.alone) == (1, 2, "", True)
        assert row.version > before[id_].version
    # Late settlements have no effect, of whatever kind and whenever they come.
    for parts in (done(*before.values()), [Change(row.id, row.version, json="1") for row in before.values()]):
        worked = await first.apply(Work(dead, tuple(parts)))
        assert sorted(worked.lost) == ["a", "b", "k"]
    assert (await first.apply(Beat(dead))).claim_count == 0
    assert await settled(second, alive, *done(*after.values())) == ()
    (row,) = await claim(second, alive, queue, limit=9)
    assert (row.id, row.attempt, row.claims) == ("l", 1, 1)


async def test_a_worker_that_is_gone_is_missed_whatever_others_do(opened: Open, queue: str) -> None:
    """Other workers put tasks back and acknowledge, which must not hide that this one is missing."""
    first, second = opened(), opened()
    dead, alive = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a", "b", "c"))
    assert [row.id for row in await claim(first, dead, queue)] == ["a"]
    b, c = await claim(second, alive, queue, limit=2)
    assert await settled(second, alive, Change("b", b.version, delay=3600 * SECOND)) == ()
    assert await settled(second, alive, Delete("c", c.version)) == ()
    with anyio.fail_after(30):
        while not (rows := await second.pull(Work(alive, queues=(queue,), limit=9, begins=2), 0.1)):
            assert (await second.apply(Beat(alive))).alive
    assert [(row.id, row.attempt, row.alone) for row in rows] == [("a", 1, True)]


async def test_beats_keep_what_is_held(opened: Open, queue: str) -> None:
    """The claim is kept for longer than the ack wait, and no other session gets the task."""
    first, second = opened(), opened()
    mine, theirs = await begun(first, 2 * SECOND), await begun(second, 2 * SECOND)
    await first.apply(inserts(queue, "a"))
    (row,) = await claim(first, mine, queue)
    others: list[Row] = []
    async with anyio.create_task_group() as group:

        async def look() -> None:
            others.extend(await second.pull(Work(theirs, queues=(queue,), limit=1), 2.5))
            group.cancel_scope.cancel()

        group.start_soon(look)
        while True:
            assert (await first.apply(Beat(mine))) == (await first.apply(Beat(mine)))
            await anyio.sleep(0.2)
    assert others == []
    assert await settled(first, mine, *done(row)) == ()


async def test_a_lease_ends_by_itself(store: NATSTaskStore, queue: str) -> None:
    session = await begun(store)
    await store.apply(inserts(queue, "a", "b"))
    rows = await claim(store, session, queue, limit=2, lease=1)
    assert all(row.until is not None for row in rows)
    assert await settled(store, session, Delete("a", rows[0].version)) == ("a",)
    beaten = await store.apply(Beat(session))
    assert (beaten.alive, beaten.claim_count) == (True, 0)
    again: list[Row] = []
    while len(again) < 2:
        again += await store.pull(Work(session, queues=(queue,), limit=2), 1.0)
    assert {(row.id, row.attempt, row.claims) for row in again} == {("a", 2, 2), ("b", 2, 2)}
    # A prolonged claim has another version, at which it is settled.
    change = Change("a", next(row.version for row in again if row.id == "a"), keep=True, lease=60 * SECOND)
    assert await settled(store, session, change) == ()
    assert await settled(store, session, Delete("a", change.version)) == ("a",)
    assert await settled(store, session, Delete("a", change.version + 1)) == ()
    assert await ids_in(store, queue) == ["b"]


async def test_a_task_of_later_comes_when_its_time_has(store: NATSTaskStore, queue: str) -> None:
    """A refusal with a delay does that, and isn't an attempt. Others aren't delayed."""
    session = await begun(store)
    await store.apply(inserts(queue, "later", delay=300_000))
    await store.apply(inserts(queue, "never", delay=3600 * SECOND))
    await store.apply(inserts(queue, "now"))
    work = Work(session, queues=(queue,), limit=3)
    order: list[Row] = []
    with anyio.fail_after(30):
        while len(order) < 2:
            order += await store.pull(work, 1.0)
    assert [(row.id, row.attempt, row.claims) for row in order] == [("now", 1, 1), ("later", 1, 1)]
    assert await settled(store, session, Change("now", order[0].version, delay=SECOND // 10)) == ()
    with anyio.fail_after(30):
        while not (rows := await store.pull(work, 1.0)):
            pass
    assert [(row.id, row.attempt) for row in rows] == [("now", 2)]


async def test_what_came_for_somebody_who_left_is_given_back(opened: Open, queue: str) -> None:
    """A wake-up brings the task. If no caller takes it, it is given back."""
    first, second = opened(), opened()
    mine, theirs = await begun(first), await begun(second)
    with anyio.fail_after(30):
        async with first.wakeups(mine):
            await first.apply(Work(mine, queues=(queue,), limit=1, idle=True))
            while (await second.pulled((queue,)))[queue].waiting == 0:
                await anyio.lowlevel.checkpoint()
            await second.apply(inserts(queue, "a"))
            while not await first.apply(Select(session=mine)):
                await anyio.lowlevel.checkpoint()
        (row,) = await second.pull(Work(theirs, queues=(queue,), limit=1), 20.0)
    assert (row.id, row.attempt) == ("a", 1)
