"""What the code that runs just now holds of queues with `max_running`, so that no job waits for itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from intervalq._shard.shard import Shard
from intervalq._timing.backends import running_loop
from intervalq.errors import SelfDeadlock, StoreError
from intervalq.rules import Inspect, State


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


@dataclass(frozen=True, slots=True)
class _Wait:
    """Code that waits for a slot, or for a job that does, and keeps what it holds."""

    shard: Shard
    held: Held
    is_over: Callable[[], bool]
    """Whether the job that it waits for has its slot by now."""


_waits: Final[dict[object, _Wait]] = {}
"""Those of this process, of all its event loops."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_waits.clear)  # its parent's code doesn't wait in a child


@asynccontextmanager
async def waiting(
    shard: Shard, held: Held, is_over: Callable[[], bool] = bool, *, ends: bool = False
) -> AsyncIterator[None]:
    """Around a wait for a slot of a queue, or for a job, by code that holds slots.

    With `ends` it ends by itself, so that others may wait for that.

    Raises:
        SelfDeadlock: all places of a queue are held by code of this process that waits for one more of them.
    """
    key = object()
    _waits[key] = _Wait(shard, held, is_over)
    try:
        # Who waits for a job that runs may keep others waiting by it: all that this job waits for.
        for blocked in _kept_waiting(held) if is_over() else [shard]:
            await _refuse_self_deadlock(blocked)
        if ends:
            del _waits[key]
        yield
    finally:
        _waits.pop(key, None)  # not there in a forked child, either


def _kept_waiting(held: Held) -> list[Shard]:
    """Where code waits for slots that can't go on before these slots end."""
    return [wait.shard for wait in _blocked() if not set(held).isdisjoint(_chain(wait.held))]


async def _refuse_self_deadlock(shard: Shard) -> None:
    state = shard.state
    if not (_is_deadlocked(shard, state) if state is not None else _is_held(shard)):
        return
    if shard.loop in {running_loop(), shard}:  # one of another loop can't be asked from here
        with suppress(StoreError):  # whoever waits will meet it
            state = (await shard.command(Inspect())).state  # somebody else may have changed the limit
    if state is not None and _is_deadlocked(shard, state):
        raise SelfDeadlock(shard.queue, state.settings.max_running)


def _is_held(shard: Shard) -> bool:
    """Whether code that waits has slots of a queue of that name."""
    waits = tuple(_waits.values())
    return any(slot.shard.queue == shard.queue for wait in waits for slot in _chain(wait.held))


def _is_deadlocked(shard: Shard, state: State) -> bool:
    """Whether a queue has no place that will be free before somebody gets one more."""

    def is_of_it(other: Shard) -> bool:
        same = other.queue == shard.queue and other.state is not None
        return same and other.state.generation == state.generation  # type: ignore[union-attr]  # see above

    most = state.settings.max_running
    if not 0 < most <= sum(len(wait.held) for wait in tuple(_waits.values())):  # quick, where many wait
        return False
    held = _chain(slot for wait in _blocked() if is_of_it(wait.shard) for slot in wait.held)
    return most <= sum(is_of_it(slot.shard) for slot in held)


def _blocked() -> list[_Wait]:
    return [wait for wait in tuple(_waits.values()) if not wait.is_over()]


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
