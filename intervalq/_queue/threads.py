"""Plain functions in threads: the end of the wait and the last check are made in the thread itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._timing.clock import Clock

EARLY: Final = 2_000
"""Slots are handed to threads this long before they come, in microseconds: waking a thread takes its time."""

_SPIN: Final = 150
"""The end of a thread's wait is spent looking at the clock: its sleep ends late by about this much."""

LATE: Final = object()
"""What `in_time` gives when the function was not called."""


def opens_here(shard: Shard, grant: Grant) -> bool:
    """Block this thread until a slot comes, and say whether it may be used: the last check before a start."""
    _sleep_until(grant.opens, shard.clock)
    return shard.is_open(grant)


def in_time(shard: Shard, grant: Grant, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the function has it
    """Call a function at its slot, in this thread; `LATE` if that has passed."""
    return function() if opens_here(shard, grant) else LATE


def _sleep_until(instant: int, clock: Clock) -> None:
    while (left := instant - clock.now()) > 0:
        if left > _SPIN:
            time.sleep((left - _SPIN) / 1e6)
