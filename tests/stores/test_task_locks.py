"""Exclusive locks, as their users meet them, on every store but NATS, which has its own kind."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import errors
from intervalq.tasks import Tasks
from intervalq.tasks._lock import stored_lock
from intervalq.tasks._spec.locks import KEPT
from intervalq.tasks.rules import SECOND, Acquire, Command, Release, apply
from intervalq.tasks.sync import Tasks as BlockingTasks
from intervalq.testing._tasks.model import ModelTable
from intervalq_stores.memory._task_table import MemoryTable
from stores import lock_handles
from stores.lock_handles import Open

PATIENCE = 60

HOLDER = """
import sys, anyio
from intervalq.tasks import Tasks

async def main():
    async with Tasks(sys.argv[1]) as tasks, tasks.lock(sys.argv[2], expiry=2) as fence:
        print(fence, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""

name = lock_handles.name
opened = lock_handles.opened


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://locks"
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/tasks.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


async def test_it_is_free_after_an_error_and_after_a_cancellation(opened: Open, name: str) -> None:
    tasks, other = opened(), opened()
    with pytest.raises(ZeroDivisionError):
        async with tasks.lock(name):
            _ = 1 / 0
    async with other.lock(name, timeout=0), other.lock(f"{name}2", timeout=0):
        with pytest.raises(TimeoutError, match=name):
            async with tasks.lock(name, timeout=0):
                raise AssertionError
    with anyio.move_on_after(0.05):
        async with tasks.lock(name):
            await anyio.sleep_forever()
    async with other.lock(name, timeout=0):
        pass


async def test_who_waits_is_woken_by_the_release(
    opened: Open, name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No waiter polls, except on SQLite, which can't wake other processes."""
    if not url.startswith("sqlite"):
        monkeypatch.setattr(stored_lock, "_LOOK", 3600.0)
    order: list[int] = []
    waits = anyio.Event()
    acquire = stored_lock.StoredLock.acquire
    tries = 0

    async def noted(lock: stored_lock.StoredLock) -> bool:
        nonlocal tries
        got = await acquire(lock)
        tries += not got
        if tries == 2:  # the second one is made after it listens
            waits.set()
        return got

    monkeypatch.setattr(stored_lock.StoredLock, "acquire", noted)

    async def second() -> None:
        async with opened().lock(name, expiry=3600) as fence:
            order.append(fence)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group, opened().lock(name, expiry=3600) as fence:
            group.start_soon(second)
            if not url.startswith("sqlite"):
                await waits.wait()
            order.append(fence)
    assert order == sorted(set(order))
    assert len(order) == 2


async def test_it_expires_when_its_holder_is_killed(opened: Open, name: str, url: str) -> None:
    if url.startswith("memory"):
        return
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, url, name, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    before = int(await holder.stdout.readline())
    tasks = opened()
    with pytest.raises(TimeoutError):
        async with tasks.lock(name, timeout=0):
            raise AssertionError
    holder.kill()
    await holder.wait()
    async with tasks.lock(name, timeout=PATIENCE, expiry=1) as fence:
        assert fence > before


async def test_it_is_refreshed_for_as_long_as_it_is_held(opened: Open, name: str, url: str) -> None:
    """It is held for longer than it would be without refreshes: until it was refreshed four times."""
    times, enough, order = 0, anyio.Event(), list[str]()
    tasks = opened()
    store = tasks._here()
    do = store.apply

    async def counted(command: Command[Any], now: int | None = None) -> object:
        nonlocal times
        answer: object = await do(command, now)
        times += isinstance(command, Acquire) and command.refresh
        if times == 4:
            enough.set()
        return answer

    store.apply = counted  # type: ignore[method-assign, assignment]

    async def wait() -> None:
        async with opened().lock(name):
            order.append("second")

    async with anyio.create_task_group() as group, tasks.lock(name, expiry=3):
        group.start_soon(wait)
        await enough.wait()
        order.append("first")
    assert order == ["first", "second"]


async def be_cut_off(tasks: Tasks, name: str, order: list[str], held: anyio.Event) -> None:
    """Hold a lock, and be unable to refresh it."""
    store = tasks._here()
    do = store.apply

    async def away(command: Command[Any], now: int | None = None) -> object:
        if isinstance(command, Acquire) and command.refresh:
            raise errors.StoreUnavailable("the store", "it is away")
        return await do(command, now)

    store.apply = away  # type: ignore[method-assign, assignment]
    async with tasks.lock(name, expiry=1):
        held.set()
        try:
            await anyio.sleep_forever()
        finally:
            order.append("first ends")


async def test_who_can_not_refresh_it_stops_before_others_can_have_it(opened: Open, name: str) -> None:
    order, held = list[str](), anyio.Event()

    async def wait() -> None:
        await held.wait()
        async with opened().lock(name):
            order.append("second begins")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with pytest.raises(errors.LockLost), anyio.fail_after(PATIENCE):
            await be_cut_off(opened(), name, order, held)
    assert order == ["first ends", "second begins"]


async def lose(tasks: Tasks, other: Tasks, name: str, owner: list[str]) -> None:
    """Hold a lock until it is taken away, and given to another."""
    store = other._here()
    async with tasks.lock(name, expiry=1):
        assert await store.apply(Release(name, owner[-1]))
        assert (await store.apply(Acquire(name, "other", 3600 * SECOND))).fence
        await anyio.sleep_forever()


async def test_who_loses_it_is_stopped_and_told(
    opened: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the old holder ends, it doesn't take the lock from the new one."""
    tasks, other = opened(), opened()
    owners: list[str] = []
    token = secrets.token_hex

    def noted(size: int) -> str:
        owners.append(token(size))
        return owners[-1]

    monkeypatch.setattr(secrets, "token_hex", noted)
    with pytest.raises(errors.LockLost, match=name), anyio.fail_after(PATIENCE):
        await lose(tasks, other, name, owners)
    with pytest.raises(TimeoutError):
        async with other.lock(name, timeout=0):
            raise AssertionError
    assert await other._here().apply(Release(name, "other"))
    async with other.lock(name, timeout=0):
        pass


# --- the rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [ModelTable, MemoryTable])
def test_names_cost_nothing_a_day_after_their_last_use(table: Callable[[], ModelTable]) -> None:
    there, now = table(), 10**15
    for number in range(100):
        apply(there, Acquire(f"used once {number}", "owner", 10), now + number)
        apply(there, Release(f"used once {number}", "owner"), now + number)
    for number in range(100):
        apply(there, Acquire("still used", "owner", 10), now + KEPT + 200 + 20 * number)
    left = [number for number in range(100) if there.lock(f"used once {number}") is not None]
    assert left == []


def test_numbers_rise_although_the_clock_was_set_back() -> None:
    there, now = MemoryTable(), 10**15
    first = apply(there, Acquire("lock", "one", 10), now)
    assert apply(there, Acquire("lock", "two", 10), now - 3600 * SECOND).wait == 10, "and no longer"
    second = apply(there, Acquire("lock", "two", 10), now - 3600 * SECOND + 10)
    assert second.fence == first.fence + 1
    assert apply(there, Release("lock", "two"), now - 1800 * SECOND)
    third = apply(there, Acquire("lock", "three", 10), now - 1800 * SECOND)
    assert third.fence == second.fence + 1


def test_an_answer_that_was_lost_is_no_lock_that_is_lost() -> None:
    """An owner that asks again has it, with the same number."""
    there, now = MemoryTable(), 10**15
    first = apply(there, Acquire("lock", "one", 10), now)
    again = apply(there, Acquire("lock", "one", 10), now + 9)
    assert again == first
    assert apply(there, Acquire("lock", "two", 10), now + 18).wait == 1


# --- blocking code ------------------------------------------------------------------------------------


def test_blocking_code_holds_it_too(url: str, name: str) -> None:
    with BlockingTasks(url) as tasks, BlockingTasks(url) as others:
        with tasks.lock(name) as first, pytest.raises(TimeoutError, match=name), others.lock(name, timeout=0):
            raise AssertionError
        with pytest.raises(ZeroDivisionError), others.lock(name, timeout=0) as second:
            _ = 1 / 0
        with tasks.lock(name, timeout=0) as third:
            assert first < second < third
        with pytest.raises(errors.InvalidName), tasks.lock("no name"):
            raise AssertionError
