"""Bugs that lose no job: slots stay empty, the store is asked in vain, or handles report something wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from intervalq._shard import planner
from intervalq._shard.connection import Connection
from intervalq._shard.leases import Leases
from intervalq._shard.planner import Situation
from intervalq._shard.shard import Shard
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter
from intervalq.rules import FOREVER, Answer, Slot, State, Units
from planted.planting import bug, instead

_CLOSE: Final = Shard.close
_COSTS: Final = planner._costs_to_take
_LEARN: Final = Connection._learn
_WANTS_CHECK: Final = StoreTime.wants_check


@bug("one-too-many", "backlog", 0)
def _() -> Iterator[None]:
    """A shard takes one ticket more than it has jobs."""

    def costs(now: Situation, asked: int) -> tuple[list[int], list[Units]]:
        taken, units = _COSTS(now, asked)
        return [*taken, 1] if taken else taken, units

    yield from instead(planner, "_costs_to_take", costs)


@bug("looks-again", "callers", 0)
def _() -> Iterator[None]:
    """The store's clock is asked for twice before each question, however well it is known."""

    def wants_check(self: StoreTime, state: State, enough: int, at: int) -> bool:
        return _WANTS_CHECK(self, state, enough, at) or self.clock.answers % 3 > 0

    yield from instead(StoreTime, "wants_check", wants_check)


@bug("first-for-all", "backlog", 0)
def _() -> Iterator[None]:
    """Every waiting job is shown the ticket of the first one."""

    def expected(self: Shard, waiter: Waiter) -> Slot | None:
        del waiter
        return next(self.grants.coming(), None)

    yield from instead(Shard, "expected", expected)


@bug("drain-swapped", "exits", 1)
def _() -> Iterator[None]:
    """Closing a handle fails the jobs that are about to begin, and lets those begin that are not."""

    async def close(self: Shard, *, drain: bool) -> None:
        await _CLOSE(self, drain=not drain)

    yield from instead(Shard, "close", close)


@bug("withdrawn-untold", "withdrawn", 20)
def _() -> Iterator[None]:
    """With `max_running`, the slot of a cancelled job counts until its lease lapses, if no job runs."""

    def ended(self: Leases, ticket: int) -> None:
        self.running.discard(ticket)
        if self._is_limited():
            self._ended.add(ticket)
            if self._at < FOREVER:
                self._report_by(0)

    yield from instead(Leases, "ended", ended)


@bug("loss-unsaid", "failover", 3)
def _() -> Iterator[None]:
    """A handle doesn't report that its store lost writes."""

    def learn(self: Connection, answer: Answer, *, dropped: bool) -> None:
        _LEARN(self, answer, dropped=dropped)
        self.regressions = 0

    yield from instead(Connection, "_learn", learn)
