"""One event loop's part of a queue, as handles use it: puts the parts in this folder together.

`WaitQueue` holds the waiting jobs, and `Grants` the slots; `StoreTime` knows when these come. `plan` decides
what to request; the task of `Conversation` requests it through the `Connection`, and the task of `Dispatcher`
wakes jobs. All instants and durations in this folder are whole microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import anyio

from intervalq._keys.shards import keyed_on
from intervalq._shard.connection import Connection
from intervalq._shard.conversation import Conversation
from intervalq._shard.deadlines import Deadlines
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant, Grants
from intervalq._shard.leases import Leases
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._spec.mismatch import OnMismatch
from intervalq._timing.backends import asyncio_loop, wakers
from intervalq._timing.clock import CLOCK
from intervalq._timing.precision import Precision
from intervalq.errors import ForkedError, QueueClosed, SlotTimeout
from intervalq.rules import Answer, Command, Settings, Slot, State
from intervalq.store import Store

if TYPE_CHECKING:  # few queues have hours
    from intervalq._hours.window import Hours


class Shard:
    """The shard of one handle, created and used in one event loop; only `is_open` is for any thread.

    Args:
        queue: its name in the store.
        store: the store of the record.
        settings: the settings of the queue; None: those that it already has.
        lookahead: see `IntervalQueue`.
        strict: see `IntervalQueue`.
        precision: for how long the ends of waits poll the clock; None: the default.
        on_mismatch: see `IntervalQueue`.
        new: see `IntervalQueue`.
        start: whether jobs may begin before `start` is called.
        counted: the units of limits, in the order in which jobs list their units; None: as in the settings.
        beside: another shard in this event loop with the same store; both learn from each other when slots
            come (see `StoreTime`) and for how long the ends of waits poll the clock.
        hours: when jobs may begin; None: all day.
    """

    def __init__(
        self,
        queue: str,
        store: Store,
        settings: Settings | None,
        *,
        lookahead: int | None,
        strict: bool = False,
        precision: Precision | None = None,
        on_mismatch: OnMismatch = "raise",
        new: bool = False,
        start: bool = True,
        counted: tuple[str, ...] | None = None,
        beside: Shard | None = None,
        hours: Hours | None = None,
    ) -> None:
        self.queue = queue
        self.store = store
        self.process = os.getpid()
        """The process that the shard belongs to; a fork copies the shard, but not its connection."""
        self.loop: object = asyncio_loop() or self
        """The shard's event loop under asyncio; under another backend, an object that isn't an event loop.
        `REPLACED`: the clock of the process was replaced, and its handle needs another shard."""
        SHARDS.add(self)
        self.clock = CLOCK.get()
        own = keyed_on(store)  # slots of other keys lie between those of a key with a pace of its own
        moves = own is None or not own.own_pace
        near = None if beside is None else beside.time
        self.time: StoreTime = StoreTime(strict=strict, moves=moves, beside=near, hours=hours)
        self.precision: Precision = (precision or Precision()) if beside is None else beside.precision
        self.wait_queue = WaitQueue()
        self.grants = Grants()
        self.connection = Connection(
            queue, store, settings, self.time, self, on_mismatch=on_mismatch, new=new, counted=counted
        )
        self.leases = Leases(queue, self.command, lambda: self.connection.is_limited, self.clock)
        self.dispatcher = Dispatcher(
            clock=self.clock, wait_queue=self.wait_queue, grants=self.grants, time=self.time,
            leases=self.leases, precision=self.precision, connection=self.connection, failed=self._fail,
        )  # fmt: skip
        self.deadlines = Deadlines(
            clock=self.clock, connection=self.connection, wait_queue=self.wait_queue, grants=self.grants,
            time=self.time, send=self.command,
        )  # fmt: skip
        self.conversation = Conversation(
            clock=self.clock, connection=self.connection, wait_queue=self.wait_queue, grants=self.grants,
            time=self.time, leases=self.leases, dispatcher=self.dispatcher, deadlines=self.deadlines,
            lookahead=lookahead, is_closed=lambda: self.closed, failed=self._fail,
        )  # fmt: skip
        self.conversation.is_kept = not start
        self.dispatcher.use_asker(self.conversation)
        self.take_ready = self.dispatcher.take_ready
        self.closed: bool = False
        self._ends = False  # whether waiting jobs don't begin any more, either
        self._checks = 0  # jobs whose deadlines are checked before they wait
        self._checked = anyio.Event()
        self._has_ended = False  # whether nothing is sent any more
        self._waker = wakers()

    # --- jobs ---------------------------------------------------------------------------------------

    async def slot(self, waiter: Waiter, timeout: float | None = None) -> Grant:
        """Wait until the waiter's slot has come; the last check is made in the calling task.

        Raises:
            SlotTimeout: it has not come within `timeout` seconds, or is known to come too late.
            QueueClosed: the queue was closed before.
            ConfigMismatch, QueueNotFound, StoreError: raised by the store.
        """
        dispatcher = self.dispatcher
        if dispatcher.ready is not None and waiter.may_take_ready and (grant := dispatcher.take_ready()):
            return grant
        if timeout is not None:
            return await self._slot_in_time(waiter, timeout)
        if not waiter.entered:
            self.enter(waiter)
        try:
            while (grant := dispatcher.accept(waiter)) is None:
                dispatcher.needs_task()
                await waiter.wait(self._waker())
        except BaseException:
            self.leave(waiter)
            raise
        return grant

    async def _slot_in_time(self, waiter: Waiter, timeout: float) -> Grant:
        if waiter.within is None:
            waiter.within = round(timeout * 1e6)
        self.deadlines.note(waiter)
        with anyio.move_on_after(timeout):
            if not waiter.entered:
                await self._check_early(waiter)
            return await self.slot(waiter)
        raise SlotTimeout(self.queue, waiter.within / 1e6, self.deadlines.wait(waiter))

    async def _check_early(self, waiter: Waiter) -> None:
        """Refuse a job that would begin too late. One from before the queue was closed may still begin."""
        waiter.again = waiter.again or not self.closed
        self._checks += 1
        try:
            await self.deadlines.refuse_early(waiter)
        finally:
            self._checks -= 1
            if not self._checks:
                self._checked.set()
                self._checked = anyio.Event()

    def enter(self, waiter: Waiter) -> None:
        """Add a waiter to the wait queue, unless it is known to begin too late there."""
        if self._ends or (self.closed and not waiter.again):
            raise QueueClosed(self.queue)
        waiter.entered = True
        if waiter.within is not None:
            self.deadlines.note(waiter)
            if self.deadlines.refuse_behind_own(waiter):
                waiter.gone = True
                return
        self.wait_queue.add(waiter)
        self.conversation.someone_waits()
        self.dispatcher.watch(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter that doesn't want a slot any more."""
        self.wait_queue.remove(waiter)
        if not self.wait_queue.waiting:
            self.conversation.nobody_waits()

    def start(self) -> None:
        """Let the jobs begin that were kept until now."""
        self.conversation.is_kept = False
        if self.wait_queue:
            self.conversation.begin()

    def settle(self, grant: Grant, more: Mapping[str, int]) -> None:
        """Note how much more of each unit the job of a slot took than its ticket; negative: less.

        Raises:
            QueueClosed: the queue was closed before.
            ForkedError: the slot belongs to the process that this one was forked from.
        """
        if self.process != os.getpid():
            raise ForkedError(self.queue)
        if self._has_ended:
            raise QueueClosed(self.queue)
        if grant.range.record == self.grants.record and any(more.values()):
            took = max(0, self.clock.now() - self.time.clock.surely(grant.instant))
            self.conversation.settle(grant.range.counts.settled(grant.instant), more, took)

    def undo(self, grant: Grant) -> None:
        """Take back the slot of a job that did not begin: its thread came too late, or was interrupted."""
        if self._ends:
            self.dispatcher.undo(grant, again=False)
        elif self.dispatcher.undo(grant):
            self.conversation.begin()

    def is_open(self, grant: Grant) -> bool:
        """Whether a slot that was taken from its range may be used now; for any thread."""
        return self.is_in_time(grant) and not self._ends

    def is_in_time(self, grant: Grant) -> bool:
        """As `is_open`, but also for a closed shard: whether the slot has come and is not over."""
        now = self.clock.now()
        return grant.opens <= now <= grant.closes and grant.range.steps == self.time.clock.steps

    async def placed(self) -> None:
        """See `Conversation.placed`."""
        await self.conversation.placed()

    def expected(self, waiter: Waiter) -> Slot | None:
        """The slot that a waiting job will get if nothing changes; None: it has no ticket yet."""
        coming = self.grants.coming()
        for other in self.wait_queue.in_order():
            slot = next((slot for slot in coming if other.fits(slot)), None)
            if slot is None or other is waiter:
                return slot
        return None

    # --- the record ---------------------------------------------------------------------------------

    @property
    def is_replaced(self) -> bool:
        """Whether the clock of the process was replaced, so that its handle needs another shard."""
        return self.loop is REPLACED

    @property
    def state(self) -> State | None:
        """The record, as the last answer showed it."""
        return self.connection.state

    async def command(self, command: Command) -> Answer:
        """See `Connection.command`."""
        return await self.connection.command(command)

    @property
    def begun(self) -> int:
        """How many jobs have begun."""
        return self.dispatcher.begun

    @property
    def given_up(self) -> int:
        """How many slots were given up because their jobs would have begun too late."""
        return self.dispatcher.skipped.total() - self.dispatcher.skipped["revoked"]

    @property
    def calls(self) -> int:
        """How many commands were sent to the store."""
        return self.connection.calls

    @property
    def regressions(self) -> int:
        """How many times the store was found to have lost writes."""
        return self.connection.regressions

    @property
    def is_held(self) -> bool:
        """Whether the queue was held at the last answer."""
        return self.connection.is_held

    def due(self, slot: Slot) -> float:
        """A slot on the store's clock, in seconds since 1970."""
        state = self.connection.state
        return (slot.due + (state.held_total if state is not None else 0)) / 1e6

    def ended(self, grant: Grant, error: Exception | None = None) -> None:
        """Note that a job ended, and by which error, if it failed: for those who observe the shard."""
        del error
        self.free(grant)

    def free(self, grant: Grant) -> None:
        """Let others have the place of a job, unless its record is gone: its ticket may be another's now."""
        if grant.range.record == self.grants.record:
            self.leases.ended(grant.ticket)

    def store_time(self) -> float:
        """The estimated reading of the store's clock now, in seconds since 1970."""
        return self.time.now(self.clock.now())

    # --- the connection's `Owner` ----------------------------------------------------------------------

    def has_slots(self) -> bool:
        """See `Owner.has_slots`."""
        return bool(self.grants)

    def last_start(self) -> int | None:
        """See `Owner.last_start`."""
        return self.dispatcher.last.at

    def has_leases(self) -> bool:
        """See `Owner.has_leases`."""
        return self.leases.matter

    def record_lost(self) -> None:
        """See `Owner.record_lost`."""
        self.dispatcher.not_ready()
        self.grants.lost()
        self.leases.forget()
        self.conversation.settlements.forget()
        self.conversation.ask_anew()  # the reset may have been reported in the answer to another command
        self.conversation.hold_changed()

    def grants_lost(self) -> None:
        """See `Owner.grants_lost`. Slots from before a step of the clock are not requested again."""
        self.dispatcher.not_ready()
        while self.grants.granted and self.grants.granted[0].steps != self.time.clock.steps:
            self.dispatcher.give_up(self.grants.use(), "stepped")
        self.grants.ask_again()
        self.dispatcher.recheck()
        self.conversation.ask_anew()

    def clock_stepped(self) -> None:
        """See `Owner.clock_stepped`. Granted slots are given up when their time comes."""
        self.dispatcher.not_ready()
        self.dispatcher.skipped["stepped"] += self.grants.pass_all()
        self.dispatcher.recheck()
        self.conversation.ask_anew()

    def hold_changed(self) -> None:
        """See `Owner.hold_changed`."""
        self.dispatcher.recheck()
        self.conversation.hold_changed()

    # --- closing ------------------------------------------------------------------------------------

    def refuse(self, *, drain: bool) -> None:
        """Accept no more jobs, except, with `drain`, those that were already waiting."""
        self.closed, self._ends = True, not drain
        if drain:
            self.start()
        self.dispatcher.refuse()

    async def close(self, *, drain: bool) -> None:
        """Accept no more jobs; let waiting ones begin, or fail them; give unused tickets back."""
        self.refuse(drain=drain)
        if not drain:
            self._fail(QueueClosed(self.queue))
        elif self._checks:
            await self._checked.wait()
        await self.conversation.ended()
        self._has_ended = True
        await self.leases.close()

    def _fail(self, error: Exception) -> None:
        """Give all waiting jobs an error instead of a slot."""
        for waiter in list(self.wait_queue.in_order()):
            self.wait_queue.remove(waiter)
            waiter.error = error
            waiter.wake()
        self.conversation.set_placed()


REPLACED: Final = object()
"""The event loop of shards that are not to be used any more."""

SHARDS: Final[WeakSet[Shard]] = WeakSet()
"""All shards of this process, for tests that replace its clock."""
