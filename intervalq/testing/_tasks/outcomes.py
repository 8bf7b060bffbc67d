"""Part of the suite of task stores: the outcomes that kept tasks leave."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from intervalq.errors import DependencyError
from intervalq.tasks._spec.outcome import parsed
from intervalq.tasks.rules import (
    CANCELLED,
    DAY,
    DONE,
    FAILED,
    SECOND,
    Beat,
    Begin,
    Cancel,
    Change,
    Delete,
    End,
    Kept,
    Modify,
    OutcomeRow,
    Outcomes,
    Session,
    Work,
)
from intervalq.tasks.store import Keeping, TaskStore, Telling
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import PATIENCE, Names, TaskSuiteBase, claim, insert, put, refused

_HOUR = 3600 * SECOND


class OutcomeTests(TaskSuiteBase):
    """One handle, sequential commands; a store without outcomes only has to say so."""

    marks_cancelled: bool = True
    """See `OperatingTests`."""

    def test_a_store_that_keeps_outcomes_says_so(self, store: TaskStore) -> None:
        """`keeps_outcomes` of the suite and `Keeping` of the store agree."""
        assert isinstance(store, Keeping) == self.keeps_outcomes

    @in_portal
    async def test_an_acknowledgement_leaves_what_is_to_be_kept(self, store: TaskStore, names: Names) -> None:
        """By the task's own time, else by that of the acknowledgement, else nothing."""
        if not self.keeps_outcomes:
            return
        queue, session = names.queue(), await names.begun(store, host="h", pid=7)
        left: dict[str, OutcomeRow] = {}
        for n in range(8):
            (row,) = await put(store, insert(queue, n, keep_for=n % 2 * _HOUR, key="k" if n > 3 else None))
            await claim(store, session, queue)
            kept = Kept(2 * _HOUR, '{"r": "\\u00fc 1"}', 5) if n % 4 > 1 else None
            assert (await store.apply(Work(session, (Delete(row.id, row.version + 1, kept),)))).lost == ()
            found = await store.apply(Outcomes(ids=(row.id,)))
            assert len(found) == (n % 4 > 0)
            left |= {one.id: one for one in found}
            for one in found:
                assert one == OutcomeRow(
                    id=row.id, queue=queue, key=row.key, state=DONE, json=row.json,
                    result="" if kept is None else kept.result, attempts=1, errors="",
                    created=row.created, started=one.ended - 5 if kept else 0, ended=one.ended, host="h",
                    pid=7, until=one.ended + (1 if row.keep_for else 2) * _HOUR,
                )  # fmt: skip
                assert one.ended >= row.created
        listed = await store.apply(Outcomes(queue=queue))
        assert {one.id: one for one in listed} == left
        assert [one.ended for one in listed] == sorted((one.ended for one in listed), reverse=True)
        assert await store.apply(Outcomes(queue=queue, limit=2)) == listed[:2]
        assert await store.apply(Outcomes(queue=queue, state=FAILED)) == ()

    @in_portal
    async def test_many_acknowledgements_leave_many_outcomes(self, store: TaskStore, names: Names) -> None:
        """In one step, with different times and versions, and some that leave none."""
        if not self.keeps_outcomes:
            return
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, n, keep_for=n % 3 and n % 3 * DAY + n % 2) for n in range(60)))
        rows = await claim(store, session, queue, limit=60)
        renewed = tuple(Change(row.id, row.version, keep=True) for row in rows[::7])
        assert (await store.apply(Work(session, renewed))).lost == ()
        versions = {row.id: row.version for row in rows} | {one.id: one.version + 1 for one in renewed}
        done = tuple(Delete(row.id, versions[row.id], Kept(row.keep_for, row.json)) for row in rows)
        assert (await store.apply(Work(session, done))).lost == ()
        left = await store.apply(Outcomes(queue=queue))
        kept = {row.id: row for row in rows if row.keep_for}
        assert sorted(one.id for one in left) == sorted(kept)
        assert all(one.result == one.json == kept[one.id].json for one in left)
        assert all(one.until - one.ended == kept[one.id].keep_for for one in left)
        assert sorted(await store.apply(Outcomes(queue=queue, limit=60))) == sorted(left)

    @in_portal
    async def test_who_waits_for_outcomes_is_notified_once_all_are_there(
        self, store: TaskStore, names: Names
    ) -> None:
        """However the tasks end, alone or with many others."""
        if not self.tells_outcomes:
            return
        assert isinstance(store, Telling)
        queue, session = names.queue(), await names.begun(store)
        dead = f"{queue.removesuffix('.dead')}.dead"
        names.queues.append(dead)
        ids = [
            (await put(store, insert(queue, n, keep_for=_HOUR, key="k" if n == 3 else None)))[0].id
            for n in range(7)
        ]
        rows = {row.id: row for row in await claim(store, session, queue, limit=9)}
        done = [Delete(id_, rows[id_].version, Kept(0)) for id_ in ids]
        fails = Change(ids[4], rows[ids[4]].version, queue=dead, attempt=1, error="no")
        notified: list[str] = []
        waiting = {
            "some": [ids[0], ids[6]],
            "all": [*ids[:6], ids[0]],
            "many": ids[:3],
            "one": [ids[3]],
        }
        async with anyio.create_task_group() as group:
            for name, those in waiting.items():
                entered = anyio.Event()

                async def wait(
                    name: str = name, those: list[str] = those, entered: anyio.Event = entered
                ) -> None:
                    async with store.awaited(those) as ended:
                        entered.set()
                        await ended()
                        notified.append(name)

                group.start_soon(wait)
                await entered.wait()
            with anyio.fail_after(PATIENCE):
                assert (await store.apply(Work(session, tuple(done[:3])))).lost == ()
                while notified != ["many"]:
                    await checkpoint()
                assert (await store.apply(Work(session, (done[3],)))).lost == ()
                while notified != ["many", "one"]:
                    await checkpoint()
                assert (await store.apply(Work(session, (fails,)))).lost == ()
                await store.apply(Cancel((ids[5],)))
                await store.apply(Work(session, (Delete(ids[5], rows[ids[5]].version + 1),)))
                while notified != ["many", "one", "all"]:
                    await checkpoint()
                assert (await store.apply(Work(session, (done[6],)))).lost == ()
                while len(notified) < 4:
                    await checkpoint()
                group.cancel_scope.cancel()
        assert notified == ["many", "one", "all", "some"]

    @in_portal
    async def test_an_acknowledgement_that_is_refused_leaves_nothing(
        self, store: TaskStore, names: Names
    ) -> None:
        """Of another session, at another version, or of a change that can't be made."""
        if not self.keeps_outcomes:
            return
        queue, session, other = names.queue(), await names.begun(store), await names.begun(store)
        await put(store, *(insert(queue, n, keep_for=_HOUR) for n in range(4)))
        a, b, c, d = await claim(store, session, queue, limit=4)
        kept = Kept(_HOUR, "1")
        late = Delete(a.id, a.version - 1, kept), Delete(b.id, b.version, kept)
        assert (await store.apply(Work(session, late))).lost == (a.id,)
        assert (await store.apply(Work(other, (Delete(c.id, c.version, kept),)))).lost == (c.id,)
        missing = Delete(names.fresh(), 0)
        await refused(
            store, Modify(session, deletes=(Delete(d.id, d.version, kept), missing)), DependencyError
        )
        assert [one.id for one in await store.apply(Outcomes(queue=queue))] == [b.id]
        assert await store.apply(Outcomes(ids=(a.id, c.id, d.id))) == ()
        together = Modify(session, (insert(queue, "next"),), deletes=(Delete(d.id, d.version, kept),))
        await store.apply(together)
        (one,) = await store.apply(Outcomes(ids=(d.id,)))
        assert (one.state, one.result) == (DONE, "1")

    @in_portal
    async def test_the_errors_of_all_attempts_are_kept_until_the_task_fails(
        self, store: TaskStore, names: Names
    ) -> None:
        """Also that of a session which died, and from before a worker said that the task is kept."""
        if not self.keeps_outcomes:
            return
        queue, session, lost = names.queue(), await names.begun(store, host="h", pid=7), names.session()
        await put(store, insert(queue, 0, keep_for=_HOUR))
        (row,) = await claim(store, session, queue)
        await store.apply(Work(session, (Change(row.id, row.version, delay=0, attempt=1, error="one"),)))
        await store.apply(Begin(Session(lost, "host", 8, expiry=1)))
        await claim(store, lost, queue)
        while lost not in (await store.apply(Beat(session))).lapsed:
            pass
        while not (rows := await claim(store, session, queue)):
            pass
        dead = f"{queue.removesuffix('.dead')}.dead"
        names.queues.append(dead)
        change = Change(row.id, rows[0].version, queue=dead, attempt=3, error="three", kept=Kept(1, "", 4))
        assert (await store.apply(Work(session, (change,)))).lost == ()
        (left,) = await store.apply(Outcomes(ids=(row.id,)))
        assert (left.queue, left.state, left.attempts, left.result) == (queue, FAILED, 3, "")
        assert (left.host, left.pid, left.started) == ("h", 7, left.ended - 4)
        errors = parsed(left.errors)
        assert [one[1:] for one in errors] == [(1, "one"), (2, "host:8 was lost"), (3, "three")]
        times = [row.created, *(at for at, _, _ in errors)]
        assert times == sorted(times)
        assert times[-1] == left.ended

        back = Change(row.id, rows[0].version + 1, queue=queue, attempt=0)
        await store.apply(Modify(changes=(back,)))
        (again,) = await claim(store, session, queue)
        assert again.keep_for == _HOUR
        await store.apply(Work(session, (Delete(row.id, again.version),)))
        both = await store.apply(Outcomes(ids=(row.id,)))
        assert [(one.state, one.attempts) for one in both] == [(FAILED, 3), (DONE, 1)]
        assert both[1].errors == left.errors

    @in_portal
    async def test_the_error_of_what_was_no_attempt_is_not_kept(self, store: TaskStore, names: Names) -> None:
        """Of a claim that had not begun, or that goes on."""
        if not self.keeps_outcomes:
            return
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue, 0, keep_for=_HOUR))
        for number, begins in enumerate((0, 2), 1):
            work = Work(session, queues=(queue,), limit=1, begins=begins)
            (row,) = (await store.apply(work)).claimed
            goes_on = Change(row.id, row.version, error="goes on", keep=True)
            back = Change(row.id, row.version + 1, delay=0, attempt=number - 1, error=f"{number}")
            assert (await store.apply(Work(session, (goes_on,)))).lost == ()
            assert (await store.apply(Work(session, (back,)))).lost == ()
        (row,) = await claim(store, session, queue)
        await store.apply(Work(session, (Delete(row.id, row.version),)))
        (left,) = await store.apply(Outcomes(ids=(row.id,)))
        assert [one[1:] for one in parsed(left.errors)] == [(1, "2")]

    @in_portal
    async def test_a_worker_that_keeps_a_task_knows_only_its_last_error(
        self, store: TaskStore, names: Names
    ) -> None:
        """From then on, each one is kept, with its time."""
        if not self.keeps_outcomes:
            return
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue, 0), insert(queue, 1, error="zero", attempt=1))
        for number, kept in enumerate((None, None, Kept(_HOUR), Kept(2 * _HOUR)), 1):
            for row in await claim(store, session, queue, limit=2):
                part: Change | Delete = Change(
                    row.id, row.version, delay=0, attempt=number, error=f"{number}", kept=kept
                )
                if number == 1 and row.error:
                    part = Delete(row.id, row.version, Kept(_HOUR))
                assert (await store.apply(Work(session, (part,)))).lost == ()
        (row,) = await claim(store, session, queue)
        assert row.keep_for == _HOUR
        await store.apply(Work(session, (Delete(row.id, row.version),)))
        by_value = {one.json: parsed(one.errors) for one in await store.apply(Outcomes(queue=queue))}
        assert by_value["1"] == [(0, 1, "zero")]
        assert [one[1:] for one in by_value["0"]] == [(2, "2"), (3, "3"), (4, "4")]
        assert [one[0] > 0 for one in by_value["0"]] == [False, True, True]

    @in_portal
    async def test_what_is_cancelled_or_removed_leaves_that(self, store: TaskStore, names: Names) -> None:
        """Waiting, running, replaced by another, or deleted; a dead one had left that it failed."""
        if not self.keeps_outcomes:
            return
        queue, session = names.queue(), await names.begun(store)
        running, ending, waiting, deleted = (insert(queue, n, keep_for=_HOUR) for n in range(4))
        replaced, newest = (
            insert(queue, 4, key="k", keep_for=_HOUR),
            insert(queue, 5, key="k", replace=True, keep_for=_HOUR),
        )
        await put(store, running, ending)
        rows = await claim(store, session, queue, limit=2)
        await put(store, waiting, deleted, replaced)
        await put(store, newest)
        await store.apply(Cancel((running.id, waiting.id, ending.id)))
        versions = {row.id: row.version for row in rows}
        before = await store.apply(Outcomes(queue=queue))
        await store.apply(Modify(deletes=(Delete(deleted.id, 0),)))
        await store.apply(Work(session, (Delete(running.id, versions[running.id] + 1),)))
        await store.apply(End(session))
        left = await store.apply(Outcomes(queue=queue))
        expected = {running.id, ending.id, waiting.id, deleted.id, replaced.id}
        assert {one.id: (one.state, one.host) for one in left} == dict.fromkeys(expected, (CANCELLED, ""))
        assert len(left) == 5
        if self.marks_cancelled:
            assert {one.id for one in before} == {waiting.id, replaced.id}
        dead = f"{queue.removesuffix('.dead')}.dead"
        names.queues.append(dead)
        await store.apply(Modify(changes=(Change(newest.id, 0, queue=dead),)))
        await store.apply(Modify(deletes=(Delete(newest.id, 1),)))
        assert [one.state for one in await store.apply(Outcomes(ids=(newest.id,)))] == [FAILED]

    @in_portal
    async def test_an_outcome_is_there_until_its_time_and_its_day_is_dropped_after_that(
        self, store: TaskStore, names: Names
    ) -> None:
        """Nobody sees it any more from that instant on; its room is free once the day is over."""
        if not self.keeps_outcomes:
            return
        day = 12_345 * DAY
        queue, session = names.queue(), names.session()
        await store.apply(Begin(Session(session, expiry=1000 * DAY)), day)
        await put(store, *(insert(queue, n, keep_for=n * _HOUR) for n in (1, 23, 30)))
        for row in await claim(store, session, queue, limit=3):
            await store.apply(Work(session, (Delete(row.id, row.version),)), day)

        async def seen(now: int) -> list[str]:
            return sorted(one.json for one in await store.apply(Outcomes(queue=queue), now))

        assert await seen(day + _HOUR - 1) == ["1", "23", "30"]
        assert await seen(day + _HOUR) == ["23", "30"]
        await store.apply(Beat(session), day + DAY - 1)
        assert await seen(day) == ["1", "23", "30"]
        await store.apply(Beat(session), day + DAY)
        assert await seen(day) == ["30"]
        await store.apply(Beat(session), day + 2 * DAY)
        assert await seen(day) == []
