"""Part of the suite of task stores: what users see of inserts, changes, deletes, claims and looks."""

from __future__ import annotations

import json
from typing import Any

from anyio.from_thread import BlockingPortal

from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Count,
    Delete,
    End,
    Modify,
    QueueStats,
    Row,
    Select,
    Session,
    Sessions,
    Work,
)
from intervalq.tasks.store import MAX_ROWS, TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, claim, insert, put


class BehaviourTests(TaskSuiteBase):
    """One handle, sequential commands, on the store's own clock."""

    @in_portal
    async def test_a_task_goes_from_insert_to_claim(self, store: TaskStore, names: Names) -> None:
        """An empty queue gives nothing; a task for later isn't claimed now; claims are counted."""
        queue, session = names.queue(), await names.begun(store)
        nothing = await store.apply(Work(session, queues=(queue,), limit=1))
        assert (nothing.alive, nothing.claimed, nothing.wait) == (True, (), None)
        first, later = insert(queue, {"n": 1}), insert(queue, [2], delay=3600 * SECOND)
        modified = await store.apply(Modify(inserts=(first, later)))
        assert (modified.changed, modified.existing) == ((), ())
        assert [(row.id, row.version, row.queue) for row in modified.inserted] == [
            (first.id, 0, queue),
            (later.id, 0, queue),
        ]
        assert [json.loads(row.json) for row in modified.inserted] == [{"n": 1}, [2]]
        one, two = modified.inserted
        assert two.at - one.at == 3600 * SECOND
        assert one.at == one.created == one.modified == two.created
        assert (one.session, one.until, one.claims, one.attempt, one.error) == (None, None, 0, 0, "")
        assert await store.apply(Count(names=(queue,))) == (QueueStats(queue, 2, ready=1, future=1),)
        assert await store.apply(Select(queue=queue)) == modified.inserted
        worked = await store.apply(Work(session, queues=(queue,), limit=5, lease=5 * SECOND, begins=2))
        (row,) = worked.claimed
        assert (row.id, row.version, row.claims, row.attempt) == (first.id, 1, 1, 1)
        assert (row.session, row.until, row.at) == (session, row.modified + 5 * SECOND, one.at)
        assert worked.wait is not None
        assert 0 < worked.wait <= 5 * SECOND
        assert await claim(store, session, queue) == ()
        assert await store.apply(Select(session=session)) == (row,)

    def test_its_own_clock_is_used_when_none_is_given(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Readings never decrease, and have microseconds: they differ within a millisecond."""

        async def readings() -> list[int]:
            queue = names.queue()
            return [(await put(store, insert(queue)))[0].created for _ in range(30)]

        seen = portal.call(readings)
        assert seen == sorted(seen)
        assert len({reading % 1000 for reading in seen}) > 3, "the clock has no microseconds"

    @in_portal
    async def test_a_change_moves_a_task_and_leaves_the_rest(self, store: TaskStore, names: Names) -> None:
        """It has another queue, the next version and no claim; all else is unchanged."""
        queue, other, session = names.queue(), names.queue(), await names.begun(store)
        await put(store, insert(queue, {"ü": [1.5, None]}))
        (row,) = await claim(store, session, queue)
        change = Change(row.id, row.version, queue=other)
        (after,) = (await store.apply(Modify(session, changes=(change,)))).changed
        expected = row._replace(version=2, queue=other, session=None, modified=after.modified, begun=False)
        if not self.counts_versions:
            assert after.version > row.version
            expected = expected._replace(version=after.version)
        assert self.comparable((after,)) == self.comparable((expected,))
        assert after.modified >= row.modified
        assert await store.apply(Count(names=(queue, other))) == (
            QueueStats(other, 1, ready=1, most_claims=int(self.sees_claims)),
        )

    @in_portal
    async def test_tasks_are_found_by_ids_in_the_order_asked(self, store: TaskStore, names: Names) -> None:
        """Of any queue, or of one; without values if they are left out."""
        queue, other = names.queue(), names.queue()
        ids = [names.fresh() for _ in range(5)]
        rows = await put(store, *(insert(queue, id_, id_) for id_ in ids[:4]), insert(other, 5, ids[4]))
        assert [row.id for row in rows] == ids
        assert {row.id for row in await store.apply(Select(queue=queue))} == set(ids[:4])
        asked = (ids[4], ids[2], "not there", ids[0])
        found = await store.apply(Select(ids=asked))
        assert [json.loads(row.json) for row in found] == [5, ids[2], ids[0]]
        assert [row.id for row in await store.apply(Select(queue=queue, ids=asked))] == [ids[2], ids[0]]
        assert [row.id for row in await store.apply(Select(ids=asked, limit=2))] == [ids[4], ids[2]]
        bare = await store.apply(Select(queue=queue, values=False))
        assert [row._replace(json="") for row in await store.apply(Select(queue=queue))] == [
            row._replace(json="") for row in bare
        ]
        assert {row.json for row in bare} == {"null"}

    @in_portal
    async def test_a_selection_is_sorted_by_arrival(self, store: TaskStore, names: Names) -> None:
        """A limit keeps the first tasks."""
        queue = names.queue()
        ats = [5, 3, 9, 1, 7]
        await put(store, *(insert(queue, at, at=at * SECOND) for at in ats))
        found = await store.apply(Select(queue=queue, limit=3))
        assert [row.at // SECOND for row in found] == sorted(ats)[:3]

    @in_portal
    async def test_queues_are_counted(self, store: TaskStore, names: Names) -> None:
        """By name, by prefix, or both, sorted; a queue without tasks doesn't exist."""
        session = await names.begun(store)
        sizes = [1, 2, 3, 1]
        queues = [f"{names.word}{end}" for end in ("-1", "/map/input", "/map", "=x")]
        names.queues += queues
        for queue, size in zip(queues, sizes, strict=True):
            await put(store, *(insert(queue) for _ in range(size)))
        await claim(store, session, queues[2])

        async def count(**asked: Any) -> dict[str, int]:
            stats = await store.apply(Count(**asked))
            assert [one.name for one in stats] == sorted(one.name for one in stats)
            return {one.name: one.size for one in stats}

        expected = dict(zip(queues, sizes, strict=True))
        assert await count(prefixes=(names.word,)) == expected
        assert await count(names=(queues[1], names.fresh())) == {queues[1]: 2}
        assert await count(names=(queues[0],), prefixes=(queues[3][:-1],)) == {queues[0]: 1, queues[3]: 1}
        assert await count(prefixes=(names.word,), limit=2) == dict(sorted(expected.items())[:2])
        assert await count(names=(names.word + "%", names.word + "_1")) == {}
        assert await count(prefixes=(names.word + "_", "%")) == {}
        assert expected.items() <= (await count()).items()
        (stats,) = await store.apply(Count(names=(queues[2],)))
        assert stats == QueueStats(queues[2], 3, claimed=1, ready=2, most_claims=int(self.sees_claims))

    @in_portal
    async def test_values_come_back_as_they_were(self, store: TaskStore, names: Names) -> None:
        """Any JSON, long values, and the maximum number of tasks in one command."""
        queue = names.queue()
        values: list[object] = [
            None,
            True,
            0,
            -1.5e-7,
            2**63,
            10**30,
            "",
            "\0 ü \U0001f600 '\"\\",
            [[]],
            {"": {}},
        ]
        values.append("x" * 250_000)
        rows = await put(store, *(insert(queue, value) for value in values))
        found = await store.apply(Select(ids=tuple(row.id for row in rows)))
        assert [json.loads(row.json) for row in found] == values
        many = await put(store, *(insert(queue, number) for number in range(MAX_ROWS)))
        assert len({row.id for row in many}) == MAX_ROWS
        session = await names.begun(store)
        claimed = await claim(store, session, queue, limit=MAX_ROWS)
        assert len(claimed) == MAX_ROWS
        settled = tuple(Delete(row.id, row.version) for row in claimed)
        worked = await store.apply(Work(session, settled, queues=(queue,), limit=MAX_ROWS))
        assert (worked.lost, len(worked.claimed)) == ((), len(values))

    @in_portal
    async def test_sessions_are_listed_and_end(self, store: TaskStore, names: Names) -> None:
        """Ending a session frees its claims at once, and the session can't claim any more."""
        queue, session = names.queue(), names.session()
        gone = Session(session, "host", 7, "consumer", 3600 * SECOND)
        await store.apply(Begin(gone))
        (seen,) = [one for one in await store.apply(Sessions()) if one.id == session]
        assert seen == gone._replace(started=seen.started, beaten=seen.beaten)
        assert seen.started == seen.beaten > 1_600_000_000 * SECOND
        await put(store, insert(queue))
        (row,) = await claim(store, session, queue)
        beaten = await store.apply(Beat(session))
        assert (beaten.alive, beaten.claim_count) == (True, 1)
        await store.apply(End(session))
        (back,) = await store.apply(Select(ids=(row.id,)))
        assert (back.session, back.claims, back.attempt) == (None, 1, 0)
        assert back.version == 2 or (back.version > row.version and not self.counts_versions)
        worked = await store.apply(Work(session, (Delete(row.id, row.version),), queues=(queue,), limit=1))
        assert (worked.alive, worked.lost, worked.claimed) == (False, (row.id,), ())
        assert not (await store.apply(Beat(session))).alive
        assert session not in [one.id for one in await store.apply(Sessions())]
        await store.apply(End(session))

    def test_what_was_inserted_outlives_the_connection(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Closing only releases connections; the store opens new ones on the next use."""

        async def scenario() -> tuple[Row, ...]:
            queue = names.queue()
            rows = await put(store, insert(queue))
            await store.aclose()
            assert self.comparable(await store.apply(Select(queue=queue))) == self.comparable(rows)
            return rows

        assert len(portal.call(scenario)) == 1
