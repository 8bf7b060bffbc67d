"""Bugs of costs that are settled afterwards, of settings, and of what a warning of a far store says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from intervalq._queue import attempts
from intervalq._shard import settlements, warnings
from intervalq._shard.connection import Connection
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant
from intervalq._shard.settlements import Settlements
from intervalq._shard.shard import Shard
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter
from intervalq._shard.warnings import Warnings
from intervalq.rules import FOREVER, Limit, Settings, Settled, State
from planted.planting import bug, instead

_ADD: Final = Settlements.add
_CHECK: Final = Warnings.check
_LATE: Final = attempts.late


@bug("refunds-sent-again", "windows", 7)
def _() -> Iterator[None]:
    """Units that a job did not need are sent again after a request without an answer."""

    def failed(self: Settlements) -> None:
        again, self._sent = self._sent, []
        self._waiting = [*again, *self._waiting]
        if again:
            self.at = self._clock.now()

    yield from instead(Settlements, "failed", failed)


@bug("overruns-forgotten", "settled", 41)
def _() -> Iterator[None]:
    """What a job took beyond its estimate is forgotten with a request without an answer."""

    def failed(self: Settlements) -> None:
        self._sent = []

    yield from instead(Settlements, "failed", failed)


@bug("reports-wait", "windows", 13)
def _() -> Iterator[None]:
    """Reports wait for a request that they can go with, however long that takes."""
    yield from instead(settlements, "patience", lambda limits: FOREVER)


@bug("cell-of-another-time", "windows", 3)
def _() -> Iterator[None]:
    """Reports don't say in which part of a cell their slots were."""

    def add(self: Settlements, slot: Settled, more: Mapping[str, int], limits: Sequence[Limit]) -> None:
        _ADD(self, slot._replace(lag=0), more, limits)

    yield from instead(Settlements, "add", add)


@bug("far-without-a-word", "far", 3)
def _() -> Iterator[None]:
    """A process never warns that its store is too far away."""

    def check(self: Warnings, dispatcher: Dispatcher, time: StoreTime, state: State, at: int) -> None:
        warnings._warned.add(self._store)
        _CHECK(self, dispatcher, time, state, at)

    yield from instead(Warnings, "check", check)


@bug("configured-in-vain", "joins", 30)
def _() -> Iterator[None]:
    """A handle that has configured its queue creates a lost record with its settings from before."""

    def adopt(self: Connection, settings: Settings, counted: tuple[str, ...]) -> None:
        del settings
        self.counted = counted

    yield from instead(Connection, "adopt", adopt)


@bug("late-threads-take-nothing", "returns", 25)
def _() -> Iterator[None]:
    """A job whose thread came too late takes a slot without its units."""

    def late(shard: Shard, grant: Grant, waiter: Waiter) -> Waiter:
        again = _LATE(shard, grant, waiter)
        again.units = ()
        return again

    yield from instead(attempts, "late", late)
