"""Part of the suite of task stores: fairness between queues and sessions, and random choices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from anyio.from_thread import BlockingPortal

from intervalq.errors import InboxFull
from intervalq.tasks.rules import SECOND, Begin, Change, Count, Delete, Modify, Select, Session, Work
from intervalq.tasks.store import SharingKeys, TaskStore
from intervalq.testing._suite import in_portal
from intervalq.testing._tasks.base import Names, TaskSuiteBase, claim, insert, put, refused


class SharingTests(TaskSuiteBase):
    """Several queues get equal shares, and no task blocks the others."""

    @pytest.mark.parametrize("limit", [1, 4, 10])
    def test_a_small_queue_is_not_held_up_by_a_large_one(
        self, portal: BlockingPortal, store: TaskStore, names: Names, limit: int
    ) -> None:
        """Of 300, 60 and 20 tasks, the 20 are done in the first third, the 60 in three quarters."""

        async def scenario() -> list[int]:
            sizes = {names.queue(): size for size in (300, 60, 20)}
            session = await names.begun(store)
            for queue, size in sizes.items():
                await put(store, *(insert(queue) for _ in range(size)))
            order: list[str] = []
            settled: tuple[Delete, ...] = ()
            while True:
                worked = await store.apply(Work(session, settled, queues=tuple(sizes), limit=limit))
                settled = tuple(Delete(row.id, row.version) for row in worked.claimed)
                order += [row.queue for row in worked.claimed]
                if not settled:
                    break
            assert {queue: order.count(queue) for queue in sizes} == sizes
            return [order[::-1].index(queue) for queue in sizes]

        _, middle, small = portal.call(scenario)
        assert small >= 380 * 2 / 3, "the small queue was not finished in the first third"
        assert middle >= 380 / 4, "the middle queue was not finished in three quarters"

    @pytest.mark.parametrize("limit", [1, 3])
    def test_keys_take_turns_whatever_their_backlogs(
        self, portal: BlockingPortal, store: TaskStore, names: Names, limit: int
    ) -> None:
        """A key's next task comes behind the first ones of other keys, however long it has waited itself."""

        async def scenario() -> int:
            queue, session = names.queue(), await names.begun(store)
            await put(store, *(insert(queue, key=f"large{key}") for key in range(20) for _ in range(30)))
            await put(store, *(insert(queue, key=f"late{key}") for key in range(3) for _ in range(2)))
            claimed = late = 0
            settled: tuple[Delete, ...] = ()
            while late < 6:
                worked = await store.apply(Work(session, settled, queues=(queue,), limit=limit))
                settled = tuple(Delete(row.id, row.version) for row in worked.claimed)
                claimed += len(settled)
                late += sum(row.key is not None and row.key.startswith("late") for row in worked.claimed)
            return claimed

        # Twice 23, on average; but a small claim begins at random. By age it would be nearly 600.
        assert portal.call(scenario) < 400

    def test_which_task_is_first_is_left_to_chance(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Claims begin at random, so that a task that never completes doesn't come first each time."""

        async def scenario() -> set[str]:
            queue, session = names.queue(), await names.begun(store)
            await put(store, *(insert(queue) for _ in range(100)))
            seen: set[str] = set()
            for _ in range(20):
                (row,) = await claim(store, session, queue)
                seen.add(row.id)
                await store.apply(Work(session, (Change(row.id, row.version),)))
            return seen

        assert len(portal.call(scenario)) > 1

    @in_portal
    async def test_the_first_tasks_are_claimed_before_the_last(self, store: TaskStore, names: Names) -> None:
        """The random choice is only among the first tasks."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, at=number * SECOND) for number in range(300)))
        for _ in range(20):
            (row,) = await claim(store, session, queue)
            assert row.at < 200 * SECOND
        rows = await claim(store, session, queue, limit=100)
        assert len(rows) == 100
        assert max(row.at for row in rows) < 250 * SECOND

    @pytest.mark.parametrize("most", [0, 1, 5])
    @in_portal
    async def test_sessions_of_a_consumer_hold_no_more_than_they_may(
        self, store: TaskStore, names: Names, most: int
    ) -> None:
        """The limit applies to all sessions of the consumer together; other sessions don't count."""
        queue, consumer = names.queue(), names.fresh()
        await put(store, *(insert(queue) for _ in range(20)))
        one, two = [await names.begun(store, consumer=consumer) for _ in range(2)]
        other = await names.begun(store, consumer=names.fresh())
        assert len(await claim(store, other, queue, limit=3)) == 3
        work: Callable[[str, int], Work] = lambda session, limit: Work(  # noqa: E731 - shorter so
            session, queues=(queue,), limit=limit, most=most
        )
        first = (await store.apply(work(one, 3))).claimed
        second = (await store.apply(work(two, 3))).claimed
        assert len(first) == min(3, most)
        assert len(second) == min(3, most - len(first))
        settled = tuple(Delete(row.id, row.version) for row in first)
        third = await store.apply(Work(one, settled, queues=(queue,), limit=9, most=most))
        assert len(third.claimed) == most - len(second)

    @in_portal
    async def test_a_session_that_begins_again_keeps_what_it_has(
        self, store: TaskStore, names: Names
    ) -> None:
        """The same session begins twice, as after a lost answer to `Begin`."""
        queue, session = names.queue(), await names.begun(store)
        await put(store, insert(queue))
        rows = await claim(store, session, queue)
        await store.apply(Begin(Session(session, expiry=3600 * SECOND)))
        assert (await store.apply(Work(session, (Delete(rows[0].id, rows[0].version),)))).lost == ()
        assert await store.apply(Select(queue=queue)) == ()

    @in_portal
    async def test_several_tasks_of_a_key_run_at_a_time_and_begin_in_order(
        self, store: TaskStore, names: Names
    ) -> None:
        """At most three; when one ends, whichever, the next begins. Another key is not affected."""
        assert isinstance(store, SharingKeys) == self.shares_keys
        if not self.shares_keys:
            return
        queue, session = names.queue(), await names.begun(store)
        rows = await put(store, *(insert(queue, n, key="shared", per_key=3) for n in range(8)))
        assert [row.waiting for row in rows] == [False] * 3 + [True] * 5
        await put(store, *(insert(queue, n, key="alone") for n in range(2)))
        order = [row.id for row in rows]
        running = list(await claim(store, session, queue, limit=10))
        alone = [row for row in running if row.key == "alone"]
        running = sorted((row for row in running if row.key == "shared"), key=lambda row: row.place)
        assert len(alone) == 1
        assert [row.id for row in running] == order[:3]
        for place, ends in enumerate((2, 0, 1, 1, 0), 3):
            done = running.pop(ends)
            await store.apply(Work(session, (Delete(done.id, done.version),)))
            (begun,) = await claim(store, session, queue, limit=10)
            assert begun.id == order[place]
            running.append(begun)
        await store.apply(Work(session, tuple(Delete(row.id, row.version) for row in running)))
        assert await claim(store, session, queue, limit=10) == ()

    @in_portal
    async def test_all_tasks_of_a_key_that_run_count_beside_what_replaces_the_others(
        self, store: TaskStore, names: Names
    ) -> None:
        """Three run; one replaces the others, and the next finds four there, of which one needn't wait."""
        if not self.shares_keys:
            return
        queue, session = names.queue(), await names.begun(store)
        await put(store, *(insert(queue, n, key="k", per_key=3) for n in range(5)))
        assert len(await claim(store, session, queue, limit=9)) == 3
        for inbox in (3, 4):
            newest = insert(queue, key="k", per_key=2, replace=True)
            command = Modify(inserts=(newest, insert(queue, key="k", inbox=inbox)))
            if inbox == 3:
                await refused(store, command, InboxFull)
            else:
                await store.apply(command)
        (stats,) = await store.apply(Count(names=(queue,)))
        assert (stats.size, stats.claimed, stats.inbox) == (5, 3, 2)

    @in_portal
    async def test_a_task_that_joins_a_key_is_next_when_the_same_command_ends_another(
        self, store: TaskStore, names: Names
    ) -> None:
        """One moves into the queue, behind two that may run, and one of these moves away."""
        if not self.shares_keys:
            return
        queue, elsewhere = names.queue(), names.queue()
        first, _ = await put(store, *(insert(queue, n, key="k", per_key=2) for n in range(2)))
        (third,) = await put(store, insert(elsewhere, key="k", per_key=2))
        changes = (Change(third.id, 0, queue=queue), Change(first.id, 0, queue=elsewhere))
        answer = (await store.apply(Modify(changes=changes))).changed
        assert [(row.place, row.waiting) for row in answer] == [(3, False), (1, False)]
        assert await store.apply(Select(ids=(third.id, first.id))) == answer

    @in_portal
    async def test_the_last_task_of_a_key_says_how_many_run_at_a_time(
        self, store: TaskStore, names: Names
    ) -> None:
        """More begin when the next one ends; fewer, when enough have ended. None overtakes another."""
        if not self.shares_keys:
            return
        queue, session = names.queue(), await names.begun(store)
        rows = await put(store, *(insert(queue, n, key="k") for n in range(2)))
        rows += await put(store, *(insert(queue, n, key="k", per_key=3) for n in range(3)))
        order, running = [row.id for row in rows], [*await claim(store, session, queue, limit=10)]
        assert [row.id for row in running] == order[:1]

        async def ended() -> list[str]:
            done = running.pop()
            await store.apply(Work(session, (Delete(done.id, done.version),)))
            begun = sorted(await claim(store, session, queue, limit=10), key=lambda row: row.place)
            running.extend(begun)
            return [row.id for row in begun]

        assert await ended() == order[1:4]
        (last,) = await put(store, insert(queue, key="k"))
        assert [await ended() for _ in range(4)] == [[], [], order[4:], [last.id]]
