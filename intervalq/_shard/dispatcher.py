"""Who is in line for a slot, and who may begin now: the side of a shard that jobs see.

A slot is for whoever is first in line when it comes, so jobs keep their order. As many are woken as slots
have come; each makes the last check for itself, in the task that begins.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._shard.connection import REACTION, Link
from intervalq._shard.grants import Go, Run, Slots
from intervalq._shard.wait_queue import Line, Waiter
from intervalq._timing.backends import asyncio_loop, bells, spawn
from intervalq._timing.wakeable_sleep import Nap
from intervalq.errors import QueueClosed, SlotTimeout
from intervalq.rules import Settings, Slot
from intervalq.store import Store

_SLOWEST: Final = 25_000
"""The most to allow for it. It doubles while slots come too soon, so that an event loop which is busy with
many queues gets less to do, until it keeps up."""

_FINE: Final = 1_000
"""With a tolerance under a millisecond, the end of a wait is spent looking at the clock: see `Clock.spin`."""


class Gate(Link):
    """See the module."""

    def __init__(self, queue: str, store: Store, settings: Settings | None) -> None:
        super().__init__(queue, store, settings)
        self.line = Line()
        self.slots = Slots()
        self.loop: object = asyncio_loop() or self
        """The event loop of asyncio that it lives in; of another kind, something that no event loop is."""
        self.ready: Run | None = None
        """Slots that have come while nobody waits: jobs may take one after the other, up to `ready_until`."""
        self.ready_until = 0
        self.closed = self.draining = False
        self.driven = False
        """There is a task that talks to the store."""
        self._begins = False  # there is a task that waits for slots
        self._bell = bells()
        self._owed = 0  # slots that jobs of more than one slot still have to let pass
        self._full = False  # nothing is asked until a job begins
        self._asking = Nap(self.clock)
        self._beginning = Nap(self.clock)
        self._parked = Nap(self.clock)

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Tell everybody who waits that they won't get a slot."""

    @abstractmethod
    def drive(self) -> None:
        """Somebody waits: talk to the store from now on."""

    async def slot(self, waiter: Waiter, timeout: float | None = None) -> Go:
        """Wait in line until the waiter's slot has come, checked in the very task that asks.

        Raises:
            SlotTimeout: it has not come within so many seconds.
            QueueClosed: the queue was closed before.
            ConfigMismatch, QueueNotFound, StoreError: as the store says.
        """
        if timeout is not None:
            with anyio.move_on_after(timeout):
                return await self.slot(waiter)
            raise SlotTimeout(self.queue, timeout)
        if not waiter.entered:
            self.enter(waiter)
        try:
            while (go := self.accept(waiter)) is None:
                if self.slots.granted and not self._begins:
                    self._see_to_begin()
                await waiter.wait(self._bell())
        except BaseException:
            self.leave(waiter)
            raise
        return go

    def enter(self, waiter: Waiter) -> None:
        """Put a waiter in line."""
        if self.closed and not (waiter.again and self.draining):
            raise QueueClosed(self.queue)
        waiter.entered = True
        self.ready = None
        self.line.add(waiter)
        if not self.driven:
            self.drive()
        self._asking.wake()
        # A job without a task can't look by itself, once those before it, long woken, have begun.
        if self.slots.granted and (not self._begins or self.line.first() is waiter):
            self._see_to_begin()

    def accept(self, waiter: Waiter) -> Go | None:
        """The last check before a job begins. None: it is not its turn, and it stays in line.

        Raises what the waiter failed with.
        """
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)  # one error for all who wait: each has its own way up
        while self.slots.granted and self.line.first() is waiter:
            run = self.slots.granted[0]
            if run.known != self.store_clock.answers:
                self.bounded(run)
            at = self.now()
            ago = at - run.last + (run.count - 1) * run.step  # since the first of its slots
            if ago > run.before:
                self._pass_by()
            elif ago < run.after - waiter.early:
                break
            else:
                self.line.remove(waiter)
                go = self._use(at, waiter.cost)
                if not self.line.waiting:
                    self._all_began(run, at)
                return go
        return None

    def _all_began(self, run: Run, at: int) -> None:
        """Nobody waits any more. Jobs that come next may take what is left of a run without a question."""
        self._asking.wake()
        self._parked.wake()
        if run.count and run.all_open(at) and not (self._owed or self.is_limited or self.closed):
            self.ready, self.ready_until = run, run.closes

    def at_once(self) -> Go | None:
        """A slot that is ready, for a job that comes just now; None: it has to wait in line."""
        run = self.ready
        if run is None or self.now() > self.ready_until:
            return None
        go = Go(run, run.count)
        self.begun += 1
        run.count -= 1
        if not run.count:
            self.used_up()
        return go

    def used_up(self) -> None:
        """The last of the slots that were ready was taken."""
        self.ready = None
        self.slots.granted.popleft()
        self.begun_at = self.clock.now()
        self.wasted = 0

    def _use(self, at: int, cost: int) -> Go:
        """A job begins in the first slot that was told to go."""
        go = self.slots.use()
        self.begun += 1
        if self.wasted:
            self.wasted -= 1
        if self.reaction > REACTION:
            self.reaction -= self.reaction // 8
        self.begun_at = at
        if self.is_limited:
            self.leases.started(go.ticket)
        if cost > 1:
            self._owed += cost - 1
            self._let_pass()
        if self._owed or self._full:
            self._asking.wake()
        return go

    def leave(self, waiter: Waiter) -> None:
        """The waiter wants no slot any more."""
        self.line.remove(waiter)
        if not self.line.waiting:
            self._asking.wake()
            self._parked.wake()

    def _pass_by(self) -> None:
        """Give up the first slot that was told to go: it is past."""
        run = self.slots.granted[0]
        if run.at_once:
            run.at_once = False  # a run counts once
            self.reaction = min(_SLOWEST, 2 * self.reaction)
        self.give_up(self.slots.use())
        self._asking.wake()

    def give_up(self, go: Go) -> None:
        """A slot that was told to go can't be used after all."""
        if not go.run.likely:
            self.waste(1)
        self._sharpened += 1  # where each go holds the queue, there is no other time to ask for its clock
        self.slots.unused.append(go.slot)
        self.leases.ended(go.ticket)

    def expected(self, waiter: Waiter) -> Slot | None:
        """The slot that a waiting job will get if nothing changes; None: its ticket is not taken yet."""
        slots = [*self.slots.coming()]
        ahead = self.line.slots_before(waiter, len(slots))
        return None if ahead is None else slots[ahead]

    def _let_pass(self) -> None:
        """Let slots pass that belong to a job which costs more than one."""
        while self._owed and (self.slots.granted or self.slots.tickets):
            if self.slots.granted:
                self.leases.ended(self.slots.use().ticket)
            else:
                self.slots.tickets.popleft()
            self._owed -= 1

    def let_begin(self) -> None:
        """Slots were told to go: wake jobs now or, by a task of its own, when those have come."""
        if not self.slots.granted:
            return
        if self._begins or self._wake(self.now()) < self.line.waiting:
            self._see_to_begin()

    def _see_to_begin(self) -> None:
        if self._begins:
            self._beginning.wake()
        else:
            self._begins = True
            spawn(self._begin)

    def _wake(self, at: int) -> int:
        """Wake jobs whose slots have come, in order, and say how many."""
        woken, waiters = 0, self.line.in_order()
        for run in self.slots.granted:
            opens = self.bounded(run).opens
            for waiter in islice(waiters, run.count):
                if opens - waiter.early > at:
                    return woken
                waiter.wake()
                woken += 1
                opens += run.step
        return woken

    async def _begin(self) -> None:
        """Wake jobs when their slots have come, for as long as the shard is driven."""
        try:
            while self.driven:
                await self._begin_next()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            self.fail(error)
        finally:
            self._begins = False

    async def _begin_next(self) -> None:
        waiter = self.line.first()
        if waiter is None or not self.slots.granted:
            await self._beginning.until(float("inf"))
            return
        run, at = self.bounded(self.slots.granted[0]), self.now()
        if at > run.closes:
            self._pass_by()
        elif (left := run.opens - waiter.early - at) > 0:
            spin = self.clock.spin if self.state is not None and self.state.tolerance < _FINE else 0
            if left > spin:
                await self._beginning.until(at + left - spin)
            else:
                await checkpoint()
        else:
            self._wake(at)
            await checkpoint()  # after this they have looked
