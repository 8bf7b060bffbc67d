"""The slot that a job runs in, as the users of `slot()` see it, and the shortest way to one."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from intervalq._queue.attempts import Plan
from intervalq._shard.grants import Go
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.backends import running_loop

if TYPE_CHECKING:
    from intervalq._queue.queue import IntervalQueue
    from intervalq._shard.shard import Shard


class Slot(Go):
    """The slot that a job runs in."""

    __slots__ = ()

    @classmethod
    def of(cls, go: Go) -> Slot:
        """Internal: the slot that was told to go."""
        return cls(go.run, go.ahead)

    def __repr__(self) -> str:
        return f"Slot(ticket={self.ticket}, due={self.due!r})"


_USED: Final = Plan(0, 0, None, 0, 0, retry_after=False)
"""In the place of the options of a slot that was waited for already."""


class ComingSlot(Slot):
    """What `async with` waits for: written out, for `asynccontextmanager` costs more than all the rest."""

    __slots__ = ("_plan", "_queue", "_shard")

    def __init__(self, queue: IntervalQueue, plan: Plan | None) -> None:
        self._queue = queue
        self._plan = plan  # None: without options of its own
        self._shard: Shard | None = None

    async def __aenter__(self) -> Self:
        plan = self._plan
        if plan is None and (shard := self._queue.shard_here) is not None:
            run = shard.ready
            if run is not None and shard.loop is running_loop() and shard.now() <= shard.ready_until:
                self._plan = _USED
                self.run = run
                self.ahead = left = run.count
                shard.begun += 1
                run.count = left - 1
                if left == 1:
                    shard.used_up()
                return self
        if plan is _USED:
            raise RuntimeError("a slot is for one job: call slot() again for the next one")
        plan = plan or self._queue.usual
        self._plan = _USED
        self._shard = shard = self._queue.shard()
        go = await shard.slot(Waiter(plan.priority, plan.cost), plan.timeout)
        self.run, self.ahead = go.run, go.ahead
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shard is not None and self._shard.leases.running:
            self._shard.leases.ended(self.ticket)
