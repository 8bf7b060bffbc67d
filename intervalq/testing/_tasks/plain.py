"""Part of the suite of task stores: plain tasks behave like others in every look and every change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from anyio.from_thread import BlockingPortal

from intervalq.errors import DependencyError
from intervalq.tasks import Tasks
from intervalq.tasks.rules import (
    Change,
    Count,
    Delete,
    Depend,
    End,
    Finished,
    Modify,
    Row,
    Select,
    Work,
    Worked,
)
from intervalq.tasks.store import TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, refused
from intervalq.testing._tasks.together import in_threads

_MANY = 500


async def _put(store: TaskStore, queue: str, count: int) -> tuple[Row, ...]:
    assert await Tasks(store).put(queue, range(count)) == count
    return await store.apply(Select(queue=queue))


def _values(rows: Sequence[Row]) -> list[int]:
    return sorted(json.loads(row.json) for row in rows)


def _claimed(worked: Worked) -> dict[str, int]:
    """Ids and values of claimed tasks, in ranges or not."""
    tasks = {row.id: json.loads(row.json) for row in worked.claimed}
    for range_, plain in worked.ranges:
        tasks |= {f"plain-{range_.part}-{number}": json.loads(text) for number, text in plain}
    return tasks


def _done(session: str, worked: Worked) -> Work:
    settled = tuple(Delete(row.id, row.version) for row in worked.claimed)
    return Work(session, settled, tuple(Finished(range_) for range_, _ in worked.ranges))


async def _drained(store: TaskStore, session: str, queue: str) -> list[int]:
    """The tasks that one worker gets until the queue is empty, one claim after the other."""
    values: list[int] = []
    while claimed := _claimed(worked := await store.apply(Work(session, queues=(queue,), limit=_MANY))):
        values += claimed.values()
        await store.apply(_done(session, worked))
    return sorted(values)


class PlainTests(TaskSuiteBase):
    """Tasks that `Tasks.put` inserted, whether or not the store hands them out in ranges."""

    @in_portal
    async def test_what_was_put_is_listed_and_found_by_id(self, store: TaskStore, names: Names) -> None:
        """Looks by queue, over all tasks, and by ids in their order, with a limit, and without values."""
        queue, other = names.queue(), names.queue()
        rows = await _put(store, queue, 40)
        await _put(store, other, 3)
        assert _values(rows) == list(range(40))
        assert len({row.id for row in rows}) == 40
        assert {(row.queue, row.session, row.claims, row.attempt) for row in rows} == {(queue, None, 0, 0)}
        few = await store.apply(Select(queue=queue, limit=5))
        assert len(set(few)) == 5
        assert set(few) <= set(rows)
        asked = [row.id for row in rows[7:2:-1]]
        assert await store.apply(Select(ids=(*asked, "plain-1-1", "plain-99-5"))) == rows[7:2:-1]
        assert await store.apply(Select(ids=tuple(asked), queue=other)) == ()
        bare = await store.apply(Select(queue=queue, values=False))
        assert [row._replace(json="null") for row in rows] == list(bare)
        every = [row for row in await store.apply(Select()) if row.queue in {queue, other}]
        assert Counter(row.queue for row in every) == {queue: 40, other: 3}
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.ready, stats.claimed) == (40, 40, 0)

    @in_portal
    async def test_what_was_put_is_changed_moved_and_deleted_by_id(
        self, store: TaskStore, names: Names
    ) -> None:
        """Changes are all or nothing; the task keeps its id, and its old version can't be changed again."""
        queue, other, session = names.queue(), names.queue(), await names.begun(store)
        rows = await _put(store, queue, 20)
        gone, moved, changed, needed, *left = rows
        parts = Modify(
            deletes=(Delete(gone.id, gone.version),),
            changes=(
                Change(moved.id, moved.version, queue=other),
                Change(changed.id, changed.version, json='"new"', delay=3600 * 10**6),
            ),
            depends=(Depend(needed.id, needed.version),),
        )
        done = await store.apply(parts)
        assert [(row.id, row.queue) for row in done.changed] == [(moved.id, other), (changed.id, queue)]
        assert {row.version > 0 for row in done.changed} == {True}
        there = await store.apply(Select(ids=(gone.id, moved.id, changed.id, needed.id)))
        assert [(row.queue, row.json) for row in there] == [
            *((other, moved.json), (queue, '"new"')),
            (queue, needed.json),
        ]
        error = await refused(store, parts, DependencyError)
        assert (error.deletes, error.changes) == ((gone.id,), (moved.id, changed.id))
        missing = Modify(deletes=(Delete(left[0].id, left[0].version), Delete("plain-3-17", 0)))
        assert (await refused(store, missing, DependencyError)).deletes == ("plain-3-17",)
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.ready, stats.future) == (18, 17, 1)
        assert await _drained(store, session, queue) == _values([needed, *left])
        assert await _drained(store, session, other) == _values([moved])

    @pytest.mark.parametrize("word", ["deleted", "moved"])
    @in_portal
    async def test_all_that_was_put_goes_in_pieces(self, store: TaskStore, names: Names, word: str) -> None:
        """Five hundred tasks in one step, which every store must support."""
        queue, other, session = names.queue(), names.queue(), await names.begun(store)
        await Tasks(store).put(queue, range(2 * _MANY))
        for _ in range(2):
            rows = await store.apply(Select(queue=queue, limit=_MANY, values=False))
            assert len(rows) == _MANY
            if word == "deleted":
                await store.apply(Modify(deletes=tuple(Delete(row.id, row.version) for row in rows)))
            else:
                changes = tuple(Change(row.id, row.version, queue=other) for row in rows)
                assert len((await store.apply(Modify(changes=changes))).changed) == _MANY
        assert await store.apply(Count(names=(queue,))) == ()
        assert await _drained(store, session, queue) == []
        expected = list(range(2 * _MANY)) if word == "moved" else []
        assert await _drained(store, session, other) == expected

    def test_what_is_claimed_is_its_sessions(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Others can change unclaimed tasks, and by force any task. So can the session that claimed it."""

        async def scenario() -> None:
            queue, mine, other = names.queue(), await names.begun(store), await names.begun(store)
            await _put(store, queue, 60)
            worked = await store.apply(Work(mine, queues=(queue,), limit=20))
            claimed = _claimed(worked)
            rows = {row.id: row for row in await store.apply(Select(queue=queue))}
            assert {id_ for id_, row in rows.items() if row.session == mine} == set(claimed)
            parts = {id_: Delete(id_, row.version) for id_, row in rows.items()}
            error = await refused(store, Modify(other, deletes=tuple(parts.values())), DependencyError)
            assert set(error.claims) == set(claimed)
            assert (error.deletes, error.changes) == ((), ())
            free = [id_ for id_ in rows if id_ not in claimed][:5]
            forced, own, changed, *left = claimed
            await store.apply(Modify(other, deletes=tuple(parts[id_] for id_ in free)))
            await store.apply(Modify(other, deletes=(parts[forced],), force=True))
            change = Change(changed, rows[changed].version, attempt=7)
            await store.apply(Modify(mine, deletes=(parts[own],), changes=(change,)))
            (stats,) = await store.apply(Count(names=(queue,)))
            there = 60 - len(free) - 2
            assert (stats.size, stats.claimed) == (there, len(left))
            assert stats.ready == there - len(left)
            answer = await store.apply(_done(mine, worked))
            assert set(answer.lost) <= {forced, own, changed}
            assert answer.lost_ranges == ()
            (row,) = await store.apply(Select(ids=tuple(claimed)))
            assert (row.id, row.attempt, row.session) == (changed, 7, None)
            (stats,) = await store.apply(Count(names=(queue,)))
            assert (stats.size, stats.claimed) == (there - len(left), 0)
            values = [json.loads(row.json) for id_, row in rows.items() if id_ not in {*free, *claimed}]
            assert await _drained(store, other, queue) == sorted([*values, claimed[changed]])

        if self.sees_claims:
            portal.call(scenario)

    def test_what_was_taken_from_a_session_does_not_come_again_when_it_ends(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """The session's other tasks come back with the same ids, which can be used again later."""

        async def scenario() -> None:
            queue, mine, other = names.queue(), await names.begun(store), await names.begun(store)
            await _put(store, queue, 30)
            claimed = _claimed(await store.apply(Work(mine, queues=(queue,), limit=30)))
            seen = {row.id: row for row in await store.apply(Select(queue=queue))}
            taken = sorted(claimed)[::3]
            deletes = tuple(Delete(id_, seen[id_].version) for id_ in taken)
            await store.apply(Modify(deletes=deletes, force=True))
            await store.apply(End(mine))
            rows = await store.apply(Select(queue=queue))
            assert {row.id for row in rows} == set(seen) - set(taken)
            assert _values(rows) == sorted(set(range(30)) - {claimed[id_] for id_ in taken})
            assert all(row.version > seen[row.id].version for row in rows if row.id in claimed)
            await store.apply(Modify(deletes=(Delete(rows[0].id, rows[0].version),)))
            assert len(await _drained(store, other, queue)) == len(rows) - 1

        if self.sees_claims:
            portal.call(scenario)

    def test_each_is_done_or_deleted_or_moved_once(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Two workers and two who delete tasks, concurrently: no task is lost or done twice."""
        queue, other = names.queue(), names.queue()
        count = 1500
        portal.call(Tasks(store).put, queue, range(count))

        async def work(mine: TaskStore) -> list[int]:
            session = await names.begun(mine)
            values: list[int] = []
            finished = Work(session)
            for _ in range(count):
                worked = await mine.apply(
                    Work(session, finished.settled, finished.finished, queues=(queue,), limit=40)
                )
                assert (worked.lost, worked.lost_ranges) == ((), ())
                if not (claimed := _claimed(worked)):
                    break
                values += claimed.values()
                finished = _done(session, worked)
            return values

        async def take(mine: TaskStore) -> list[int]:
            random = Random(id(mine))  # noqa: S311 - any order
            values: list[int] = []
            while rows := await mine.apply(Select(queue=queue, limit=400)):
                some = random.sample(rows, min(len(rows), 20))
                if all(row.session for row in rows):
                    some = list(rows)
                half = len(some) // 2
                deletes = tuple(Delete(row.id, row.version) for row in some[:half])
                changes = tuple(Change(row.id, row.version, queue=other) for row in some[half:])
                try:
                    await mine.apply(Modify(deletes=deletes, changes=changes))
                except DependencyError:
                    continue
                values += [json.loads(row.json) for row in some[:half]]
            return values

        jobs = [work, take, work, take] if self.sees_claims else [work, work]
        ended = [value for share in in_threads(store_url, jobs) for value in share]
        session = portal.call(names.begun, store)
        ended += portal.call(_drained, store, session, other)
        ended += portal.call(_drained, store, session, queue)
        assert Counter(ended) == Counter(range(count))
