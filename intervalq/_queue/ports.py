"""What the parts of a queue need of its handle, so that none of them imports it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar

from intervalq._queue.job import RunningJob
from intervalq._queue.plan import Plan
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter

R = TypeVar("R")


class Queue(Protocol):
    """For slots, attempts and maps."""

    jobs: dict[RunningJob[Any], None]
    """Jobs in the background that have not ended."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def usual(self) -> Plan:
        """The plan of a job without options of its own."""
        ...

    def shard(self) -> Shard:
        """The shard of this handle in the running event loop."""
        ...

    async def acquire(self, waiter: Waiter, timeout: float | None) -> tuple[Shard, Grant]:
        """Wait in line for a slot, at most `timeout` seconds (None: as long as it takes)."""
        ...

    async def cool_down(self, seconds: float) -> None:
        """Stop every shard of the queue for a while."""
        ...


class Paced(Protocol):
    """For decorated async functions."""

    def slot(self) -> AbstractAsyncContextManager[object]:
        """The body begins at the slot."""
        ...

    async def run(self, function: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - as the function has it
        """Wait for a slot, call the function, and give what it gives."""
        ...


class Blocking(Protocol):
    """For decorated plain functions: a handle for code that blocks."""

    def slot(self) -> AbstractContextManager[object]:
        """The body begins at the slot."""
        ...

    def run(self, function: Callable[[], R]) -> R:
        """Wait for a slot, call the function in this thread, and give what it gives."""
        ...

    def inspect(self) -> Any:  # noqa: ANN401 - `QueueState`, which is made of what is above this
        """The queue as the store has it, and the live figures of this handle."""
        ...
