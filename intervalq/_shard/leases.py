"""With `max_running`: renews the leases of a shard's running jobs, and removes those of ended jobs.

This doesn't use `Heartbeat`. The command that renews leases also reports ended jobs, so it is sent early when
a job ends, and periodically only while jobs run. Its times are on the shard's own clock. A loss of the leases
needs no report of its own: the answer to any command shows that the record is gone, and `forget` is called.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import anyio

from intervalq._timing.backends import spawn
from intervalq._timing.clock import Clock
from intervalq._timing.wakeable_sleep import WakeableSleep
from intervalq.rules import FOREVER, Answer, Command, Finish, Slot, State

log: Final = logging.getLogger("intervalq")

LEASE: Final = 10_000_000
"""A job of a dead shard counts as running for at most this long, in microseconds."""

_RENEWED: Final = LEASE // 3
"""How long after a report leases are renewed."""

_AGAIN: Final = LEASE // 10
"""How long after a report without an answer the next one is sent. A store waits five seconds for an answer,
so losing a single report loses no lease."""


class Leases:
    """The running jobs of one shard. It does nothing for a queue without `max_running`.

    Args:
        queue: its name, for the log.
        send: sends a command to the queue's record.
        is_limited: whether the queue has a limit of running jobs.
        clock: the process's own clock.
    """

    def __init__(
        self,
        queue: str,
        send: Callable[[Command], Awaitable[Answer]],
        is_limited: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._send = send
        self._is_limited = is_limited
        self._clock = clock
        self.running: set[int] = set()
        self._ended: set[int] = set()
        self._sleep = WakeableSleep(clock)
        self._at = FOREVER  # when the next report is sent, if the task that sends them runs
        self._lock = anyio.Lock(fast_acquire=True)  # each report has what the one before it left

    def started(self, ticket: int) -> None:
        """Note that a job began; its lease was written by the step that granted its slot."""
        self.running.add(ticket)
        self._report_by(self._clock.now() + _RENEWED)

    def ended(self, ticket: int) -> None:
        """Note that a job ended, or that a granted slot won't be used."""
        if self.running:
            self.running.discard(ticket)
        if self._is_limited():
            self._ended.add(ticket)
            self._report_by(0)

    def unused(self, slots: Iterable[Slot], state: State | None) -> None:
        """Note that these slots won't be used: with a limit, the granted ones count as running jobs."""
        if state is not None and state.settings.max_running:
            for slot in slots:
                if slot.ticket <= state.current:
                    self.ended(slot.ticket)

    def wanted(self, ticket: int) -> None:
        """Note that a slot is to be granted again, so that it keeps its lease."""
        self._ended.discard(ticket)

    def forget(self) -> None:
        """Note that the record is gone. In a recreated one, the same tickets may belong to others' jobs."""
        self.running.clear()
        self._ended.clear()

    @property
    def matter(self) -> bool:
        """Whether the store has leases of this shard, or may have some."""
        return bool(self.running or self._ended)

    async def settle(self) -> None:
        """Report all ended jobs to the store, unless it can't be reached."""
        async with self._lock:  # the report under way may be about them
            if self._ended:
                await self._tell()

    async def close(self) -> None:
        """Report all ended jobs for the last time; if the store can't be reached, their leases expire."""
        await self.settle()
        self._ended.clear()

    def _report_by(self, at: int) -> None:
        """Send a report at this instant, or before."""
        if self._at == FOREVER:
            spawn(self._report)
        if at < self._at:
            self._at = at
            if self._sleep.is_on:  # otherwise a request is in flight, and the next one needs no wake-up
                self._sleep.wake()

    async def _report(self) -> None:
        try:
            while self.running or self._ended:
                await self._sleep.until(self._at)
                async with self._lock:
                    if self._at <= self._clock.now():
                        await self._tell()
        finally:
            self._at = FOREVER
            self._sleep.end()

    async def _tell(self) -> None:
        """Send what there is to report, and decide when to do so again."""
        ended, running = tuple(sorted(self._ended)), tuple(sorted(self.running))
        try:
            await self._send(Finish(ended=ended, running=running, lease=LEASE))
        except Exception as error:  # noqa: BLE001 - after any error, jobs that run must keep their leases
            log.debug("queue %r: leases could not be renewed: %s", self._queue, error)
            self._at = self._clock.now() + _AGAIN
        else:
            self._ended.difference_update(ended)
            self._at = self._clock.now() + (0 if self._ended else _RENEWED)
