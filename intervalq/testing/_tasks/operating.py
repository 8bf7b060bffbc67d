"""Part of the suite of task stores: tasks that are snoozed, cancelled, or reported on."""

from __future__ import annotations

from dataclasses import replace

from intervalq.errors import DependencyError
from intervalq.tasks._claim.endings import snoozed
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Cancel,
    Change,
    Count,
    Delete,
    End,
    Kept,
    Modify,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import Following, TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, claim, insert, put, refused


class OperatingTests(TaskSuiteBase):
    """One handle, sequential commands, on the store's own clock."""

    marks_cancelled: bool = True
    """A cancelled task that is claimed stays until its session has ended the work on it. False: it is
    removed at once, and its session learns of that by other means."""

    @in_portal
    async def test_a_snoozed_task_comes_back_after_its_time_as_if_it_had_not_been_tried(
        self, store: TaskStore, names: Names
    ) -> None:
        """The attempt and the last error are those from before, even if the store knew that it had begun."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, n, attempt=3, error="no") for n in range(2)))
        rows = await claim(store, session, queue, limit=2)
        assert [row.attempt for row in rows] == [4, 4]
        parts = snoozed(rows[0], 3600 * SECOND), snoozed(rows[1], 0)
        assert (await store.apply(Work(session, parts))).lost == ()
        first, second = await store.apply(Select(ids=(rows[0].id, rows[1].id)))
        for row in (first, second):
            assert (row.session, row.attempt, row.error, row.begun) == (None, 3, "no", False)
        assert first.at >= rows[0].modified + 3600 * SECOND
        assert [row.id for row in await claim(store, session, queue, limit=2)] == [second.id]

    @in_portal
    async def test_a_report_on_the_work_stays_with_the_task(self, store: TaskStore, names: Names) -> None:
        """A renewal stores the report; whatever ends the claim keeps it, and so the next claim gets it."""
        if not self.counts_versions:  # here, a claim is a delivery by the server
            return
        queue, session = names.queue(), await names.begun(store)
        report = '{"p":0.5,"n":"\u00fc ok","c":"[1]"}'
        await put(store, insert(queue, key="k"), insert(queue, key="k"))
        (row,) = await claim(store, session, queue)
        assert row.progress == ""
        for version, text in ((1, "{}"), (2, report)):
            renewal = Change(row.id, row.version + version - 1, keep=True, progress=text)
            assert (await store.apply(Work(session, (renewal,)))).lost == ()
            (seen,) = await store.apply(Select(ids=(row.id,)))
            assert (seen.session, seen.version, seen.progress) == (session, row.version + version, text)
        for part in (Change(row.id, seen.version, delay=0, attempt=1), None):
            if part is None:
                await store.apply(End(session))
                session = await names.begun(store)
            else:
                await store.apply(Work(session, (part,)))
            (again,) = await claim(store, session, queue)
            assert (again.id, again.progress) == (row.id, report)
        dead = Change(row.id, again.version, queue=names.queue(), error="no")
        await store.apply(Work(session, (dead,)))
        (moved,) = await store.apply(Select(ids=(row.id,)))
        assert moved.progress == report
        cleared = Change(row.id, moved.version, progress="")
        (after,) = (await store.apply(Modify(changes=(cleared,)))).changed
        assert after.progress == ""

    @in_portal
    async def test_a_cancelled_task_that_nobody_has_claimed_is_gone(
        self, store: TaskStore, names: Names
    ) -> None:
        """Whether it is ready, delayed, or behind another of its key; an unknown id is no error."""
        queue, session = names.queue(), await names.begun(store)
        line = [insert(queue, n, key="k") for n in range(3)]
        ready, later = insert(queue), insert(queue, delay=3600 * SECOND)
        await put(store, *line, ready, later)
        ids = ready.id, later.id, line[0].id, line[1].id
        cancelled = await store.apply(Cancel((*ids, names.fresh())))
        assert sorted(cancelled.removed) == sorted(ids)
        assert cancelled.stopping == ()
        assert [row.id for row in await store.apply(Select(queue=queue))] == [line[2].id]
        assert [row.id for row in await claim(store, session, queue, limit=9)] == [line[2].id]

    @in_portal
    async def test_a_cancelled_task_is_never_committed(self, store: TaskStore, names: Names) -> None:
        """Whatever its session still tries to do with it is lost; others find it gone."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, n) for n in range(4)))
        rows = await claim(store, session, queue, limit=4)
        cancelled = await store.apply(Cancel(tuple(row.id for row in rows)))
        if self.marks_cancelled:
            assert sorted(cancelled.stopping) == sorted(row.id for row in rows)
        a, b, c, d = rows
        renewal = Change(b.id, b.version, keep=True)
        assert (await store.apply(Work(session, (renewal,)))).lost == (b.id,)
        parts = (
            Delete(a.id, a.version),
            Change(b.id, b.version, delay=0),
            Change(c.id, c.version, queue=queue),
        )
        assert sorted((await store.apply(Work(session, parts))).lost) == sorted((a.id, b.id, c.id))
        after = insert(queue, "after")
        with_it = Modify(session, inserts=(after,), deletes=(Delete(d.id, d.version),))
        await refused(store, with_it, DependencyError)
        assert {row.id for row in await store.apply(Select(queue=queue))} <= {d.id}
        await store.apply(End(session))
        assert await store.apply(Select(queue=queue)) == ()

    @in_portal
    async def test_a_running_task_keeps_its_key_until_its_session_has_ended_it(
        self, store: TaskStore, names: Names
    ) -> None:
        """The session's heartbeat lists it as cancelled, not lost. Then the next task of the key is free."""
        if not self.marks_cancelled:
            return
        queue, session, other = names.queue(), await names.begun(store), await names.begun(store)
        first, second = insert(queue, key="k"), insert(queue, key="k")
        await put(store, first, second)
        (row,) = await claim(store, session, queue)
        for _ in range(2):
            assert (await store.apply(Cancel((row.id,)))).stopping == (row.id,)
            assert (await store.apply(Beat(session))).cancelled == (Delete(row.id, row.version + 1),)
        assert (await store.apply(Beat(other))).cancelled == ()
        (marked,) = await store.apply(Select(ids=(row.id,)))
        assert marked == row._replace(version=row.version + 1, cancelled=True, modified=marked.modified)
        assert await claim(store, other, queue) == ()
        assert (await store.apply(Work(session, (Delete(row.id, row.version + 1),)))).lost == ()
        assert (await store.apply(Beat(session))).cancelled == ()
        assert [row.id for row in await claim(store, other, queue)] == [second.id]

    @in_portal
    async def test_a_worker_may_settle_a_task_and_end_the_work_on_it_at_once(
        self, store: TaskStore, names: Names
    ) -> None:
        """It settles the task and then also reports the end: only the first of the two has an effect."""
        if not self.marks_cancelled:
            return
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, n, key=f"{n % 2}") for n in range(4)))
        rows = await claim(store, session, queue, limit=2)
        await store.apply(Cancel(tuple(row.id for row in rows)))
        settled = [Delete(row.id, row.version) for row in rows]
        ended = [Delete(row.id, row.version + 1) for row in rows]
        worked = await store.apply(Work(session, (settled[0], ended[0], ended[1], settled[1])))
        assert set(worked.lost) == {row.id for row in rows}
        assert len(await claim(store, session, queue, limit=9)) == 2

    @in_portal
    async def test_a_cancelled_task_ends_with_its_session(self, store: TaskStore, names: Names) -> None:
        """If the session lapses, or ends without settling the task, nobody gets the task again."""
        queue, lapsing, ending = names.queue(), await names.begun(store), await names.begun(store)
        await put(store, *(insert(queue, n, key=str(n % 2)) for n in range(4)))
        for session in (lapsing, ending):
            (row,) = await claim(store, session, queue)
            await store.apply(Cancel((row.id,)))
        await store.apply(End(ending))
        assert len(await store.apply(Select(queue=queue))) == 4 - 1 - (not self.marks_cancelled)
        await store.apply(Begin(Session(lapsing, expiry=1)))
        if self.marks_cancelled:
            other = await names.begun(store)
            while lapsing not in (await store.apply(Beat(other))).lapsed:
                pass
        left = await store.apply(Select(queue=queue))
        assert [(row.session, row.waiting, row.cancelled) for row in left] == [(None, False, False)] * 2

    @in_portal
    async def test_a_cancelled_claim_with_a_lease_is_gone_at_once(
        self, store: TaskStore, names: Names
    ) -> None:
        """Its claimant may be silent, so nobody waits for it."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue))
        work = Work(session, queues=(queue,), limit=1, lease=3600 * SECOND, begins=2)
        claimed = (await store.apply(work)).claimed
        while not claimed:  # a server that is asked for messages may not have this one yet
            claimed = (await store.apply(work)).claimed
        (row,) = claimed
        assert (await store.apply(Cancel((row.id,)))).removed == (row.id,)
        assert await store.apply(Select(queue=queue)) == ()
        assert (await store.apply(replace(work, settled=(Delete(row.id, row.version),)))).lost == (row.id,)

    @in_portal
    async def test_a_follow_up_begins_once_when_all_of_its_batch_have_ended(
        self, store: TaskStore, names: Names
    ) -> None:
        """Whether done, failed, deleted or cancelled; not by moving on, nor again if a failed one is done."""
        assert isinstance(store, Following) == self.follows_up
        if not self.follows_up:
            return
        queue, dead, then = names.queue(), f"{names.queue()}.dead", names.queue()
        session = await names.begun(store)
        names.queues.append(dead)
        last = insert(then, awaits=6)
        (row, *rows) = await put(
            store,
            last,
            *(insert(queue, n, key="k" * (n % 2) or None, follow_up=last.id) for n in range(6)),
        )
        assert (row.waiting, row.ready) == (True, None)
        assert await claim(store, session, then) == ()
        await store.apply(Cancel((rows[5].id,)))
        await store.apply(Modify(deletes=(Delete(rows[3].id, 0),)))
        running = {row.id: row for row in await claim(store, session, queue, limit=9)}
        assert running.keys() == {rows[n].id for n in (0, 1, 2, 4)}
        assert running == {row.id: row for row in await store.apply(Select(session=session))}
        done, failed, moved, cancelled = (running[rows[n].id] for n in (0, 1, 2, 4))
        kept = Kept(3600 * SECOND) if self.keeps_outcomes else None
        assert (await store.apply(Work(session, (Delete(done.id, done.version, kept),)))).lost == ()
        parts = (
            Change(failed.id, failed.version, queue=dead, error="no"),
            Change(moved.id, moved.version, queue=dead.removesuffix(".dead")),
        )
        assert (await store.apply(Work(session, parts))).lost == ()
        await store.apply(Cancel((cancelled.id,)))
        assert (await self._left(store, row.id)) == (2, True)  # one moved on, one is still running
        await store.apply(Work(session, (Delete(cancelled.id, cancelled.version + 1),)))
        (again,) = await claim(store, session, dead)
        assert (await store.apply(Work(session, (Delete(again.id, again.version),)))).lost == ()
        assert (await self._left(store, row.id)) == (1, True)
        (moved,) = await claim(store, session, dead.removesuffix(".dead"))
        worked = await store.apply(Work(session, (Delete(moved.id, moved.version),), queues=(then,), limit=9))
        assert [row.id for row in worked.claimed] == [last.id]
        assert worked.claimed[0].at >= moved.modified, "it waits since the last end"
        assert await self._left(store, row.id) == (0, False)

    @in_portal
    async def test_a_follow_up_may_be_changed_in_the_step_that_ends_its_batch(
        self, store: TaskStore, names: Names
    ) -> None:
        """It is free then, and has its new value. Cancelling one that is gone is no error."""
        if not self.follows_up:
            return
        queue = names.queue()
        for gone in (False, True):
            last = insert(queue, awaits=1)
            row, part = await put(store, last, insert(queue, follow_up=last.id))
            change = () if gone else (Change(row.id, row.version, json='"new"'),)
            deletes = (Delete(part.id, part.version), *[Delete(row.id, row.version)] * gone)
            await store.apply(Modify(changes=change, deletes=deletes))
            found = await store.apply(Select(ids=(row.id,)))
            assert [(row.json, row.awaits, row.waiting) for row in found] == [('"new"', 0, False)] * (
                not gone
            )

    @in_portal
    async def test_a_follow_up_is_not_free_again_when_more_tasks_end_than_it_waits_for(
        self, store: TaskStore, names: Names
    ) -> None:
        """Neither before its claim, nor during that, nor when it is done."""
        if not self.follows_up:
            return
        queue, then, session = names.queue(), names.queue(), await names.begun(store)
        last = insert(then, awaits=1)
        await put(store, last, *(insert(queue, follow_up=last.id) for _ in range(8)))

        async def ended() -> tuple[Row, ...]:
            (cancelled,) = await claim(store, session, queue)
            await store.apply(Cancel((cancelled.id,)))
            (done,) = await claim(store, session, queue)
            ends = (Delete(cancelled.id, cancelled.version + 1), Delete(done.id, done.version))
            assert (await store.apply(Work(session, ends))).lost == ()
            return await store.apply(Select(ids=(last.id,)))

        free = await ended()
        assert await ended() == free
        claimed = await claim(store, session, then, limit=2)
        assert len(claimed) == 1
        assert await ended() == claimed
        await store.apply(Work(session, (Delete(last.id, claimed[0].version),)))
        assert await ended() == ()
        assert await claim(store, session, then) == ()

    @in_portal
    async def test_what_is_cancelled_has_ended_when_its_session_has(
        self, store: TaskStore, names: Names
    ) -> None:
        """Whether the session ends or expires; what was not cancelled is free, and has not ended."""
        if not self.follows_up:
            return
        queue, then, other = names.queue(), names.queue(), await names.begun(store)
        ending, lapsing = await names.begun(store), await names.begun(store)
        last = insert(then, awaits=4)
        await put(store, last, *(insert(queue, follow_up=last.id) for _ in range(4)))
        for session in (ending, lapsing):
            cancelled, _ = await claim(store, session, queue, limit=2)
            assert (await store.apply(Cancel((cancelled.id,)))).stopping == (cancelled.id,)
        assert await self._left(store, last.id) == (4, True)
        await store.apply(End(ending))
        assert await self._left(store, last.id) == (3, True)
        await store.apply(Begin(Session(lapsing, expiry=0)))
        assert lapsing in (await store.apply(Beat(other))).lapsed
        assert await self._left(store, last.id) == (2, True)
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.claimed) == (2, 0)

    @staticmethod
    async def _left(store: TaskStore, follow_up: str) -> tuple[int, bool]:
        (row,) = await store.apply(Select(ids=(follow_up,)))
        return row.awaits, row.waiting
