"""Tracks the slots that running code holds in queues with `max_running`, so that no job waits for itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio

from intervalq._timing.backends import running_loop
from intervalq.errors import SelfDeadlock, StoreError
from intervalq.rules import Inspect

if TYPE_CHECKING:
    from intervalq._shard.shard import Shard


class HeldSlot:
    """The slot of a running job."""

    __slots__ = ("awaited_by", "ended", "shard", "task")

    def __init__(self, shard: Shard, awaited_by: Callable[[], Held]) -> None:
        self.shard = shard
        self.task = _task()
        """The task that runs the job; None: a thread runs it."""
        self.awaited_by = awaited_by
        """Returns the slots that are held by code that waits for this job."""
        self.ended = False


Held: TypeAlias = tuple[HeldSlot, ...]

HOLDING: Final[ContextVar[Held]] = ContextVar("intervalq_held", default=())
"""The slots of this context, even of jobs that ended or only started this code: see `held_here`."""


def hold(shard: Shard, awaited_by: Callable[[], Held] = tuple) -> HeldSlot | None:
    """Note that a job begins in this context. Returns None if its queue has no limit."""
    if not shard.connection.is_limited:
        return None
    slot = HeldSlot(shard, awaited_by)
    HOLDING.set((*(other for other in HOLDING.get() if not other.ended), slot))
    return slot


def let_go(slot: HeldSlot | None) -> None:
    """Note that the job has ended, possibly in another context than the one in which it began."""
    if slot is not None:
        slot.ended = True
        HOLDING.set(tuple(other for other in HOLDING.get() if not other.ended))


def held_here() -> Held:
    """The slots that can't end before the running code does.

    A task that was started by a job doesn't keep that job from ending, so it holds none of its slots. A
    thread holds those of the job that runs it.
    """
    held = tuple(slot for slot in HOLDING.get() if not slot.ended)
    task = _task() if held else None
    return held if task is None else tuple(slot for slot in held if slot.task == task)


class _Wait(NamedTuple):
    """Code that waits for a slot, or for a job that waits for one, and keeps the slots that it holds."""

    shard: Shard
    held: Held
    is_over: Callable[[], bool]
    """Whether the awaited job has its slot by now."""


_waits: Final[dict[object, _Wait]] = {}
"""All waits of this process, in all event loops."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_waits.clear)  # the parent's waits don't exist in a child


@asynccontextmanager
async def waiting(
    shard: Shard, held: Held, is_over: Callable[[], bool] = bool, *, ends: bool = False
) -> AsyncIterator[None]:
    """A context around a wait for a slot of a queue, or for a job, by code that holds slots.

    With `ends`, the wait ends on its own, so that others may wait for its end.

    Raises:
        SelfDeadlock: all places of a queue are held by code of this process that waits for another place of
            it, or for a place of another queue whose places are all held by code that waits in this way.
    """
    key = object()
    _waits[key] = _Wait(shard, held, is_over)
    try:
        # Waiting for a running job may block others, too: everything that this job waits for.
        for blocked in _kept_waiting(held) if is_over() else [shard]:
            await _refuse_self_deadlock(blocked)
        if ends:
            del _waits[key]
        yield
    finally:
        _waits.pop(key, None)  # a forked child doesn't have it


def _kept_waiting(held: Held) -> list[Shard]:
    """The shards in which code waits that can't continue before these slots end."""
    return [wait.shard for wait in _blocked() if not set(held).isdisjoint(_chain(wait.held))]


async def waits_again(shard: Shard, awaited_by: Held) -> None:
    """Check before a job waits for another slot, because that may block the code that waits for the job.

    Raises:
        SelfDeadlock: see `waiting`.
    """
    if awaited_by:
        await _refuse_self_deadlock(shard)


async def _refuse_self_deadlock(shard: Shard) -> None:
    if not (_is_stuck(shard) if shard.state is not None else _is_held(shard)):
        return
    for each in {shard, *_stuck()}:
        if each.loop in {running_loop(), each}:  # a shard of another event loop can't be used from here
            with suppress(StoreError):  # the waiting code will get the error
                await each.command(Inspect())  # somebody else may have changed the limit
    if _is_stuck(shard):
        raise SelfDeadlock(shard.queue, _limit(shard))


def _is_held(shard: Shard) -> bool:
    """Whether waiting code holds slots of a queue of that name."""
    waits = tuple(_waits.values())
    return any(slot.shard.queue == shard.queue for wait in waits for slot in _chain(wait.held))


def _is_stuck(shard: Shard) -> bool:
    """Whether no place of a queue can become free before code that waits here gets another one."""
    most = _limit(shard)
    if not 0 < most <= sum(len(wait.held) for wait in tuple(_waits.values())):  # fast even with many waits
        return False
    return shard in _stuck()


def _stuck() -> set[Shard]:
    """The shards of blocked queues: all places are held by code that waits for a place of a blocked queue."""
    waits = _blocked()
    while waits:
        places = Counter(_record(slot.shard) for slot in _chain(slot for wait in waits for slot in wait.held))
        stuck = [wait for wait in waits if 0 < _limit(wait.shard) <= places[_record(wait.shard)]]
        if len(stuck) == len(waits):
            break
        waits = stuck
    return {wait.shard for wait in waits}


def _record(shard: Shard) -> tuple[str, str | None]:
    """Which record a shard works with: the same for all handles of a queue in this process."""
    return shard.queue, None if shard.state is None else shard.state.generation


def _limit(shard: Shard) -> int:
    """How many jobs of its queue may run; 0: any number, or it is not known yet."""
    return 0 if shard.state is None else shard.state.settings.max_running


def _blocked() -> list[_Wait]:
    return [wait for wait in tuple(_waits.values()) if not wait.is_over()]


def _chain(held: Iterable[HeldSlot]) -> list[HeldSlot]:
    """Held slots, the slots of code that waits for them to end, and so on."""
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
    except RuntimeError:  # there is no running event loop
        return None
