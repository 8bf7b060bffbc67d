"""Warns, once per queue, about measured causes of lost slots or spacing, and says what helps."""

from __future__ import annotations

import logging
from typing import Final

from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.store_time import REACTION, StoreTime
from intervalq._spec import parse
from intervalq.rules import State

log: Final = logging.getLogger("intervalq")

_warned: Final[set[str]] = set()
"""Stores and queues about which this process has warned: once is enough, however many keys a queue has."""

_WASTEFUL: Final = 20
"""How many more slots must be missed than jobs begin in time before there is a warning."""

_BLOCKED: Final = 100_000
"""No machine wakes a process this late, in microseconds: its event loop must be blocked."""


class Warnings:
    """The warnings of one shard about its queue and its store."""

    def __init__(self, queue: str, store: str) -> None:
        self._queue = queue.partition(":")[0]
        self._store = store
        self._late = self._begun = self._score = 0

    def check(self, dispatcher: Dispatcher, time: StoreTime, state: State, at: int) -> None:
        """Warn if there is a reason, and no warning was given before."""
        late = dispatcher.late + dispatcher.skipped["late"] + dispatcher.skipped["thread"]
        new = late - self._late
        self._score = max(0, self._score + 2 * new - (dispatcher.begun - self._begun))
        self._late, self._begun = late, dispatcher.begun
        if self._score >= _WASTEFUL and self._queue not in _warned:
            _warned.add(self._queue)
            log.warning(
                "queue %r: jobs come too late for their slots in this process, %d of %d so far, so the queue "
                "is slower than it could be: %s",
                self._queue, late, dispatcher.begun + late, _cause(time, state),
            )  # fmt: skip
        if time.is_uncertain(state, at) and self._store not in _warned:
            asked = state.settings.interval - state.tolerance
            kept = max(0, asked - 2 * time.error(state, at))
            if kept * 100 > asked * 99:
                return
            _warned.add(self._store)
            log.warning(
                "queue %r: the store is too far away, or this machine too busy, to guarantee the tolerance "
                "(the store's clock is known to %s): starts are at least %s apart instead of %s: use a "
                "nearer store, fewer processes, or a longer interval",
                self._queue, parse.text(time.clock.error(at)), parse.text(kept), parse.text(max(0, asked)),
            )  # fmt: skip


def _cause(time: StoreTime, state: State) -> str:
    late, tolerance = time.lateness.typical(), state.tolerance
    if time.reaction > REACTION or late > _BLOCKED:
        return (
            "something blocks its event loop, or answers of the store come late: run blocking code in a "
            "thread, use fewer processes, or a longer interval with burst="
        )
    if late > tolerance:
        return (
            f"it wakes {parse.text(late)} late on this machine, and a job may begin {parse.text(tolerance)} "
            "after its slot: use a longer interval with burst=, fewer processes, or precision="
        )
    return "the machine is overloaded: use fewer processes, or a longer interval with burst="
