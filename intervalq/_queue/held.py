"""What the code that runs just now holds of queues with `max_running`, so that no job waits for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Final, TypeAlias

import anyio

from intervalq._shard.shard import Shard
from intervalq.errors import SelfDeadlock, StoreError
from intervalq.rules import Inspect


class HeldSlot:
    """The slot of a job that runs."""

    __slots__ = ("awaited_by", "ended", "shard", "task")

    def __init__(self, shard: Shard, awaited_by: Callable[[], Held]) -> None:
        self.shard = shard
        self.task = _task()
        """The task that runs the job; None: a thread does."""
        self.awaited_by = awaited_by
        """Gives what those hold who wait for this job."""
        self.ended = False


Held: TypeAlias = tuple[HeldSlot, ...]

HOLDING: Final[ContextVar[Held]] = ContextVar("intervalq_held", default=())
"""What this context has, also of jobs that have ended or that only started this code: see `held_here`."""


def hold(shard: Shard, awaited_by: Callable[[], Held] = tuple) -> HeldSlot | None:
    """A job begins in this context. None: its queue has no limit."""
    if not shard.connection.is_limited:
        return None
    slot = HeldSlot(shard, awaited_by)
    HOLDING.set((*(other for other in HOLDING.get() if not other.ended), slot))
    return slot


def let_go(slot: HeldSlot | None) -> None:
    """The job has ended. This may be another context than the one that it began in."""
    if slot is not None:
        slot.ended = True
        HOLDING.set(tuple(other for other in HOLDING.get() if not other.ended))


def held_here() -> Held:
    """What can't end before the code that runs just now does.

    A task that was started by a job doesn't keep that job from ending, so it has none of its slots. A thread
    has those of the job that runs it.
    """
    held = tuple(slot for slot in HOLDING.get() if not slot.ended)
    task = _task() if held else None
    return held if task is None else tuple(slot for slot in held if slot.task == task)


async def refuse_self_deadlock(shard: Shard, held: Held) -> None:
    """Make sure that a queue has a place for one more job besides those that wait for it.

    Raises:
        SelfDeadlock: it has none, and never will.
    """
    mine = [slot for slot in _chain(held) if slot.shard.queue == shard.queue]
    if not mine:
        return
    state = shard.state
    if state is not None and len(mine) < state.settings.max_running:
        return
    with suppress(StoreError):  # whoever waits will meet it
        state = (await shard.command(Inspect())).state  # somebody else may have changed the limit
    if state is None:
        return
    same = [
        slot
        for slot in mine
        if slot.shard.state is not None and slot.shard.state.generation == state.generation
    ]
    if 0 < state.settings.max_running <= len(same):
        raise SelfDeadlock(shard.queue, state.settings.max_running)


def _chain(held: Iterable[HeldSlot]) -> list[HeldSlot]:
    """What is held, and what those hold who wait for it to end, and so on."""
    found: dict[HeldSlot, None] = {}
    left = list(held)
    while left:
        slot = left.pop()
        if slot not in found and not slot.ended:
            found[slot] = None
            left += slot.awaited_by()
    return list(found)


def _task() -> int | None:
    try:
        return anyio.get_current_task().id
    except RuntimeError:  # no event loop runs here
        return None
