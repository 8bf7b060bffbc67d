"""An exclusive lock while a context is open: acquired, refreshed, and the block cancelled if it is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import anyio

from intervalq._timing.heartbeat import Heartbeat
from intervalq.errors import LockLost, StoreError, StoreUnavailable
from intervalq.store import stopwatch
from intervalq.tasks._lock.stored_lock import StoredLock
from intervalq.tasks.store import Lock, Locking, TaskStore

_BEATS: Final = 3
"""How many times a lock is refreshed within its expiry, so that one or two refreshes may fail."""

_MARGIN: Final = 0.1
"""The part of the expiry that is left when the code under a lock that can't be refreshed is cancelled.

The code must have ended before somebody else can have the lock."""

_PAUSE: Final = 0.02
"""The part of the expiry between two attempts to refresh a lock while the store is away."""

_FAREWELL: Final = 5.0
"""Seconds that the release may take; after that, the lock is left to expire."""


@asynccontextmanager
async def hold(store: TaskStore, name: str, expiry: float, timeout: float | None) -> AsyncIterator[int]:
    """See `Tasks.lock`. Times are in seconds."""
    micros = round(expiry * 1e6)
    lock = store.lock(name, micros) if isinstance(store, Locking) else StoredLock(store, name, micros)
    try:
        await _acquire(lock, name, timeout)
        lost = False
        error: BaseException | None = None
        async with anyio.create_task_group() as group:

            async def keep() -> None:
                nonlocal lost
                await Heartbeat(partial(_refresh, lock, expiry), expiry, _BEATS).run()
                lost = True
                group.cancel_scope.cancel()

            group.start_soon(keep)
            try:
                yield lock.fence
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as raised:  # noqa: BLE001 - it is raised below, without an exception group
                error = raised
            group.cancel_scope.cancel()
        if lost:
            raise LockLost(name) from error
        if error is not None:
            raise error
    finally:
        with anyio.move_on_after(_FAREWELL, shield=True):
            with suppress(StoreUnavailable):  # it expires by itself
                await lock.release()


async def _acquire(lock: Lock, name: str, timeout: float | None) -> None:
    got = await lock.acquire()
    with anyio.move_on_after(timeout):
        async with lock.waiting() as freed:
            while not (got := got or await lock.acquire()):
                await freed()
    if not got:
        raise TimeoutError(f"somebody else holds the lock {name!r}: it was not free within {timeout:g} s")


async def _refresh(lock: Lock, expiry: float) -> bool:
    """Refresh the lock, repeatedly while the store is away; False: it is lost, or will be any moment."""
    with anyio.move_on_after((lock.expires - stopwatch()) / 1e6 - expiry * _MARGIN):
        while True:
            try:
                return await lock.refresh()
            except StoreError:  # it may be back in time
                await anyio.sleep(expiry * _PAUSE)
    return False
