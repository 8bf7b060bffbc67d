"""Part of the suite of task stores: commands that are refused, with which errors, and change nothing."""

from __future__ import annotations

from typing import Any

from intervalq.errors import DependencyError, InboxFull, UnsupportedOperation
from intervalq.tasks.rules import (
    SECOND,
    Change,
    Command,
    Count,
    Delete,
    Depend,
    Kept,
    Modify,
    Outcomes,
    Row,
    Select,
    Work,
)
from intervalq.tasks.store import TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, claim, insert, put, refused, value_of


def failures(error: DependencyError) -> dict[str, list[str]]:
    """The non-empty lists of an error."""
    fields = ("inserts", "changes", "deletes", "depends", "claims")
    return {field: sorted(getattr(error, field)) for field in fields if getattr(error, field)}


class RefusalTests(TaskSuiteBase):
    """A refused command changes nothing."""

    @in_portal
    async def test_an_id_is_taken_only_once(self, store: TaskStore, names: Names) -> None:
        """Ids are unique over all queues; an insert that may be left out is, and the rest is done."""
        queue, other = names.queue(), names.queue()
        mine = names.fresh()
        modified = await store.apply(Modify(inserts=(insert(queue, 1, mine),)))
        assert ([row.id for row in modified.inserted], modified.changed) == ([mine], ())
        for where in (queue, other):
            error = await refused(store, Modify(inserts=(insert(where, 2, mine),)), DependencyError)
            assert failures(error) == {"inserts": [mine]}
        skipped = await store.apply(Modify(inserts=(insert(other, 2, mine, skip=True),)))
        assert (skipped.inserted, skipped.existing) == ((), ((mine, mine),))
        (more,) = await put(store, insert(other))
        both = (insert(queue, 2, mine, skip=True), insert(queue, 3))
        modified = await store.apply(Modify(inserts=both, deletes=(Delete(more.id, 0),)))
        assert [row.id for row in modified.inserted] == [both[1].id]
        mixed = (insert(queue, 2, mine, skip=True), insert(queue, 3, both[1].id))
        error = await refused(store, Modify(inserts=mixed), DependencyError)
        assert failures(error) == {"inserts": [both[1].id]}
        assert await value_of(store, mine) == 1
        assert [stats.size for stats in await store.apply(Count(names=(queue, other)))] == [2]

    @in_portal
    async def test_everything_that_failed_is_listed_and_nothing_is_done(
        self, store: TaskStore, names: Names
    ) -> None:
        """All kinds of failure in one set of changes, with one of each kind that would have worked."""
        queue = names.queue()
        mine, theirs = await names.begun(store), await names.begun(store)
        await put(store, *(insert(queue, n) for n in range(3)))
        held = [row.id for row in await claim(store, theirs, queue, limit=3)]
        free = [row.id for row in await put(store, *(insert(queue, n) for n in range(12)))]
        before = await store.apply(Select(queue=queue))
        good = Modify(
            session=mine,
            inserts=(insert(queue),),
            changes=(Change(free[0], 0, json="7"),),
            deletes=(Delete(free[1], 0),),
            depends=(Depend(free[2], 0), Depend(held[2], 1)),
        )
        bad = Modify(
            session=mine,
            inserts=(*good.inserts, insert(queue, id=free[3]), insert(queue, id=free[4])),
            changes=(
                *good.changes,
                Change(free[5], 1),
                Change("gone", 0),
                Change(held[0], 1, json="8"),
                Change(free[9], 0, keep=True),
            ),
            deletes=(*good.deletes, Delete(free[6], -1), Delete("gone too", 0), Delete(held[1], 1)),
            depends=(*good.depends, Depend(free[7], 5), Depend("never there", 0)),
        )
        error = await refused(store, bad, DependencyError)
        assert failures(error) == {
            "inserts": sorted([free[3], free[4]]),
            "changes": sorted([free[5], "gone"]),
            "deletes": sorted([free[6], "gone too"]),
            "depends": sorted([free[7], "never there"]),
            "claims": sorted([held[0], held[1], free[9]]),
        }
        assert await store.apply(Select(queue=queue)) == before
        modified = await store.apply(good)
        assert (len(modified.inserted), len(modified.changed)) == (1, 1)
        assert await store.apply(Select(ids=(free[1],))) == ()

    @in_portal
    async def test_each_kind_of_failure_by_itself_undoes_the_rest(
        self, store: TaskStore, names: Names
    ) -> None:
        """An id at another version is refused too; `force` checks no version."""
        queue, mine, theirs = names.queue(), await names.begun(store), await names.begun(store)
        await put(store, insert(queue))
        (held,) = await claim(store, theirs, queue)
        (free,) = await put(store, insert(queue))
        cases: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
            ({"inserts": (insert(queue, id=free.id),)}, {"inserts": [free.id]}),
            ({"changes": (Change(free.id, 1),)}, {"changes": [free.id]}),
            ({"deletes": (Delete(free.id, 1),)}, {"deletes": [free.id]}),
            ({"deletes": (Delete("gone", 0),)}, {"deletes": ["gone"]}),
            ({"depends": (Depend(held.id, 0),)}, {"depends": [held.id]}),
            ({"changes": (Change(held.id, 1),)}, {"claims": [held.id]}),
            ({"deletes": (Delete(held.id, 1),)}, {"claims": [held.id]}),
            ({"deletes": (Delete(held.id, 0),)}, {"deletes": [held.id]}),
        ]
        for session in (mine, ""):
            for parts, expected in cases:
                more = {"inserts": (insert(queue),), **parts}
                error = await refused(store, Modify(session, **more), DependencyError)
                assert failures(error) == expected
        assert {row.id for row in await store.apply(Select(queue=queue))} == {held.id, free.id}
        await store.apply(Modify(deletes=(Delete(held.id, 7), Delete(free.id, 7)), force=True))
        assert await store.apply(Select(queue=queue)) == ()

    @in_portal
    async def test_a_claim_that_was_lost_settles_nothing(self, store: TaskStore, names: Names) -> None:
        """Each part is refused on its own; the current holder keeps the task."""
        queue, first, second = names.queue(), await names.begun(store), await names.begun(store)
        rows = await put(store, *(insert(queue, n) for n in range(4)))
        claimed = {row.id: row for row in await claim(store, first, queue, limit=4)}
        taken = rows[1].id
        await store.apply(Modify(changes=(Change(taken, 1),), force=True))
        (again,) = await claim(store, second, queue)
        assert (again.id, again.version, again.claims) == (taken, 3, 2)
        settled = (
            Delete(rows[0].id, 1),
            Delete(taken, 1),
            Change(rows[2].id, 1, json='"again"', delay=3600 * SECOND, error="failed"),
            Delete(rows[3].id, 0),
        )
        worked = await store.apply(Work(first, settled))
        assert (worked.alive, sorted(worked.lost)) == (True, sorted([taken, rows[3].id]))
        (changed, kept) = await store.apply(Select(ids=(rows[2].id, rows[3].id)))
        assert (changed.version, changed.session, changed.error, changed.attempt) == (
            2,
            None,
            "failed",
            1,
        )
        assert kept == claimed[kept.id]
        assert await store.apply(Select(session=second)) == (again,)
        # At the right version, but of somebody else, or of nobody.
        for row in (again, changed):
            for part in (Delete(row.id, row.version), Change(row.id, row.version, json="1")):
                assert (await store.apply(Work(first, (part,)))).lost == (row.id,)
        assert await store.apply(Select(ids=(again.id, changed.id))) == (again, changed)

    @in_portal
    async def test_what_a_store_does_not_have_is_refused_before_anything_is_done(
        self, store: TaskStore, names: Names
    ) -> None:
        """Outcomes, several tasks of a key, batches: a store that ignored them would break promises."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue), insert(queue))
        rows = await claim(store, session, queue, limit=2)
        for command in self._beyond(queue, session, *rows):
            await refused(store, command, UnsupportedOperation)
        assert {row.id for row in await store.apply(Select(queue=queue))} == {row.id for row in rows}
        done = tuple(Delete(row.id, row.version) for row in rows)
        assert (await store.apply(Work(session, done))).lost == ()

    def _beyond(self, queue: str, session: str, row: Row, other: Row) -> list[Command[Any]]:
        """Commands that ask for what the store doesn't have, as the suite says."""
        kept = Kept(SECOND)
        found: list[Command[Any]] = []
        inserts = []
        if not self.keeps_outcomes:
            change, delete = Change(row.id, row.version, kept=kept), Delete(row.id, row.version, kept)
            inserts += [insert(queue, keep_for=SECOND)]
            found += [Modify(session, deletes=(delete,)), Modify(session, changes=(change,)), Outcomes()]
            found += [Work(session, (Delete(other.id, other.version), part)) for part in (change, delete)]
        if not self.shares_keys:
            inserts += [insert(queue, key="k", per_key=2)]
        if not self.follows_up:
            inserts += [insert(queue, follow_up=row.id), insert(queue, awaits=1)]
        return [*found, *(Modify(inserts=(insert(queue), part)) for part in inserts)]

    @in_portal
    async def test_an_inbox_that_is_full_refuses_all(self, store: TaskStore, names: Names) -> None:
        """The error names it, and the rest of the command isn't done either."""
        queue = names.queue()
        first, *_ = await put(store, *(insert(queue, n, key="ü", inbox=2) for n in range(3)))
        command = Modify(inserts=(insert(queue), insert(queue, key="ü", inbox=2)))
        error = await refused(store, command, InboxFull)
        assert (error.queue, error.key, error.limit) == (queue, "ü", 2)
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.ready, stats.inbox) == (3, 1, 2)
        (newest,) = await put(store, insert(queue, "newest", key="ü", replace=True))
        left = (newest,) if self.sees_claims else (first, newest)
        assert self.comparable(await store.apply(Select(queue=queue))) == self.comparable(left)

    @in_portal
    async def test_an_inbox_has_room_for_those_that_went_from_its_middle(
        self, store: TaskStore, names: Names
    ) -> None:
        """Tasks deleted or moved away, earlier or by the same command; the others keep their order."""
        queue, elsewhere = names.queue(), names.queue()
        session = await names.begun(store)
        rows = await put(store, *(insert(queue, n, key="k") for n in range(6)))
        moved = Change(rows[3].id, 0, queue=elsewhere)
        await store.apply(Modify(deletes=(Delete(rows[1].id, 0),), changes=(moved,)))
        error = await refused(store, Modify(inserts=(insert(queue, key="k", inbox=3),)), InboxFull)
        assert error.limit == 3
        more = insert(queue, 6, key="k", inbox=3)
        await store.apply(Modify(inserts=(more,), deletes=(Delete(rows[4].id, 0),)))
        assert len(await put(store, insert(elsewhere, key="k", inbox=1))) == 1
        await refused(store, Modify(inserts=(insert(elsewhere, key="k", inbox=1),)), InboxFull)
        comes = Change(rows[5].id, 0, queue=elsewhere)
        third = Modify(inserts=(insert(elsewhere, key="k", inbox=2),), changes=(comes,))
        await refused(store, third, InboxFull)
        order: list[str] = []
        while claimed := await claim(store, session, queue):
            order += [row.id for row in claimed]
            await store.apply(Work(session, tuple(Delete(row.id, row.version) for row in claimed)))
        assert order == [rows[0].id, rows[2].id, rows[5].id, more.id]
