"""An exclusive lock by the commands `Acquire` and `Release`, which all stores of tasks but NATS have."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import anyio

from intervalq.errors import StoreError, UnsupportedOperation
from intervalq.store import stopwatch
from intervalq.tasks._spec.commands import Acquire, Release, waiters_of
from intervalq.tasks.store import Lock, TaskStore, Waking

_FIRST: Final = 0.005
"""Seconds until the second attempt of a waiter that nobody wakes. The pauses double up to `_LAST`."""

_LAST: Final = 0.25

_LOOK: Final = 1.0
"""Seconds between two attempts of a waiter that is woken: a wake-up can be lost."""


class StoredLock(Lock):
    """A lock that is held or wanted, in a store that has no locks of its own kind."""

    def __init__(self, store: TaskStore, name: str, expiry: int) -> None:
        self._store = store
        self._name = name
        self._expiry = expiry
        self._owner = secrets.token_hex(8)
        self._left = 0  # microseconds until the holder's lock expires
        self.expires = 0
        self.fence = 0

    async def acquire(self) -> bool:
        """See `Lock.acquire`."""
        return await self._extend(refresh=False)

    async def refresh(self) -> bool:
        """See `Lock.refresh`."""
        return stopwatch() < self.expires and await self._extend(refresh=True)

    async def release(self) -> None:
        """See `Lock.release`."""
        await self._store.apply(Release(self._name, self._owner))

    async def _extend(self, *, refresh: bool) -> bool:
        sent = stopwatch()
        got = await self._store.apply(Acquire(self._name, self._owner, self._expiry, refresh))
        self._left = got.wait
        if not got.fence:
            return False
        self.expires, self.fence = sent + self._expiry, got.fence
        return True

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Lock.waiting`."""
        async with AsyncExitStack() as stack:
            freed = self._paused()
            if isinstance(self._store, Waking):
                wakeups = self._store.wakeups(waiters_of(self._name))
                with suppress(StoreError, UnsupportedOperation):  # a pooler, for example, passes none on
                    freed = self._woken(await stack.enter_async_context(wakeups))
            yield freed

    def _woken(self, woken: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        pause = self._paused()

        async def freed() -> None:
            try:
                with anyio.move_on_after(min(_LOOK, self._left / 1e6)):
                    await woken()
            except StoreError:  # the connection for wake-ups is lost
                await pause()

        return freed

    def _paused(self) -> Callable[[], Awaitable[None]]:
        longest = _FIRST

        async def freed() -> None:
            nonlocal longest
            pause = random.uniform(longest / 2, longest)  # noqa: S311 - no secret
            longest = min(_LAST, 2 * longest)
            await anyio.sleep(min(pause, self._left / 1e6))

        return freed
