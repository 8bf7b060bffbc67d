"""Listens, while a shard is held, for the store's wake-up at the end of the hold, if it can send one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import anyio

from intervalq._timing.backends import spawn
from intervalq.store import Store, Waking

log: Final = logging.getLogger("intervalq")

_MOST: Final = 8
"""The most shards of one store that listen at a time, each with a connection; any others only poll."""

_listening: Final[WeakKeyDictionary[Store, int]] = WeakKeyDictionary()


def _nobody() -> None:
    """Do nothing."""


class Listener:
    """Calls `wake` at each wake-up from `start` to `stop`, in a task of its own."""

    def __init__(self, store: Store, queue: str, wake: Callable[[], None]) -> None:
        self.hears = False
        """Whether wake-ups come. False: the store can't push, too many shards listen, or it disconnected."""
        self._store = store
        self._queue = queue
        self._wake = wake
        self._scope = anyio.CancelScope()
        self._settled = anyio.Event()

    async def start(self) -> None:
        """Start listening; return when wake-ups can come, or when it is clear that they won't."""
        store = self._store
        if isinstance(store, Waking) and _listening.get(store, 0) < _MOST:
            _listening[store] = _listening.get(store, 0) + 1
            spawn(self._listen, store)
            await self._settled.wait()

    def stop(self) -> None:
        """Close the connection, and wake nobody any more."""
        self._wake = _nobody
        self._scope.cancel()

    async def _listen(self, store: Waking) -> None:
        try:
            with self._scope:
                async with store.wakeups(self._queue) as woken:
                    self.hears = True
                    self._settled.set()
                    while True:
                        await woken()
                        self._wake()
        except Exception as error:  # noqa: BLE001 - the shard polls instead
            log.debug("queue %r: no wake-ups: %s", self._queue, error)
        finally:
            self.hears = False
            self._settled.set()
            _listening[self._store] -= 1
            self._wake()
