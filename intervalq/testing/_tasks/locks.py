"""Part of the suite of task stores: exclusive locks."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq.errors import UnsupportedOperation
from intervalq.tasks import rules
from intervalq.tasks._handle.tasks import Tasks
from intervalq.tasks.rules import SECOND, Acquire, Acquired, Command, Release
from intervalq.tasks.store import Locking, TaskStore
from intervalq.testing._tasks.base import PATIENCE, Names, TaskSuiteBase
from intervalq.testing._tasks.model import ModelTable

_SPANS = (1, 10, 1_000, 30 * SECOND)
_STEPS = (0, 0, 1, 5, 10, 999, 1_000, 30 * SECOND, -1, -10, -2_000, -3_600 * SECOND)
"""Far less than a day in all: how soon an old lock is forgotten differs between stores."""


class LockTests(TaskSuiteBase):
    """One at a time has a lock, and each holder has a higher number than those before."""

    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(seed=st.integers(0, 2**32))
    def test_every_answer_about_locks_is_that_of_the_rules(
        self, portal: BlockingPortal, store: TaskStore, names: Names, seed: int
    ) -> None:
        """Random commands at given times; now and then the clock is set back."""
        if not portal.call(self._has_commands, store):
            return
        portal.call(self._locks, store, names.fresh(), seed)

    async def _has_commands(self, store: TaskStore) -> bool:
        if isinstance(store, Locking):
            with pytest.raises(UnsupportedOperation):
                await store.apply(Release("a lock", "nobody"))
        return not isinstance(store, Locking)

    async def _locks(self, store: TaskStore, word: str, seed: int) -> None:
        random, model = Random(seed), ModelTable()  # noqa: S311 - repeatable on purpose
        now, done = 1_000_000_000 * SECOND, list[str]()
        for _ in range(60):
            now += random.choice(_STEPS)
            name, owner = random.choice((f"{word} ü", f"{word}-2")), random.choice("abc")
            command: Command[Any] = Release(name, owner)
            if random.random() < 0.75:
                command = Acquire(name, owner, random.choice(_SPANS), random.random() < 0.3)
            done.append(f"at {now}: {command}")
            answer = await store.apply(command, now)
            assert answer == rules.apply(model, command, now), "\n".join([f"seed {seed}", *done])

    def test_of_many_that_want_a_lock_one_has_it(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Nobody is left out, and the fencing numbers rise."""
        portal.call(self._many, store, names.fresh())

    async def _many(self, store: TaskStore, name: str) -> None:
        tasks, inside, fences = Tasks(store), list[int](), list[int]()

        async def worker(number: int) -> None:
            for _ in range(3):
                async with tasks.lock(name) as fence:
                    inside.append(number)
                    await anyio.sleep(0.001)
                    assert inside == [number]
                    inside.remove(number)
                    fences.append(fence)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(worker, number)
        assert len(fences) == 18
        assert fences == sorted(set(fences))

    def test_a_lock_that_is_not_refreshed_is_free_for_others(
        self, portal: BlockingPortal, store: TaskStore, names: Names
    ) -> None:
        """Its holder can't refresh it then, nor release the lock of the next holder."""

        async def expire(name: str) -> None:
            if not await self._has_commands(store):
                return
            first = await store.apply(Acquire(name, "first", 1))
            second = await _next(store, name)
            assert second.fence > first.fence > 0
            assert await store.apply(Acquire(name, "first", SECOND, refresh=True)) == Acquired(0)
            assert not await store.apply(Release(name, "first"))
            assert (await store.apply(Acquire(name, "second", SECOND))).fence == second.fence
            assert await store.apply(Release(name, "second"))

        portal.call(expire, names.fresh())


async def _next(store: TaskStore, name: str) -> Acquired:
    """The lock of the next holder, once the one before has expired."""
    with anyio.fail_after(PATIENCE):
        while True:
            got = await store.apply(Acquire(name, "second", 3600 * SECOND))
            if got.fence:
                return got
            await anyio.sleep(got.wait / 1e6)
