"""What wakes a worker's session: notices of its store, and the death of other workers' processes."""

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
"""Seconds between two looks at whether another worker's process has died."""

_WATCH_IDLE: Final = 0.55
"""The same while that one has claimed nothing: with a beat each second, one look between two of them."""

AGAIN: Final = 1.0
"""Seconds until wake-ups that broke off are asked for again."""


async def hear(batcher: Batcher, store: Waking, is_lapsed: Callable[[], bool]) -> None:
    """Look for tasks when the store says so, and take those that it hands over, until cancelled."""
    again = False
    while True:
        try:
            async with store.wakeups(batcher.session) as woken:
                batcher.hears = True
                batcher.ask_now(missed=again)  # what came before this is not told
                again = True
                while True:
                    handed = await woken()
                    if handed is not None and not is_lapsed():
                        batcher.hand(handed)
                    batcher.ask_now()
        except UnsupportedOperation as error:
            log.debug("session %s looks by itself: %s", batcher.session, error)
            return
        except IntervalqError as error:
            log.debug("no wake-ups for session %s: %s", batcher.session, error)
        finally:
            batcher.hears = False
        await anyio.sleep(AGAIN)


async def watch(batcher: Batcher, store: Guarding, guards: anyio.Event) -> None:
    """Let the store see that this process lives, and look for others that don't, until cancelled.

    Args:
        batcher: of the session.
        store: where it is.
        guards: set once the session is seen to live, or can't be.
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
            log.debug("session %s watches nobody: %s", batcher.session, error)
        guards.set()
        await anyio.sleep(AGAIN)
