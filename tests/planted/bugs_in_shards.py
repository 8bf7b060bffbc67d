"""Bugs planted in the shard: in its checks, its clock, its queue of waiting jobs, and its slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from intervalq._queue import attempts
from intervalq._queue.threads import EARLY
from intervalq._shard.conversation import Conversation
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant, GrantRange
from intervalq._shard.last_start import LastStart
from intervalq._shard.leases import Leases
from intervalq._shard.listener import Listener
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._timing.clock import Clock
from intervalq._timing.estimates import StoreClock
from intervalq.errors import StoreUnavailable
from intervalq.rules import FOREVER, Advance, State
from intervalq.store import Store
from planted.planting import bug, instead

_IN_ORDER: Final = WaitQueue.in_order
_ACCEPT: Final = Dispatcher.accept
_IS_OVER: Final = Dispatcher._is_over
_ASK: Final = Conversation._ask
_INIT: Final = StoreTime.__init__
_UNDO: Final = Dispatcher.undo
_BOUNDED: Final = StoreTime.bounded
_LEARN: Final = StoreClock.learn
_LISTEN: Final = Listener.__init__
_TOLERANCE: Final = StoreTime.tolerance


@bug("no-last-check", "stalls", 0)
def _() -> Iterator[None]:
    """A job begins whenever its slot was granted, however late that is."""

    def bounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        _BOUNDED(self, granted, state, at).before = FOREVER
        return granted

    yield from instead(StoreTime, "bounded", bounded)


@bug("check-before-answer", "stalls", 0)
def _() -> Iterator[None]:
    """The last check is made when the slot is handed over, instead of when the job begins."""

    def accept(self: Dispatcher, waiter: Waiter) -> Grant | None:
        for granted in self._grants.granted:
            self._bounded(granted).before = FOREVER
        try:
            return _ACCEPT(self, waiter)
        finally:
            for granted in self._grants.granted:
                granted.readings = -1  # for the caller that hands it over

    yield from instead(Dispatcher, "accept", accept)


@bug("too-tolerant", "stalls", 0)
def _() -> Iterator[None]:
    """A job may begin half an interval late."""

    def tolerance(self: StoreTime, state: State, at: int) -> int:
        return max(state.settings.interval // 2, _TOLERANCE(self, state, at))

    yield from instead(StoreTime, "tolerance", tolerance)


@bug("tolerance-not-widened", "calm", 19)
def _() -> Iterator[None]:
    """A distant shard never considers its slots certain enough, and so never begins a job."""
    yield from instead(StoreTime, "is_uncertain", lambda *_: False)


@bug("early-for-nothing", "stalls", 0)
def _() -> Iterator[None]:
    """Any slot may be used as soon as it is granted, even if the store didn't say so."""

    def bounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        _BOUNDED(self, granted, state, at).after = -FOREVER
        return granted

    yield from instead(StoreTime, "bounded", bounded)


@bug("late-ones-crowd", "late", 122)
def _() -> Iterator[None]:
    """After a job that began late, the next one begins at its own slot, however near that is."""

    def opens(_: Dispatcher, first: GrantRange) -> int:
        return first.opens - first.shift

    yield from instead(Dispatcher, "_opens", opens)


@bug("late-threads-start-over", "lags", 4)
def _() -> Iterator[None]:
    """A thread that is too late for its slot takes another one, for which it is too late as well."""

    def undo(self: Dispatcher, grant: Grant, *, again: bool = True) -> bool:
        del again
        return _UNDO(self, grant, again=False)

    yield from instead(Dispatcher, "undo", undo)


@bug("late-threads-sleep-again", "lags", 172)
def _() -> Iterator[None]:
    """A thread that slept too long for its slot is handed the next one early, too, and sleeps again."""

    def early(**options: Any) -> Waiter:
        options["early"] = EARLY
        return Waiter(**options)

    yield from instead(attempts, "Waiter", early)


@bug("late-threads-count", "lags", 1)
def _() -> Iterator[None]:
    """A thread that is too late counts as the last start, so that its slot comes an interval later."""
    yield from instead(LastStart, "was_none", lambda _self, _ticket: None)


@bug("by-new-settings", "changed", 2716)
def _() -> Iterator[None]:
    """A slot may be used as late as the present settings allow, instead of those when it was granted."""

    def bounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        granted.latest = FOREVER
        return _BOUNDED(self, granted, state, at)

    yield from instead(StoreTime, "bounded", bounded)


@bug("way-is-nothing", "slow", 3)
def _() -> Iterator[None]:
    """An answer is believed to show the store's present clock, however long it travelled."""

    def learn(self: StoreClock, sent: int, received: int, now: int) -> None:
        del sent
        _LEARN(self, received, received, now)

    yield from instead(StoreClock, "learn", learn)


