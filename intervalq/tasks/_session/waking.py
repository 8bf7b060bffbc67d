"""Wakes a worker's session: on notices of its store, and when other workers' processes die."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from intervalq.errors import IntervalqError, UnsupportedOperation
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks.store import Guarding, Waking

log: Final = logging.getLogger("intervalq")

_WATCH: Final = 0.2
"""Seconds between two checks whether another worker's process has died."""

_WATCH_IDLE: Final = 0.55
"""The same while that process has no claims: one check between two heartbeats, which come each second."""

AGAIN: Final = 1.0
"""Seconds until a broken subscription to wake-ups is renewed."""


async def hear(batcher: Batcher, store: Waking, is_lapsed: Callable[[], bool]) -> None:
    """Ask for tasks at each wake-up of the store, and take those that it hands over, until cancelled."""
    again = False
    while True:
        try:
            async with store.wakeups(batcher.session) as woken:
                batcher.hears = True
                batcher.ask_now(missed=again)  # earlier notices are lost
                again = True
                while True:
                    handed = await woken()
                    if handed is not None and not is_lapsed():
                        batcher.hand(handed)
                    batcher.ask_now()
        except UnsupportedOperation as error:
            log.debug("session %s polls: %s", batcher.session, error)
            return
        except IntervalqError as error:
            log.debug("no wake-ups for session %s: %s", batcher.session, error)
        finally:
            batcher.hears = False
        await anyio.sleep(AGAIN)


async def watch(batcher: Batcher, store: Guarding, guards: anyio.Event) -> None:
    """Show the store that this process is alive, and look for dead ones, until cancelled.

    Args:
        batcher: the batcher of the session.
        store: the store of the session.
        guards: set once the store knows that the process is alive, or can't know it.
    """
    while True:
        try:
            async with store.guard(batcher.session) as look:
                guards.set()
                pause = _WATCH
                while True:
                    removed, is_idle = await look(pause)
                    pause = _WATCH_IDLE if is_idle else _WATCH
                    if removed:
                        batcher.ask_now()
        except IntervalqError as error:
            log.debug("session %s can't watch others: %s", batcher.session, error)
        guards.set()
        await anyio.sleep(AGAIN)
