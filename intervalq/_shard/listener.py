"""Listens, while a shard is held, for the store's wake-up at the end of the hold, if it can send one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import anyio

from intervalq._keys.shards import behind
from intervalq._shard.store_time import StoreTime
from intervalq._timing.backends import spawn
from intervalq._timing.clock import Clock
from intervalq.rules import FOREVER, State
from intervalq.store import Store, Waking

log: Final = logging.getLogger("intervalq")

_MAX_LISTENERS: Final = 8
"""The maximum number of shards of one store that listen, with a connection each; any others only poll."""

_PATIENCE: Final = {True: 5_000_000, False: 500_000}
"""Poll interval while held: long if the store sends wake-ups (one may be lost), short if not."""

_LISTEN_AGAIN: Final = 30_000_000
"""A held shard that gets no wake-ups from the store tries again to listen after this time."""

_listening: Final[WeakKeyDictionary[Store, int]] = WeakKeyDictionary()


def _nobody() -> None:
    """Do nothing."""


class Listener:
    """Calls `wake` at each wake-up from `start` to `stop`, in a task of its own."""

    def __init__(self, store: Store, queue: str, wake: Callable[[], None], clock: Clock) -> None:
        self.hears = False
        """Whether wake-ups come. False: the store can't push, too many shards listen, or it disconnected."""
        self._store = store
        self._queue = queue
        self._wake = wake
        self._began = clock.now()
        self._clock = clock
        self._scope = anyio.CancelScope()
        self._settled = anyio.Event()

    async def start(self) -> None:
        """Start listening; return when wake-ups can come, or when it is clear that they won't."""
        store, counted = self._store, behind(self._store)
        if isinstance(store, Waking) and _listening.get(counted, 0) < _MAX_LISTENERS:
            _listening[counted] = _listening.get(counted, 0) + 1
            spawn(self._listen, store)
            await self._settled.wait()

    def stop(self) -> None:
        """Close the connection, and wake nobody any more."""
        self._wake = _nobody
        self._scope.cancel()

    def next_look(self, time: StoreTime, state: State | None) -> float:
        """When to look again whether the hold has ended."""
        poll = self._clock.now() + _PATIENCE[self.hears]
        until = state.held_until if state is not None else 0
        return min(poll, time.clock.surely(until)) if 0 < until < FOREVER else poll

    @property
    def is_in_vain(self) -> bool:
        """Whether to subscribe again: no wake-ups have come for a while."""
        return not self.hears and self._clock.now() - self._began > _LISTEN_AGAIN

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
            broke_off, self.hears = self.hears, False
            self._settled.set()
            _listening[behind(self._store)] -= 1
            if broke_off:  # otherwise nobody waits for wake-ups, and the pause in an outage must not end
                self._wake()