@bug("clocks-compared", "calm", 2)
def _() -> Iterator[None]:
    """One process's estimate of the store's clock is used by others, whose own clocks differ."""
    shared = StoreClock()

    def init(self: StoreTime, **options: Any) -> None:
        _INIT(self, **options)
        self.clock = shared

    yield from instead(StoreTime, "__init__", init)


@bug("step-unseen", "stepped", 20)
def _() -> Iterator[None]:
    """A grant stays valid even after the clock on which its slot is fixed was stepped."""

    def bounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        granted.steps = self.clock.steps
        return _BOUNDED(self, granted, state, at)

    yield from instead(StoreTime, "bounded", bounded)


@bug("ready-before-they-open", "brisk", 6)
def _() -> Iterator[None]:
    """All slots of a range count as ready as soon as the first of them has come."""

    def all_open(self: GrantRange, at: int) -> bool:
        return self.opens <= at

    yield from instead(GrantRange, "all_open", all_open)


@bug("slot-used-again", "lossy", 7)
def _() -> Iterator[None]:
    """A slot whose answer was lost is believed to be granted, and is asked for once more."""

    async def ask(self: Conversation, question: Advance, speculative: int = 0) -> None:
        try:
            await _ASK(self, question, speculative)
        except StoreUnavailable:
            state = self._connection.state
            if state is not None:
                made = self._answers._range
                self._grants.granted.extend(made(slot, state) for slot in question.slots)
                self._dispatcher.look()
            raise

    yield from instead(Conversation, "_ask", ask)


@bug("used-given-back", "stalls", 0)
def _() -> Iterator[None]:
    """The slot of a job that began is given back with the next question."""

    def accept(self: Dispatcher, waiter: Waiter) -> Grant | None:
        grant = _ACCEPT(self, waiter)
        if grant is not None:
            self._grants.unused.append(grant.slot)
        return grant

    yield from instead(Dispatcher, "accept", accept)


@bug("order-lost", "stalls", 0)
def _() -> Iterator[None]:
    """A job that is too late for its slot goes to the end of its shard's queue."""

    def is_over(self: Dispatcher, first: GrantRange) -> None:
        _IS_OVER(self, first)
        queue = self._wait_queue
        if (waiter := queue.first()) is not None:
            last = max(other.order for other in queue.in_order())
            queue.remove(waiter)
            queue.first()  # removes it from its old place
            waiter.order, waiter.gone = (last[0], last[1] + 1), False
            queue.add(waiter)

    yield from instead(Dispatcher, "_is_over", is_over)


@bug("last-in-first-out", "calm", 0)
def _() -> Iterator[None]:
    """The job that was added last begins first."""

    def in_order(self: WaitQueue) -> Iterator[Waiter]:
        return iter([*_IN_ORDER(self)][::-1])

    def first(self: WaitQueue) -> Waiter | None:
        return next(in_order(self), None)

    with mock.patch.object(WaitQueue, "in_order", in_order):
        yield from instead(WaitQueue, "first", first)


@bug("wakeup-lost", "calm", 4)
def _() -> Iterator[None]:
    """A held shard sleeps until it is woken, and never asks by itself."""

    def next_look(self: Listener, time: StoreTime, state: State | None) -> float:
        del self, time, state
        return float("inf")

    yield from instead(Listener, "next_look", next_look)


@bug("resumed-unheard", "calm", 31)
def _() -> Iterator[None]:
    """A held shard ignores the answer to another command that says that the queue has resumed."""
    yield from instead(Conversation, "hold_changed", lambda _: None)


@bug("woken-for-nothing", "calm", 5)
def _() -> Iterator[None]:
    """Wake-ups of the store arrive, and no shard is woken."""

    def init(self: Listener, store: Store, queue: str, wake: Callable[[], None], clock: Clock) -> None:
        del wake
        _LISTEN(self, store, queue, lambda: None, clock)

    yield from instead(Listener, "__init__", init)


@bug("nobody-looks", "local", 207)
def _() -> Iterator[None]:
    """A job that joins the queue when its slot is already granted is not noticed."""

    def watch(self: Dispatcher, waiter: Waiter) -> None:
        del waiter
        self.ready = None

    yield from instead(Dispatcher, "watch", watch)


@bug("cost-forgotten", "calm", 15)
def _() -> Iterator[None]:
    """A job that costs several slots takes one."""

    async def ask(self: Conversation, question: Advance, speculative: int = 0) -> None:
        await _ASK(self, replace(question, costs=()), speculative)

    def accept(self: Dispatcher, waiter: Waiter) -> Grant | None:
        waiter.cost = 1
        return _ACCEPT(self, waiter)

    with mock.patch.object(Dispatcher, "accept", accept):
        yield from instead(Conversation, "_ask", ask)


@bug("leases-kept", "calm", 31)
def _() -> Iterator[None]:
    """With `max_running`, the store is not told that a job ended."""

    def ended(self: Leases, ticket: int) -> None:
        self.running.discard(ticket)

    yield from instead(Leases, "ended", ended)
