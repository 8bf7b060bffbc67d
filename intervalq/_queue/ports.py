"""Protocols of what the parts of a queue need from its handle, so that none of them imports it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from intervalq._lazy import provided
from intervalq._queue.job import RunningJob
from intervalq._queue.options import Cost, Settle
from intervalq._queue.plan import Plan

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard
    from intervalq._shard.wait_queue import Waiter

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Queue(Protocol):
    """What slots, attempts and maps need."""

    _jobs: dict[RunningJob[Any], None]
    """Jobs in the background that have not ended."""
    _shard_here: Shard | None
    """The shard, if there is one."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    def _settle(self, shard: Shard, grant: Grant, took: Mapping[str, int]) -> None:
        """Note what the job of a slot took of the limits, by unit."""
        ...

    @property
    def _usual(self) -> Plan:
        """The plan of a job without options of its own."""
        ...

    def _shard(self) -> Shard:
        """The shard of this handle in the running event loop."""
        ...

    async def _acquire(self, waiter: Waiter, timeout: float | None) -> tuple[Shard, Grant]:
        """Wait for a slot, at most `timeout` seconds (None: without limit)."""
        ...

    async def _refused(self, grant: Grant, seconds: float) -> None:
        """Stop every shard of the queue for a while, after a server refused the job of a slot."""
        ...


class Planning(Queue, Protocol):
    """What maps need."""

    def _plan(self, *, cost: Cost = 1, settle: Settle[Any] | None = None) -> Plan:
        """A job's own options, checked, combined with those of the queue."""
        ...


class Paced(Protocol):
    """What decorated async functions need."""

    def slot(self, *, cost: Cost = 1) -> AbstractAsyncContextManager[object]:
        """A context whose body begins at the slot."""
        ...

    async def run(
        self,
        function: Callable[[*Ts], Awaitable[Any]],
        *args: *Ts,
        cost: Cost = 1,
        settle: Settle[Any] | None = None,
    ) -> Any:  # noqa: ANN401 - as the function has it
        """Wait for a slot, call the function, and return its result."""
        ...


class Blocking(Protocol):
    """What decorated plain functions need: a handle for blocking code."""

    def slot(self, *, cost: Cost = 1) -> AbstractContextManager[object]:
        """A context whose body begins at the slot."""
        ...

    def run(
        self, function: Callable[[*Ts], R], *args: *Ts, settle: Settle[R] | None = None, cost: Cost = 1
    ) -> R:
        """Wait for a slot, call the function in this thread, and return its result."""
        ...

    def inspect(self) -> Any:  # noqa: ANN401 - a `QueueState`, which belongs to a higher layer
        """The queue as the store has it, and the live figures of this handle."""
        ...


def blocking_of(queue: object) -> Blocking:
    """A handle of the same queue for blocking code, whose module imports this one."""
    made: Blocking = provided("queue for blocking code")(queue)
    return made
