"""Exclusive locks on a real NATS."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import anyio
import pytest

from faults.proxy import Fault, Proxy, proxied
from intervalq import errors
from intervalq.tasks import Tasks
from intervalq.tasks.rules import SECOND
from intervalq.tasks.store import Lock
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats import locks as nats_locks
from intervalq_stores.nats.tasks import NATSTaskStore
from stores import lock_handles
from stores.lock_handles import Open

PATIENCE = 30

HOLDER = """
import sys, anyio
from intervalq.tasks import Tasks

async def main():
    async with Tasks(sys.argv[1]) as tasks, tasks.lock(sys.argv[2], expiry=2):
        print("held", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


name = lock_handles.name
opened = lock_handles.opened


@pytest.fixture
def url(nats_url: str) -> str:
    return nats_url


async def test_of_many_one_has_it(opened: Open, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting ones are notified when it is free; none polls."""
    monkeypatch.setattr(nats_locks, "_LOOK", 3600.0)
    inside: list[int] = []
    done: list[int] = []

    async def worker(number: int) -> None:
        tasks = opened()
        for _ in range(5):
            async with tasks.lock(name):
                inside.append(number)
                await anyio.sleep(0.001)
                assert inside == [number]
                inside.remove(number)
            done.append(number)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(worker, number)
    assert sorted(done) == sorted(list(range(6)) * 5)


async def test_other_names_are_other_locks(opened: Open, name: str) -> None:
    async with (
        opened().lock(name),
        opened().lock(f"{name}.2", timeout=0),
        opened().lock(f"{name}2", timeout=0),
    ):
        pass


async def test_it_is_free_after_an_error_and_after_a_cancellation(opened: Open, name: str) -> None:
    tasks, other = opened(), opened()
    with pytest.raises(ZeroDivisionError):
        async with tasks.lock(name):
            _ = 1 / 0
    async with other.lock(name, timeout=0):
        with pytest.raises(TimeoutError, match=name):
            async with tasks.lock(name, timeout=0):
                raise AssertionError
        with pytest.raises(TimeoutError):
            async with tasks.lock(name, timeout=0.05):
                raise AssertionError
    with anyio.move_on_after(0.05):
        async with tasks.lock(name):
            await anyio.sleep_forever()
    async with other.lock(name, timeout=0):
        pass


async def test_it_is_refreshed_for_as_long_as_it_is_held(
    opened: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held for longer than it would be without refreshes. A busy machine has two seconds for each."""
    order: list[str] = []
    times = 0
    enough = anyio.Event()
    refresh = nats_locks.NATSLock.refresh

    async def counted(lock: nats_locks.NATSLock) -> bool:
        nonlocal times
        done = await refresh(lock)
        times += 1
        if times == 4:
            enough.set()
        return done

    monkeypatch.setattr(nats_locks.NATSLock, "refresh", counted)

    async def wait() -> None:
        async with opened().lock(name):
            order.append("second")

    async with anyio.create_task_group() as group, opened().lock(name, expiry=3):
        group.start_soon(wait)
        await enough.wait()
        order.append("first")
    assert order == ["first", "second"]


async def test_it_expires_when_its_holder_is_killed(opened: Open, name: str, nats_url: str) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, nats_url, name, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    tasks = opened()
    with pytest.raises(TimeoutError):
        async with tasks.lock(name, timeout=0):
            raise AssertionError
    holder.kill()
    await holder.wait()
    async with tasks.lock(name, timeout=PATIENCE, expiry=1):
        pass


async def lose(tasks: Tasks, store: NATSTaskStore, other: Lock, name: str) -> None:
    """Hold a lock until it is taken away and given to another holder."""
    async with tasks.lock(name, expiry=1):
        sequence, _ = await store._stream.last(other._subject)  # type: ignore[attr-defined]
        assert await store._stream.remove(sequence)
        assert await other.acquire()
        await anyio.sleep_forever()


async def test_who_loses_it_is_stopped_and_told(opened: Open, name: str, nats_url: str) -> None:
    """When the old holder ends, it doesn't take the lock from the new one."""
    tasks, other = opened(), opened()
    async with aclosing(NATSTaskStore(nats_url)) as store:
        lock = store.lock(name, 60 * SECOND)
        with pytest.raises(errors.LockLost, match=name), anyio.fail_after(PATIENCE):
            await lose(tasks, store, lock, name)
        with pytest.raises(TimeoutError):
            async with other.lock(name, timeout=0):
                raise AssertionError
        await lock.release()
    async with other.lock(name, timeout=0):
        pass


async def be_cut_off(tasks: Tasks, proxy: Proxy, name: str) -> None:
    """Hold a lock, and lose the connection to the server."""
    async with tasks.lock(name, expiry=1):
        await proxy.begin(Fault.REFUSE)
        await anyio.sleep_forever()


async def test_who_can_not_refresh_it_stops_before_others_can_have_it(
    opened: Open, name: str, nats_url: str
) -> None:
    async with proxied(nats_url) as proxy, Tasks(proxy.url) as tasks:
        other = opened()
        with pytest.raises(errors.LockLost), anyio.fail_after(PATIENCE):
            await be_cut_off(tasks, proxy, name)
        await proxy.heal()
        async with other.lock(name, timeout=PATIENCE):
            pass


async def test_an_answer_that_was_lost_is_no_lock_that_is_lost(
    name: str, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request finds that it already has the lock, and so does a refresh; giving up frees it."""
    async with (
        proxied(nats_url) as proxy,
        aclosing(NATSTaskStore(proxy.url)) as store,
        aclosing(NATSTaskStore(nats_url)) as direct,
    ):
        lock, other = store.lock(name, 60 * SECOND), store.lock(name, 60 * SECOND)
        assert isinstance(lock, nats_locks.NATSLock)
        await store._stream.connection()
        await proxy.begin(Fault.SWALLOW)
        there = 0
        while not there:  # on a busy machine it may time out before it is sent
            with monkeypatch.context() as soon:
                soon.setattr(nats_server, "WITHIN", 0.2)  # others may take as long as they do
                with pytest.raises(errors.StoreTimeout):
                    await lock.acquire()
            there, _ = await direct._stream.last(lock._subject)
        await proxy.heal()
        assert not await other.acquire()
        assert await lock.acquire()
        assert await lock.refresh()
        await lock.release()
        assert await other.acquire()
        assert not await lock.refresh()
        await lock.release()  # which isn't its own
        assert not await lock.acquire()
        await other.release()
