"""The slot that a job runs in, as users of `slot()` see it, and the fast path to one."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from intervalq._queue.held import HeldSlot, hold, let_go
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Queue
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter


class Slot(Grant):
    """The slot that a job runs in."""

    __slots__ = ()

    @classmethod
    def of(cls, grant: Grant) -> Slot:
        """Internal: the slot of a grant."""
        slot = cls.__new__(cls)
        slot.become(grant)
        return slot

    def __repr__(self) -> str:
        return f"Slot(ticket={self.ticket}, due={self.due!r})"


_USED: Final = Plan(0, 0, None, 0, 0, retry_after=False)
"""Sentinel: this slot object was used."""


class ComingSlot(Slot):
    """The context of `slot()`: a class, because `asynccontextmanager` would cost more than all the rest."""

    __slots__ = ("_held", "_plan", "_queue", "_shard")

    def __init__(self, queue: Queue, plan: Plan | None) -> None:
        self._queue = queue
        self._plan = plan  # None: no options of its own
        self._shard: Shard | None = None
        self._held: HeldSlot | None = None

    async def __aenter__(self) -> Self:
        plan = self._plan
        if plan is _USED:
            raise RuntimeError("a slot is for one job only: call slot() again for the next job")
        self._plan = _USED
        shard = self._queue.shard()
        grant = shard.take_ready() if plan is None else None
        if grant is None:
            plan = plan or self._queue.usual
            _, grant = await self._queue.acquire(Waiter(plan.priority, plan.cost), plan.timeout)
            self._shard = shard
            self._held = hold(shard)
        self.become(grant)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        let_go(self._held)
        leases = None if self._shard is None else self._shard.leases
        if leases is not None and (leases.running or leases.lost):
            leases.ended(self.ticket)
