"""Bugs that easily slip in: a neighbour is used instead, a check is missing, an old value is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from intervalq._queue import attempts
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Queue
from intervalq._shard.connection import Connection
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant, GrantRange
from intervalq._shard.leases import Leases
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._timing.estimates import StoreClock
from intervalq.rules import Answer, Command
from planted.planting import bug, instead

_ADD: Final = WaitQueue.add
_ATTEMPT: Final = attempts._attempt
_LEARN: Final = StoreClock.learn
_LEASES: Final = Leases.__init__
_REMOVE: Final = WaitQueue.remove
_STARTED: Final = Leases.started


@bug("lease-of-the-next", "long", 0)
def _() -> Iterator[None]:
    """The lease of the ticket after the job's is renewed."""
    yield from instead(Leases, "started", lambda self, ticket: _STARTED(self, ticket + 1))


@bug("renewed-by-chance", "long", 0)
def _() -> Iterator[None]:
    """Leases are renewed only after some job has ended."""
    yield from instead(Leases, "started", lambda self, ticket: self.running.add(ticket))


@bug("ends-forgotten", "long", 334)
def _() -> Iterator[None]:
    """The end of a job that happens while others are being reported to the store is not reported."""

    def init(
        self: Leases, queue: str, send: Callable[[Command], Awaitable[Answer]], *more: Any, **options: Any
    ) -> None:
        async def sends(command: Command) -> Answer:
            answer = await send(command)
            self._ended.clear()
            return answer

        _LEASES(self, queue, sends, *more, **options)

    yield from instead(Leases, "__init__", init)


@bug("priorities-swapped", "calm", 3)
def _() -> Iterator[None]:
    """Jobs of the lowest priority begin first."""

    def add(self: WaitQueue, waiter: Waiter) -> None:
        _ADD(self, waiter)
        self._in_order = [self._ranks[key] for key in sorted(self._ranks, reverse=True)]

    yield from instead(WaitQueue, "add", add)


@bug("cancelled-counts", "calm", 10)
def _() -> Iterator[None]:
    """A job that is cancelled while it waits counts as waiting from then on."""

    def remove(self: WaitQueue, waiter: Waiter) -> None:
        waits = not waiter.gone and waiter._waker is not None and not waiter._waker.done()
        _REMOVE(self, waiter)
        self.waiting += waits

    yield from instead(WaitQueue, "remove", remove)


@bug("rows-across-holds", "stepped", 29)
def _() -> Iterator[None]:
    """Slots count as consecutive by their tickets alone, even if a hold or a step lies between them."""

    def follows(self: GrantRange, other: GrantRange) -> bool:
        return self.end - self.count == other.end and self.cost == other.cost == 1 and not self.at_once

    yield from instead(GrantRange, "follows", follows)


@bug("old-reading", "stepped", 168)
def _() -> Iterator[None]:
    """After a step of the store's clock, the earlier estimate is used for one more answer."""
    kept: set[int] = set()

    def learn(self: StoreClock, sent: int, received: int, now: int) -> None:
        before = self._low, self._high, self._at, self.steps
        _LEARN(self, sent, received, now)
        if self.steps > before[3] and id(self) not in kept:
            self._low, self._high, self._at = before[:3]
            kept.add(id(self))
        else:
            kept.discard(id(self))

    yield from instead(StoreClock, "learn", learn)


@bug("tried-again-at-once", "calm", 8)
def _() -> Iterator[None]:
    """A job that fails is tried again in the slot that it had."""

    async def attempt(
        queue: Queue, function: Callable[[], Any], plan: Plan, *more: Any, **options: Any
    ) -> tuple[Grant, Any, Exception | None]:
        grant, result, error = await _ATTEMPT(queue, function, plan, *more, **options)
        if error is not None and plan.retries:
            try:
                return grant, await function(), None
            except Exception as again:  # noqa: BLE001 - the job's own
                return grant, None, again
        return grant, result, error

    yield from instead(attempts, "_attempt", attempt)


@bug("new-or-not", "reclaims", 65)
def _() -> Iterator[None]:
    """A handle for a new queue uses the existing one."""

    async def create(self: Connection, nonce: str) -> None:
        del nonce
        self._first = None

    yield from instead(Connection, "_create", create)


@bug("ready-though-closed", "shut", 39)
def _() -> Iterator[None]:
    """While a handle is being closed, a job that comes as the last one begins gets a slot that is ready."""
    yield from instead(Dispatcher, "refuse", Dispatcher.not_ready)
