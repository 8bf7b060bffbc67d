"""Part of the suite of task stores: plain tasks that are handed out in ranges."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from anyio.from_thread import BlockingPortal

from intervalq.tasks._spec.ids import PLAIN
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Cancel,
    Change,
    Count,
    Delete,
    End,
    Failed,
    Finished,
    Insert,
    Modify,
    Range,
    Row,
    Select,
    Work,
    Worked,
)
from intervalq.tasks.store import Ranging, TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, insert
from intervalq.testing._tasks.together import in_threads


def _finished(worked: Worked) -> tuple[Finished, ...]:
    return tuple(Finished(range_) for range_, _ in worked.ranges)


def _values(worked: Worked) -> list[int]:
    plain = [json.loads(text) for _, tasks in worked.ranges for _, text in tasks]
    return plain + [json.loads(row.json) for row in worked.claimed]


async def _ordinary(store: TaskStore, queue: str) -> list[Row]:
    return [row for row in await store.apply(Select(queue=queue)) if not row.is_plain]


class RangingTaskSuite(TaskSuiteBase):
    """Each plain task is handed out once, or becomes an ordinary one."""

    @pytest.fixture
    def ranging(self, store: TaskStore) -> Ranging:
        """The store, which declares this ability."""
        assert isinstance(store, Ranging), "this store has no plain tasks"
        return store

    def test_every_plain_task_is_done_once(
        self, portal: BlockingPortal, store: TaskStore, ranging: Ranging, store_url: str, names: Names
    ) -> None:
        """Three sessions work 5,000 tasks concurrently; some fail, and come back as ordinary tasks."""
        queue = names.queue()
        portal.call(ranging.put, queue, [str(number) for number in range(5000)])
        (stats,) = portal.call(store.apply, Count(names=(queue,)))
        assert (stats.size, stats.ready) == (5000, 5000)

        async def work(mine: TaskStore) -> list[int]:
            session = await names.begun(mine)
            done: list[int] = []
            finished: list[Finished] = []
            settled: list[Delete] = []
            while True:
                command = Work(session, tuple(settled), finished=tuple(finished), queues=(queue,), limit=100)
                worked = await mine.apply(command)
                assert (worked.alive, worked.lost, worked.lost_ranges) == (True, (), ())
                done += [json.loads(row.json) for row in worked.claimed]
                settled = [Delete(row.id, row.version) for row in worked.claimed]
                finished = []
                for range_, tasks in worked.ranges:
                    failed = [
                        Failed(number, self._again(queue, text))
                        for number, text in tasks
                        if json.loads(text) % 100 == 7
                    ]
                    kept = {one.number for one in failed}
                    done += [json.loads(text) for number, text in tasks if number not in kept]
                    finished.append(Finished(range_, tuple(failed)))
                if not (settled or finished):
                    return done

        done = Counter(number for share in in_threads(store_url, [work] * 3) for number in share)
        done.update(portal.call(self._rest, store, queue, names))
        assert done == Counter(range(5000))
        assert portal.call(store.apply, Count(names=(queue,))) == ()

    def _again(self, queue: str, text: str) -> Insert:
        return insert(queue, json.loads(text), attempt=1, error="failed")

    async def _rest(self, store: TaskStore, queue: str, names: Names) -> list[int]:
        """The tasks that failed after all other sessions had finished."""
        session = await names.begun(store)
        values: list[int] = []
        worked = await store.apply(Work(session, queues=(queue,), limit=1000))
        while worked.claimed or worked.ranges:
            values += _values(worked)
            settled = tuple(Delete(row.id, row.version) for row in worked.claimed)
            worked = await store.apply(
                Work(session, settled, finished=_finished(worked), queues=(queue,), limit=1000)
            )
        return values

    @in_portal
    async def test_plain_tasks_are_cancelled_like_others(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """Those that nobody has claimed are gone; those of a range stay until their session ends them."""
        queue, session = names.queue(), await names.begun(store)
        await ranging.put(queue, [str(number) for number in range(40)])
        done: list[Finished] = []
        stopping: set[str] = set()
        while len(stopping) < 6:
            worked = await store.apply(Work(session, queues=(queue,), limit=5, begins=1))
            for range_, tasks in worked.ranges:
                stopping |= {f"{PLAIN}{range_.part}-{number}" for number, _ in tasks[::2]}
                done.append(Finished(range_))
        rows = await store.apply(Select(queue=queue, limit=100))
        free = [row.id for row in rows if row.session is None][:4]
        cancelled = await store.apply(Cancel((*free, *stopping)))
        assert (set(cancelled.removed), set(cancelled.stopping)) == (set(free), stopping)
        left = {row.id: row for row in await store.apply(Select(queue=queue, limit=100))}
        assert set(left) == {row.id for row in rows} - set(free)
        assert {id_ for id_, row in left.items() if row.cancelled} == stopping
        beaten = await store.apply(Beat(session))
        assert {part.id for part in beaten.cancelled} == stopping
        worked = await store.apply(Work(session, beaten.cancelled, finished=tuple(done)))
        assert (worked.lost, worked.lost_ranges) == ((), ())
        values = await self._rest(store, queue, names)
        assert len(values) == len({*values}) == len([row for row in rows if row.session is None]) - 4
        assert await store.apply(Count(names=(queue,))) == ()

    @in_portal
    async def test_a_put_is_seen_as_tasks_that_are_ready(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """Claimed tasks are counted as claimed, and finished ones are gone."""
        queue, session = names.queue(), await names.begun(store)
        await ranging.put(queue, [])
        assert await store.apply(Count(names=(queue,))) == ()
        await ranging.put(queue, ["1", '{"ü": "\\u0000"}', "3"])
        worked = await store.apply(Work(session, queues=(queue,), limit=2))
        seen = [json.loads(text) for _, tasks in worked.ranges for _, text in tasks]
        assert 0 < len(seen) <= 2
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.claimed, stats.ready) == (3, len(seen), 3 - len(seen))
        while len(seen) < 3:
            worked = await store.apply(Work(session, finished=_finished(worked), queues=(queue,), limit=2))
            seen += [json.loads(text) for _, tasks in worked.ranges for _, text in tasks]
        await store.apply(Work(session, finished=_finished(worked)))
        assert sorted(map(str, seen)) == ["1", "3", "{'ü': '\\x00'}"]
        assert await store.apply(Count(names=(queue,))) == ()

    @in_portal
    async def test_a_claim_with_a_lease_gets_plain_tasks_as_ordinary_ones(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """It expires although its session lives on, even if nobody has received the answer."""
        queue, session = names.queue(), await names.begun(store, expiry=3600 * SECOND)
        await ranging.put(queue, [str(number) for number in range(5)])
        worked = await store.apply(Work(session, queues=(queue,), limit=3, lease=1, begins=2))
        assert (worked.ranges, len(worked.claimed)) == ((), 3)
        assert {(row.claims, row.attempt, row.session) for row in worked.claimed} == {(1, 1, session)}
        assert sorted(await self._rest(store, queue, names)) == [0, 1, 2, 3, 4]

    @in_portal
    async def test_the_first_of_a_range_are_done_before_the_rest(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """Sent twice, as after a lost answer; failed tasks come back; only begun ones are charged."""
        queue, mine = names.queue(), await names.begun(store)
        session = await names.begun(store, expiry=1)
        await ranging.put(queue, [str(number) for number in range(40)])
        worked = await store.apply(Work(session, queues=(queue,), limit=30))
        range_, tasks = worked.ranges[0]
        numbers = [number for number, _ in tasks]
        value = dict(tasks)
        failed = (Failed(numbers[1], self._again(queue, value[numbers[1]])),)
        begun = numbers[8], numbers[12]
        for _ in range(2):
            part = Finished(range_, failed, numbers[9], 10, begun)
            assert (await store.apply(Work(session, finished=(part,)))).lost_ranges == ()
        (stats,) = await store.apply(Count(names=(queue,)))
        held = sum(len(tasks) for _, tasks in worked.ranges) - 10
        assert (stats.size, stats.claimed) == (31, held)
        range_ = Range(queue, range_.part, numbers[9] + 1, range_.high)
        part = Finished(range_, (), numbers[9], 0, (numbers[14],))
        assert (await store.apply(Work(session, finished=(part,)))).lost_ranges == ()
        assert (await store.apply(Work(mine, finished=(part,)))).lost_ranges == (range_,)
        await store.apply(Beat(mine))
        rows = await store.apply(Select(queue=queue))
        lost = {json.loads(row.json): row for row in rows if row.alone}
        assert {json.loads(value[number]) for number in numbers[10:]} <= set(lost)
        tried = {json.loads(value[number]) for number in (numbers[12], numbers[14])}
        assert {value for value, row in lost.items() if row.attempt} == tried
        assert {value for value, row in lost.items() if row.error} == tried
        done = {json.loads(value[number]) for number in numbers[:10]} - {json.loads(value[numbers[1]])}
        assert sorted(await self._rest(store, queue, names)) == sorted(set(range(40)) - done)

    @pytest.mark.parametrize("lapse", [False, True])
    @in_portal
    async def test_what_a_session_leaves_comes_again_as_ordinary_tasks(
        self, store: TaskStore, ranging: Ranging, names: Names, *, lapse: bool
    ) -> None:
        """The tasks are free at once, each once; a lapse counts as an attempt, a clean end doesn't."""

        async def leave(session: str) -> None:
            if lapse:
                await store.apply(Beat(names.session()))
            else:
                await store.apply(End(session))

        queue, mine = names.queue(), await names.begun(store)
        session = await names.begun(store, expiry=1 if lapse else 10**12)
        await ranging.put(queue, [str(number) for number in range(50)])
        worked = await store.apply(Work(session, queues=(queue,), limit=30, begins=1))
        taken = _values(worked)
        assert taken
        await leave(session)
        rows = await _ordinary(store, queue)
        assert sorted(json.loads(row.json) for row in rows) == sorted(taken)
        assert {(row.session, row.attempt, row.alone) for row in rows} == {(None, int(lapse), lapse)}
        late = await store.apply(Work(session, finished=_finished(worked)))
        assert not late.alive
        assert set(late.lost_ranges) == {range_ for range_, _ in worked.ranges}
        assert sorted(await self._rest(store, queue, names)) == list(range(50))
        assert (await store.apply(Beat(mine))).alive

    @in_portal
    async def test_what_was_taken_out_of_a_range_does_not_fail(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """The session fails all its tasks; those that others deleted or moved by force don't come back."""
        queue, other, session = names.queue(), names.queue(), await names.begun(store)
        await ranging.put(queue, [str(number) for number in range(20)])
        worked = await store.apply(Work(session, queues=(queue,), limit=20))
        ((range_, tasks), *_) = worked.ranges
        rows = {row.id: row for row in await store.apply(Select(queue=queue))}
        deleted, moved, *left = (f"plain-{range_.part}-{number}" for number, _ in tasks)
        change = Change(moved, rows[moved].version, queue=other)
        delete = Delete(deleted, rows[deleted].version)
        await store.apply(Modify(deletes=(delete,), changes=(change,), force=True))
        failed = tuple(
            Failed(number, insert(queue, json.loads(text), f"plain-{range_.part}-{number}"))
            for number, text in tasks
        )
        answer = await store.apply(Work(session, finished=(Finished(range_, failed),)))
        assert answer.lost_ranges == ()
        found = [row for row in await store.apply(Select(queue=queue)) if row.session is None and row.created]
        assert {row.id for row in found} == set(left)
        assert {(row.version, row.claims) for row in found} <= {(2, 1)}
        assert [row.id for row in await store.apply(Select(queue=other))] == [moved]

    @in_portal
    async def test_a_range_of_somebody_else_cannot_be_finished(
        self, store: TaskStore, ranging: Ranging, names: Names
    ) -> None:
        """A session can't finish a range twice, nor a different one than it claimed."""
        queue, mine, other = names.queue(), await names.begun(store), await names.begun(store)
        await ranging.put(queue, [str(number) for number in range(20)])
        worked = await store.apply(Work(mine, queues=(queue,), limit=10))
        ((range_, tasks), *_) = worked.ranges
        made_up = Range(queue, range_.part, range_.low, range_.high + 5)
        failed = (Failed(tasks[0][0], insert(queue, json.loads(tasks[0][1]))),)

        async def lost(session: str, one: Range) -> bool:
            answer = await store.apply(Work(session, finished=(Finished(one, failed),)))
            return answer.lost_ranges == (one,)

        assert await lost(other, range_)
        assert await lost(mine, made_up)
        assert await _ordinary(store, queue) == []
        assert not await lost(mine, range_)
        (row,) = await _ordinary(store, queue)
        assert row.id == failed[0].insert.id
        assert await lost(mine, range_)
        assert len(await _ordinary(store, queue)) == 1
