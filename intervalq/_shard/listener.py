"""Hears from a store, while a shard is held, that the hold has ended; does without where it can't."""

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
"""At most this many shards of one store listen at a time, each with a connection; more of them just ask."""

_listening: Final[WeakKeyDictionary[Store, int]] = WeakKeyDictionary()


def _nobody() -> None:
    """Wakes no one."""


class Listener:
    """Calls `wake` at each wake-up from `start` to `stop`, in a task of its own."""

    def __init__(self, store: Store, queue: str, wake: Callable[[], None]) -> None:
        self.hears = False
        """Whether wake-ups come. False: the store can't push, too many listen already, or it broke off."""
        self._store = store
        self._queue = queue
        self._wake = wake
        self._scope = anyio.CancelScope()
        self._settled = anyio.Event()

    async def start(self) -> None:
        """Return when it hears, or when it is clear that it won't."""
        store = self._store
        if isinstance(store, Waking) and _listening.get(store, 0) < _MOST:
            _listening[store] = _listening.get(store, 0) + 1
            spawn(self._listen, store)
            await self._settled.wait()

    def stop(self) -> None:
        """Let go of the connection, and wake nobody any more."""
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
        except Exception as error:  # noqa: BLE001 - it asks now and then instead
            log.debug("queue %r: no wake-ups: %s", self._queue, error)
        finally:
            self.hears = False
            self._settled.set()
            _listening[self._store] -= 1
            self._wake()
