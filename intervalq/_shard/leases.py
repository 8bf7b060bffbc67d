"""With `max_running`: says which jobs of a shard still run and which ended, for as long as any does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from intervalq._timing.backends import spawn
from intervalq._timing.wakeable_sleep import Nap
from intervalq.rules import Finish

if TYPE_CHECKING:
    from intervalq._shard.connection import Link

log: Final = logging.getLogger("intervalq")

LEASE: Final = 10_000_000
"""A job of a dead shard counts as running for at most this long, in microseconds."""


class Leases:
    """The running jobs of one shard. Does nothing at all for a queue without `max_running`."""

    def __init__(self, shard: Link) -> None:
        self._shard = shard
        self.running: set[int] = set()
        self._ended: set[int] = set()
        self._nap = Nap(shard.clock)
        self._telling = False
        self._told: anyio.Event | None = None  # somebody waits until there is nothing left to tell

    def started(self, ticket: int) -> None:
        """A job began; its lease was written by the step that told it to go."""
        self.running.add(ticket)
        self._tell()

    def ended(self, ticket: int) -> None:
        """A job ended, or a slot that was told to go won't be used."""
        if self.running:
            self.running.discard(ticket)
        if self._shard.is_limited:
            self._ended.add(ticket)
            self._tell()
            self._nap.wake()

    @property
    def matter(self) -> bool:
        """Whether the store has a lease of this shard, or may have."""
        return bool(self.running or self._ended)

    async def settle(self) -> None:
        """Tell the store of all that ended, if it can be told; else the leases lapse by themselves."""
        if self._ended:
            self._told = told = self._told or anyio.Event()
            self._tell()  # it may have been cancelled in the meantime, with its event loop
            self._nap.wake()
            await told.wait()

    def _tell(self) -> None:
        if not self._telling:
            self._telling = True
            spawn(self._keep_telling)

    async def _keep_telling(self) -> None:
        clock = self._shard.clock
        try:
            while self.running or self._ended:
                if not self._ended:
                    await self._nap.until(clock.now() + LEASE // 3)
                ended, running = tuple(sorted(self._ended)), tuple(sorted(self.running))
                try:
                    await self._shard.command(Finish(ended=ended, running=running, lease=LEASE))
                except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                    log.debug("queue %r: leases could not be renewed: %s", self._shard.queue, error)
                    if self._told is not None:
                        return
                    await self._nap.until(clock.now() + LEASE // 10)
                else:
                    self._ended.difference_update(ended)
                if self._told is not None and not self._ended:
                    self._told.set()
                    self._told = None
        finally:
            self._telling = False
            self._nap.end()
            if self._told is not None:
                self._told.set()
                self._told = None
