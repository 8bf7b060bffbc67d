"""Plain functions in threads: the thread itself waits for the slot at the end, and makes the last check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard


EARLY: Final = 2_000
"""How long before they come slots are handed to threads, in microseconds: waking a thread takes time."""

MAX_EARLY: Final = 1_000_000
"""The maximum of this for a thread that was late even for a slot that had come: all jobs behind it wait
meanwhile, and perhaps its process stalled only once."""

LATE: Final = object()
"""The result of `in_time` if the function was not called."""


class WaitingThreads:
    """The threads that wait for slots, so that closing can wait until their jobs have begun.

    A slot is handed out before it comes, and a thread that wakes too late for it goes back to the wait queue.
    """

    def __init__(self) -> None:
        self._waiting: set[object] = set()
        self._none: anyio.Event | None = None  # set once nobody waits, if that is awaited

    @contextmanager
    def waiting(self, tell: Callable[[Callable[[], object]], object]) -> Iterator[None]:
        """A context around such a wait, for any thread. `tell` calls a function in the event loop."""
        caller = object()
        self._waiting.add(caller)
        try:
            yield
        finally:
            self._waiting.remove(caller)
            none = self._none
            if none is not None and not self._waiting:
                tell(none.set)

    async def gone(self) -> None:
        """Wait until no thread waits any more."""
        self._none = none = self._none or anyio.Event()
        if self._waiting:
            await none.wait()


def opens_here(shard: Shard, grant: Grant) -> bool:
    """Block this thread until a slot comes; returns whether it may be used, the last check before a start."""
    grant.awaited = grant.opens > shard.clock.now()
    shard.clock.block_until(grant.opens)
    return shard.is_open(grant)


def in_time(shard: Shard, grant: Grant, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the function has it
    """Call a function at its slot, in this thread; `LATE` if the slot has passed."""
    return function() if opens_here(shard, grant) else LATE
