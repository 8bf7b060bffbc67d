"""Waits for the outcomes of tasks: the store notifies of them if it can, and is asked now and then."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import chain, repeat
from typing import Any, Final

import anyio

from intervalq.errors import IntervalqError, UnsupportedOperation
from intervalq.tasks.store import MAX_ROWS, TaskStore, Telling

log: Final = logging.getLogger("intervalq")

_FIRST_POLL: Final = 0.02
_LAST_POLL: Final = 1.0
"""Seconds between two looks of a caller that isn't notified, at first and at last."""

_CHECKS: Final = (0.1, 1.0)
_LAST_CHECK: Final = 5.0
"""The same for one that is: a store may miss an end while it begins to listen, and later, a task may end
without an outcome."""

_UNHEARD: Final = 10
"""After how many looks a caller that can't be notified at present tries again to listen."""


async def await_all(
    store: TaskStore,
    ids: Sequence[str],
    look: Callable[[Sequence[str]], Awaitable[dict[str, Any]]],
    found: dict[str, Any],
) -> None:
    """Look for the outcomes of tasks, and add those that are there to `found`, until all are.

    Args:
        store: it may notify when to look.
        ids: the tasks, each once; some may be in `found` already.
        look: the outcomes of those of the given tasks that have one.
        found: outcomes by id.
    """
    while left := _missing(ids, found):
        some = left[:MAX_ROWS]  # all must end, so that the others can wait for these
        async with AsyncExitStack() as stack:
            ended, pauses = await _listen(stack, store, some)
            if ended is not None:
                found |= await look(some)  # they may have ended before we listened
            for pause in pauses:
                if not (some := _missing(some, found)):
                    break
                with anyio.move_on_after(pause) as waited:
                    await (ended or anyio.sleep_forever)()
                found |= await look(some)
                if not waited.cancelled_caught and (some := _missing(some, found)):
                    await anyio.sleep(_FIRST_POLL)  # notified of something else: listen again
                    break


def _missing(ids: Iterable[str], found: dict[str, Any]) -> list[str]:
    return [id_ for id_ in ids if id_ not in found]


async def _listen(
    stack: AsyncExitStack, store: TaskStore, ids: Sequence[str]
) -> tuple[Callable[[], Awaitable[None]] | None, Iterable[float]]:
    """What returns when the tasks have ended, if the store notifies; and how long to wait each time."""
    if isinstance(store, Telling):
        try:
            ended = await stack.enter_async_context(store.awaited(ids))
        except UnsupportedOperation as error:
            log.debug("outcomes are polled: %s", error)
        except IntervalqError as error:
            log.debug("no notices of outcomes for now: %s", error)
            return None, [_LAST_POLL] * _UNHEARD
        else:
            return ended, chain(_CHECKS, repeat(_LAST_CHECK)) if store.tells_of_others else _polls()
    return None, _polls()


def _polls() -> Iterator[float]:
    pause = _FIRST_POLL
    while True:
        yield pause
        pause = min(1.5 * pause, _LAST_POLL)
