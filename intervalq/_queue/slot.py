"""The slot that a job runs in, as users of `slot()` see it, and the fast path to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from intervalq._queue.attempts import heed
from intervalq._queue.held import HeldSlot, hold, let_go
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Queue
from intervalq._timing.retry_after import wait_after_error

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard


class Slot(ABC):
    """The slot that a job runs in."""

    __slots__ = ("_grant", "_settled")

    _grant: Grant
    """Set when the job has it."""
    _settled: bool
    """Set once it is settled."""

    @property
    def ticket(self) -> int:
        """The job's place in the queue: a number that never goes back."""
        return self._grant.ticket

    @property
    def due(self) -> float:
        """The slot on the store's clock, in seconds since 1970; if used at once, the time of the grant.

        It is later if it would otherwise be too close to the previous start.
        """
        return self._grant.due

    def settle(self, **units: int) -> None:
        """Report what the job really took of limits, now that this is known: `slot.settle(tokens=834)`.

        The windows are then as if the cost had been known: what wasn't needed is free for others, and more
        than the estimate delays later jobs. This may be called once, in the body or after it, in the event
        loop of the handle. The report is sent with the handle's next request to the store, at most a second
        later (five while the queue is held), or by `close()`. Without a report, or if the process dies before
        it is sent, the estimate counts.

        Raises:
            InvalidOption: a number is negative, or a unit has no limit, or no estimate in the job's `cost`.
            RuntimeError: the job has no slot yet, or it is settled already.
            QueueClosed: the handle was closed.
            ForkedError: this process was forked from the one that has the slot.
        """
        if not hasattr(self, "_grant"):
            raise RuntimeError("there is no slot to settle yet: settle it in the body of slot(), or later")
        if hasattr(self, "_settled"):
            raise RuntimeError("this slot is settled already: settle all units of a job in one call")
        self._settle(units)
        self._settled = True

    @abstractmethod
    def _settle(self, took: Mapping[str, int]) -> None:
        """Note what the job took."""

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
        shard = self._queue._shard()
        grant = shard.take_ready() if plan is None else None
        if grant is None:
            plan = plan or self._queue._usual
            _, grant = await self._queue._acquire(plan.waiter(), plan.timeout)
            self._shard = shard
            self._held = hold(shard)
        self._grant = grant
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception):
                await self._heed(error)
        finally:
            let_go(self._held)
            if self._shard is not None:
                self._shard.ended(self._grant, error if isinstance(error, Exception) else None)

    def _settle(self, took: Mapping[str, int]) -> None:
        self._queue._settle(self._its_shard(), self._grant, took)

    def _its_shard(self) -> Shard:
        shard = self._shard or self._queue._shard_here
        assert shard is not None  # it has a slot
        return shard

    async def _heed(self, error: Exception) -> None:
        """Cool the queue down if an error that leaves the body requests it."""
        usual = self._queue._usual
        if (asked := wait_after_error(usual.retry_after, error, bare=usual.adapts)) is not None:
            await heed(self._queue, self._grant, asked)


def in_time(slot: Slot) -> bool:
    """Whether the job of a slot may still begin now, if it has not begun when the slot came."""
    return not isinstance(slot, ComingSlot) or slot._its_shard().is_in_time(slot._grant)  # noqa: SLF001
