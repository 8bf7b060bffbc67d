"""Bugs planted in the shard: in its checks, its clock, its line, its slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from unittest import mock

from intervalq._shard.connection import Link
from intervalq._shard.grants import Go, Run
from intervalq._shard.leases import Leases
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Line, Waiter
from intervalq._timing.estimates import StoreClock
from intervalq.errors import StoreUnavailable
from intervalq.rules import FOREVER, Advance, Answer, Settings
from intervalq.store import Store
from intervalq.testing.simulation.planting import bug, instead

_IN_ORDER: Final = Line.in_order
_ACCEPT: Final = Shard.accept
_GIVE_UP: Final = Shard.give_up
_PUT: Final = Shard._put  # noqa: SLF001
_INIT: Final = Link.__init__
_BOUNDED: Final = Link.bounded
_LEARN: Final = StoreClock.learn
_TOLERANCE: Final = Link.tolerance


@bug("no-last-check", "stalls", 0)
def _() -> Iterator[None]:
    """A job begins whenever it was told to go, however late that is."""

    def bounded(self: Link, run: Run) -> Run:
        _BOUNDED(self, run).before = FOREVER
        return run

    yield from instead(Link, "bounded", bounded)


@bug("check-before-answer", "stalls", 8)
def _() -> Iterator[None]:
    """The last check is made when the slot is handed over, not where the job begins."""

    def accept(self: Shard, waiter: Waiter) -> Go | None:
        for run in self.slots.granted:
            self.bounded(run).before = FOREVER
        try:
            return _ACCEPT(self, waiter)
        finally:
            for run in self.slots.granted:
                run.known = -1  # for those who hand it over

    yield from instead(Shard, "accept", accept)


@bug("too-tolerant", "stalls", 0)
def _() -> Iterator[None]:
    """A job may begin half an interval late."""

    def tolerance(self: Link, at: int) -> int:
        half = self.state.settings.interval // 2 if self.state is not None else 0
        return max(half, _TOLERANCE(self, at))

    yield from instead(Link, "tolerance", tolerance)


@bug("tolerance-not-widened", "calm", 5)
def _() -> Iterator[None]:
    """A shard far away never finds its slots certain enough, and never begins."""

    def tolerance(self: Link, at: int) -> int:
        del at
        return self.state.tolerance if self.state is not None else 0

    yield from instead(Link, "tolerance", tolerance)


@bug("way-is-nothing", "slow", 2)
def _() -> Iterator[None]:
    """An answer is taken to say what the store's clock reads now, however long it took."""

    def learn(self: StoreClock, sent: int, received: int, now: int) -> None:
        del sent
        _LEARN(self, received, received, now)

    yield from instead(StoreClock, "learn", learn)


@bug("clocks-compared", "calm", 2)
def _() -> Iterator[None]:
    """What one process knows of the store's clock is used by the others, whose own clocks read otherwise."""
    shared = StoreClock()

    def init(self: Link, queue: str, store: Store, settings: Settings | None) -> None:
        _INIT(self, queue, store, settings)
        self.store_clock = shared

    yield from instead(Link, "__init__", init)


@bug("step-unseen", "clock", 934)
def _() -> Iterator[None]:
    """A slot that was told to go stands, also when the clock that it is fixed on was stepped."""

    def bounded(self: Link, run: Run) -> Run:
        run.steps = self.store_clock.steps
        return _BOUNDED(self, run)

    yield from instead(Link, "bounded", bounded)


@bug("slot-used-again", "lossy", 7)
def _() -> Iterator[None]:
    """A slot whose answer was lost is taken for granted, and is asked for once more."""

    async def put(self: Shard, question: Advance) -> Answer:
        try:
            return await _PUT(self, question)
        except StoreUnavailable:
            self.slots.granted.extend(self.run(slot) for slot in question.slots)
            self._beginning.wake()
            raise

    yield from instead(Shard, "_put", put)


@bug("used-given-back", "stalls", 0)
def _() -> Iterator[None]:
    """The slot of a job that began is given back with the next question."""

    def accept(self: Shard, waiter: Waiter) -> Go | None:
        go = _ACCEPT(self, waiter)
        if go is not None:
            self.slots.unused.append(go.slot)
        return go

    yield from instead(Shard, "accept", accept)


@bug("order-lost", "stalls", 30)
def _() -> Iterator[None]:
    """When a slot is given up, the job that would have had it goes to the end of its shard's line."""

    def give_up(self: Shard, go: Go) -> None:
        _GIVE_UP(self, go)
        if (waiter := self.line.first()) is not None:
            last = max(other.order for other in self.line.in_order())
            self.line.remove(waiter)
            self.line.first()  # sweeps it away from its old place
            waiter.order, waiter.gone = (last[0], last[1] + 1), False
            self.line.add(waiter)

    yield from instead(Shard, "give_up", give_up)


@bug("last-in-first-out", "calm", 0)
def _() -> Iterator[None]:
    """The job that was added last begins first."""

    def in_order(self: Line) -> Iterator[Waiter]:
        return iter([*_IN_ORDER(self)][::-1])

    def first(self: Line) -> Waiter | None:
        return next(in_order(self), None)

    with mock.patch.object(Line, "in_order", in_order):
        yield from instead(Line, "first", first)


@bug("wakeup-lost", "calm", 4)
def _() -> Iterator[None]:
    """A held shard sleeps until it is woken, and never asks by itself."""

    def end_of_hold(self: Shard, patience: int) -> float:
        del self, patience
        return float("inf")

    yield from instead(Shard, "_end_of_hold", end_of_hold)


@bug("cost-forgotten", "calm", 15)
def _() -> Iterator[None]:
    """A job that costs several slots takes one."""

    def let_pass(self: Shard) -> None:
        self._owed = 0

    yield from instead(Shard, "_let_pass", let_pass)


@bug("leases-kept", "calm", 31)
def _() -> Iterator[None]:
    """With `max_running`, nobody tells the store that a job ended."""

    def ended(self: Leases, ticket: int) -> None:
        self.running.discard(ticket)

    yield from instead(Leases, "ended", ended)
