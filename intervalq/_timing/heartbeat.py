"""Heartbeats: renew what this process holds in a store for a limited time, before that time is over.

They keep sessions of tasks, locks, Spark tasks with a ledger, and drivers of pipelines alive. The leases of
running jobs have a protocol of their own; `_shard/leases.py` explains why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

_SURE: Final = 0.75
"""The part of the expiry for which a renewal is relied upon: a process may stall after it has checked."""


class Heartbeat:
    """Renews something that expires, again and again, until it is stopped or lost. Times are in seconds.

    Args:
        renew: renews it once; returns whether it is still held. Its errors end the heartbeat.
        expiry: how long after a renewal it expires.
        times: how many heartbeats there are within the expiry, so that some may be late or lost.
        always: whether a heartbeat is sent although another command has just renewed it, because it also
            asks for something.
    """

    def __init__(
        self, renew: Callable[[], Awaitable[bool]], expiry: float, times: int = 5, *, always: bool = False
    ) -> None:
        self._renew = renew
        self._always = always
        self._expiry = expiry
        self._pause = expiry / times
        self._renewed = -math.inf
        self._is_stopped = False
        self._sleep = anyio.CancelScope()

    def renewed(self, sent: float) -> None:
        """Note that another command, sent at `sent` of `time.monotonic`, has renewed it, too."""
        self._renewed = sent

    @property
    def has_begun(self) -> bool:
        """Whether any renewal was noted."""
        return self._renewed > -math.inf

    @property
    def is_sure(self) -> bool:
        """Whether it certainly has not expired, by the renewals that were noted."""
        return time.monotonic() - self._renewed < self._expiry * _SURE

    def stop(self) -> None:
        """Send no more heartbeats; one that is in flight is still waited for."""
        self._is_stopped = True
        self._sleep.cancel()

    async def run(self) -> None:
        """Send heartbeats; returns once it is stopped or lost."""
        is_held = True
        while is_held and not self._is_stopped:
            with anyio.CancelScope() as self._sleep:
                await anyio.sleep(self._pause)
            is_due = self._always or time.monotonic() - self._renewed >= self._pause / 2
            if is_due and not self._is_stopped:
                is_held = await self._renew()
