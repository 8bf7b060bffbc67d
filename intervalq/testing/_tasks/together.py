"""Part of the suite of task stores: many threads at once, each with connections of its own."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from anyio.lowlevel import checkpoint

from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks.rules import Beat, Change, Count, Delete, End, Insert, Modify, Row, Select, Work
from intervalq.tasks.store import TaskStore
from intervalq.testing._tasks.base import PATIENCE, Names, TaskSuiteBase, claim, insert, on_its_own, put

A = TypeVar("A")


def in_threads(store_url: str, jobs: Sequence[Callable[[TaskStore], Awaitable[A]]]) -> list[A]:
    """Run all of them at once, each in a thread with an event loop and a handle of its own."""
    ready = threading.Barrier(len(jobs), timeout=PATIENCE)

    async def begin(job: Callable[[TaskStore], Awaitable[A]]) -> A:
        async def run(store: TaskStore) -> A:
            await store.apply(Count(names=("connect",)))
            ready.wait()
            with anyio.fail_after(PATIENCE):
                return await job(store)

        try:
            return await on_its_own(store_url, run)
        except BaseException:
            ready.abort()
            raise

    with ThreadPoolExecutor(len(jobs)) as threads:
        running = [threads.submit(anyio.run, begin, job) for job in jobs]
        return [job.result() for job in running]


class TogetherTests(TaskSuiteBase):
    """Promises that hold in any order of concurrent commands."""

    def test_each_task_is_claimed_once(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Eight claim 200 tasks, some one by one and some in batches, and settle them."""
        queue = names.queue()
        inserts = [insert(queue, number) for number in range(200)]
        portal.call(put, store, *inserts)

        def worker(limit: int) -> Callable[[TaskStore], Awaitable[list[Row]]]:
            async def work(mine: TaskStore) -> list[Row]:
                session = await names.begun(mine)
                claimed: list[Row] = []
                settled: tuple[Delete, ...] = ()
                while True:
                    worked = await mine.apply(Work(session, settled, queues=(queue,), limit=limit))
                    assert worked.lost == ()
                    settled = tuple(Delete(row.id, row.version) for row in worked.claimed)
                    claimed += worked.claimed
                    if not worked.claimed:
                        return claimed

            return work

        shares = in_threads(store_url, [worker(1 + 3 * (number % 3)) for number in range(8)])
        claimed = [row for share in shares for row in share]
        assert sorted(row.id for row in claimed) == sorted(part.id for part in inserts)
        assert {row.claims for row in claimed} == {1}
        if self.counts_versions:
            assert {row.version for row in claimed} == {1}
        assert portal.call(store.apply, Select(queue=queue)) == ()

    def test_a_dedupe_key_lets_one_in(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Eight insert with the same dedupe keys: each key gets one task, and all callers get its id."""
        queue = names.queue()
        keys = [f"d{number}" for number in range(10)]

        async def enter(mine: TaskStore) -> tuple[list[str], list[str]]:
            won, known_ids = [], []
            for key in keys:
                part = insert(queue, dedupe=key, dedupe_for=10**12)
                modified = await mine.apply(Modify(inserts=(part,)))
                assert len(modified.inserted) + len(modified.existing) == 1
                won += [row.id for row in modified.inserted]
                known_ids.append(modified.existing[0][1] if modified.existing else part.id)
            return won, known_ids

        outcomes = in_threads(store_url, [enter] * 8)
        there = sorted(row.id for row in portal.call(store.apply, Select(queue=queue)))
        assert len(there) == len(keys)
        assert sorted(id_ for won, _ in outcomes for id_ in won) == there
        assert len({tuple(known_ids) for _, known_ids in outcomes}) == 1, "they were told of different tasks"
        assert sorted(outcomes[0][1]) == there

    def test_an_id_lets_one_in(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Eight insert the same ids in different orders: each is inserted once, the others are refused."""
        queue = names.queue()
        ids = [names.fresh() for _ in range(5)]

        def enter(seed: int) -> Callable[[TaskStore], Awaitable[int]]:
            async def job(mine: TaskStore) -> int:
                order = Random(seed).sample(ids, len(ids))  # noqa: S311 - repeatable
                try:
                    await put(mine, *(insert(queue, seed, id_) for id_ in order))
                except DependencyError as error:
                    assert sorted(error.inserts) == sorted(ids)  # noqa: PT017 - on threads
                    return 0
                return 1

            return job

        assert sum(in_threads(store_url, [enter(seed) for seed in range(8)])) == 1
        rows = portal.call(store.apply, Select(queue=queue))
        assert (len(rows), len({row.json for row in rows})) == (5, 1)

    def test_a_key_is_held_by_one_and_its_order_kept(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Four sessions work 100 tasks of 5 keys, while some of the tasks are still being inserted."""
        queue = names.queue()
        lock = threading.Lock()
        running: set[str] = set()
        done: dict[str, list[int]] = {f"k{number}": [] for number in range(5)}
        overlaps: list[str] = []

        def part(number: int) -> Insert:
            return insert(queue, number, key=f"k{number % 5}")

        portal.call(put, store, *(part(number) for number in range(50)))

        async def bring(mine: TaskStore) -> None:
            for number in range(50, 100):
                await put(mine, part(number))

        async def work(mine: TaskStore) -> None:
            session = await names.begun(mine)
            held: tuple[Row, ...] = ()
            while sum(map(len, done.values())) < 100 or held:
                with lock:
                    running.difference_update(row.key or "" for row in held)
                settled = tuple(Delete(row.id, row.version) for row in held)
                worked = await mine.apply(Work(session, settled, queues=(queue,), limit=2))
                assert worked.lost == ()
                held = worked.claimed
                with lock:
                    for row in held:
                        key = row.key or ""
                        if key in running:
                            overlaps.append(key)
                        running.add(key)
                        done[key].append(json.loads(row.json))
                await checkpoint()

        in_threads(store_url, [work, work, work, work, bring])
        assert overlaps == []
        assert done == {f"k{number}": list(range(number, 100, 5)) for number in range(5)}
        assert portal.call(store.apply, Select(queue=queue)) == ()

    def test_no_change_is_lost(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Eight add to two of ten counters at a time, in any order, and retry after conflicts."""
        queue = names.queue()
        rows = portal.call(put, store, *(insert(queue, 0) for _ in range(10)))
        ids = [row.id for row in rows]

        def adder(seed: int) -> Callable[[TaskStore], Awaitable[None]]:
            async def add(mine: TaskStore) -> None:
                random = Random(seed)  # noqa: S311 - repeatable
                for _ in range(15):
                    while True:
                        pair = await mine.apply(Select(ids=tuple(random.sample(ids, 2))))
                        changes = tuple(
                            Change(row.id, row.version, json=str(json.loads(row.json) + 1)) for row in pair
                        )
                        try:
                            await mine.apply(Modify(changes=changes))
                            break
                        except DependencyError:
                            await checkpoint()

            return add

        in_threads(store_url, [adder(seed) for seed in range(8)])
        after = portal.call(store.apply, Select(queue=queue))
        assert sum(json.loads(row.json) for row in after) == 2 * 8 * 15
        if self.counts_versions:
            assert all(row.version == json.loads(row.json) for row in after)

    def test_a_lapsed_session_is_removed_once(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Concurrent heartbeats and a late settlement: each task is freed or settled once, never both."""
        for _ in range(5):
            queue = names.queue()
            lapsed, held = portal.call(_lapsed, store, names, queue)

            async def beat(mine: TaskStore) -> list[str]:
                return list((await mine.apply(Beat(names.session()))).lapsed)

            async def settle(
                mine: TaskStore, lapsed: str = lapsed, held: tuple[Row, ...] = held
            ) -> list[str]:
                worked = await mine.apply(
                    Work(lapsed, tuple(Delete(row.id, row.version) for row in held[:10]))
                )
                return list(worked.lost)

            *seen, lost = in_threads(store_url, [beat, beat, beat, settle])
            assert Counter(id_ for one in seen for id_ in one)[lapsed] <= 1
            rows = portal.call(store.apply, Select(queue=queue))
            assert {(row.version, row.session, row.claims, row.attempt) for row in rows} == {(2, None, 1, 1)}
            assert {row.id for row in rows} == {*lost, *(row.id for row in held[10:])}

    def test_the_lines_of_keys_stay_whole(
        self, portal: BlockingPortal, store: TaskStore, store_url: str, names: Names
    ) -> None:
        """Eight insert, move, replace, remove, claim and end at random: all but a key's first task wait."""
        queues = [names.queue(), names.queue()]
        keys = ("a", "b")

        def worker(seed: int) -> Callable[[TaskStore], Awaitable[None]]:
            async def work(mine: TaskStore) -> None:
                random = Random(seed)  # noqa: S311 - repeatable
                for _ in range(12):
                    session = await names.begun(mine)
                    parts = [
                        insert(
                            random.choice(queues),
                            seed,
                            key=random.choice(keys),
                            replace=random.random() < 0.2,
                        )
                        for _ in range(3)
                    ]
                    await put(mine, *parts)
                    claimed = await claim(mine, session, *queues, limit=3)
                    there = await mine.apply(Select(queue=random.choice(queues), limit=4))
                    free = [row for row in there if row.session is None]
                    changes = tuple(
                        Change(row.id, row.version, queue=random.choice(queues)) for row in free[:2]
                    )
                    deletes = tuple(Delete(row.id, row.version) for row in free[2:])
                    with suppress(DependencyError, InboxFull):
                        await mine.apply(Modify(changes=changes, deletes=deletes))
                    await mine.apply(Work(session, tuple(Delete(row.id, row.version) for row in claimed[:2])))
                    await mine.apply(End(session))

            return work

        in_threads(store_url, [worker(seed) for seed in range(8)])
        for queue in queues:
            rows = portal.call(store.apply, Select(queue=queue))
            for key in keys:
                line = sorted((row for row in rows if row.key == key), key=lambda row: row.place)
                assert len({row.place for row in line}) == len(line)
                assert [row.waiting for row in line] == [False, *[True] * (len(line) - 1)][: len(line)]
            assert {row.session for row in rows} <= {None}


async def _lapsed(store: TaskStore, names: Names, queue: str) -> tuple[str, tuple[Row, ...]]:
    """A session that has claimed 20 tasks and lapses at once."""
    session = await names.begun(store, expiry=1)
    await put(store, *(insert(queue) for _ in range(20)))
    return session, await claim(store, session, queue, limit=20)
