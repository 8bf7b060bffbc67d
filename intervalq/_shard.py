"""One event loop's share of a queue: its jobs, its tickets, and one slot at a time that it waits for.

Two tasks run while there are jobs, none else. `_ask` talks to the store: it takes tickets for jobs, and asks
shortly before each slot whether to go. `_begin` waits for slots that may be used, and wakes the next jobs:
as many as slots have come. A slot is for whoever is first in line then, so jobs keep their order; one that
is past by then is given up.

All instants and durations in here are whole microseconds.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._backend import first_of, spawn
from intervalq._leases import LEASE
from intervalq._line import Line, Waiter
from intervalq._link import Link
from intervalq._listener import Listener
from intervalq._nap import Nap
from intervalq._outage import Outage
from intervalq._slots import Go, Slots
from intervalq.errors import QueueClosed, QueueNotFound, StoreUnavailable
from intervalq.rules import FOREVER, MOST_TICKETS, Advance, Answer, Inspect, Settings, Slot
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

_REACTION: Final = 200
"""How long a job takes to begin after the answer that tells it to go has come."""

_RIDE: Final = 50_000
"""How long the next ticket may wait for a question about a slot, if there are tickets."""

_PATIENCE: Final = {True: 5_000_000, False: 500_000}
"""How often a held shard asks by itself: seldom where the store wakes it, for a wake-up may be lost."""

_LISTEN_AGAIN: Final = 30_000_000
"""A held shard that isn't woken by the store tries to listen once more after this."""


class Shard(Link):
    """See the module. Made and used in one event loop; `is_open` and `due` may be called from any thread."""

    def __init__(self, queue: str, store: Store, settings: Settings | None, *, lookahead: int | None) -> None:
        super().__init__(queue, store, settings)
        self.line = Line()
        self.closed = False
        self._lookahead = lookahead
        self.slots = Slots()
        self._owed = 0  # slots that jobs of more than one slot still have to let pass
        self._unplaced: list[anyio.Event] = []  # who waits for tickets to be taken
        self._driven = False
        self._draining = False
        self.outage = Outage()
        self._idle = anyio.Event()
        self._asking = Nap()
        self._beginning = Nap()
        self._parked = Nap()

    # --- jobs come and go ---------------------------------------------------------------------------

    async def slot(self, waiter: Waiter) -> Go:
        """Wait in line until the waiter's slot has come, checked in the very task that asks.

        Raises:
            QueueClosed: the queue was closed before.
            ConfigMismatch, QueueNotFound, StoreError: as the store says.
        """
        if not waiter.entered:
            self.enter(waiter)
        try:
            while (go := self.accept(waiter)) is None:
                await waiter.wait()
            return go
        finally:
            self.leave(waiter)

    def enter(self, waiter: Waiter) -> None:
        """Put a waiter in line."""
        if self.closed and not (waiter.again and self._draining):
            raise QueueClosed(self.queue)
        waiter.entered = True
        self.line.add(waiter)
        if not self._driven:
            self._driven = True
            self._idle = anyio.Event()
            spawn(self._drive)
        self._asking.wake()
        if self.slots.granted:
            self._beginning.wake()

    async def placed(self) -> None:
        """Wait until the jobs in line have the tickets that they should have by now; not during a hold."""
        if self._driven and not self.held:
            event = anyio.Event()
            self._unplaced.append(event)
            await event.wait()

    def accept(self, waiter: Waiter) -> Go | None:
        """The last check before a job begins. None: it is not its turn, and it stays in line.

        Raises what the waiter failed with.
        """
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)  # one error for all who wait: each has its own way up
        while self.slots.granted and self.line.first() is waiter:
            go = self.slots.granted[0]
            if self.is_open(go, waiter.early):
                self.slots.granted.popleft()
                self.line.remove(waiter)
                self.begun += 1
                self.wasted = max(0, self.wasted - 1)
                self.begun_at = self.clock.now()
                self.leases.started(go.ticket)
                self._owed += waiter.cost - 1
                self._let_pass()
                if self._owed or self._next_question() <= self.begun_at:
                    self._asking.wake()
                return go
            if not self._pass_by():
                break
        return None

    def leave(self, waiter: Waiter) -> None:
        """The waiter wants no slot any more, or has one."""
        self.line.remove(waiter)
        if not self.line:
            self._asking.wake()
            self._parked.wake()

    def _pass_by(self) -> bool:
        """Give up the first slot that was told to go if it is past; whether it was."""
        if not self.is_past(go := self.slots.granted[0], self.clock.now()):
            return False
        self.slots.granted.popleft()
        self.give_up(go)
        self._asking.wake()
        return True

    def give_up(self, go: Go) -> None:
        """A slot that was told to go can't be used after all."""
        self.waste(1)
        self._sharpened += 1  # where each go holds the queue, there is no other time to ask for its clock
        self.slots.unused.append(go.slot)
        self.leases.ended(go.ticket)

    def expected(self, waiter: Waiter) -> Slot | None:
        """The slot that a waiting job will get if nothing changes; None: its ticket is not taken yet."""
        slots = self.slots.coming()
        ahead = self.line.slots_before(waiter, len(slots))
        return None if ahead is None else slots[ahead]

    def refuse(self, *, drain: bool) -> None:
        """Take no more jobs, but those that were in line before if they are to begin."""
        self.closed, self._draining = True, drain

    async def close(self, *, drain: bool) -> None:
        """Take no more jobs; let those that wait begin, or fail them; give unused tickets back."""
        self.refuse(drain=drain)
        if not drain:
            self._fail(QueueClosed(self.queue))
        if self._driven:
            self._asking.wake()
            self._parked.wake()
            await self._idle.wait()
        await self.leases.settle()

    # --- the driver ---------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Runs from the first job that waits until nobody does."""
        try:
            while self.line or self._owed or self.slots:
                try:
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._begin)
                        await self._ask()
                        group.cancel_scope.cancel()
                except* Exception as trouble:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                    self.forget_slots()
                    self._owed = 0
                    self._fail(first_of(trouble))
        finally:
            self._driven = False
            self._idle.set()
            self._set_placed()

    def _fail(self, error: Exception) -> None:
        for waiter in list(self.line.in_order()):
            self.line.remove(waiter)
            waiter.error = error
            waiter.wake()
        self._set_placed()

    async def _ask(self) -> None:
        """Talk to the store for as long as there is something to say."""
        self.outage.ended()
        while True:
            await checkpoint()  # jobs that are added in one turn of the event loop share one question
            try:
                if not self._wants():
                    if (farewell := self._farewell()) is None:
                        return
                    await self._put(farewell)
                elif self.held:
                    await self._sit_out()
                elif self._is_close() and self.is_blurred(self.lead()):
                    await self.command(Inspect())
                    self._beginning.wake()
                elif (question := self._question()) is not None:
                    await self._put(question)
                else:
                    self._set_placed()
                    again = self._next_question()
                    if not self.slots.tickets and again <= self.clock.now():
                        again = float("inf")  # as many were told to go as may be: when the next one begins
                    await self._asking.until(again, self.clock)
                self.outage.ended()
            except StoreUnavailable as error:
                now = self.clock.now()
                if self.outage.began(now) and self.attached and self.line:
                    log.warning("queue %r: jobs wait for the store: %s", self.queue, error)
                if not self.attached or not self.line or self.outage.is_over(now):
                    raise
                await self._parked.until(self.outage.again(now), self.clock)

    def _wants(self) -> bool:
        """Whether slots are waited for; one's own last job may hold the queue while others are still owed."""
        return bool(self.line) or (self._owed > 0 and not (self.held and (self.closed or self.paused)))

    def _farewell(self) -> Advance | None:
        """What to give back when nobody waits any more; None: nothing."""
        for go in self.slots.granted:
            self.leases.ended(go.ticket)
        self._owed = 0
        back = self.slots.give_all_back()
        return Advance(release=back, mark=self.mark) if back else None

    def _question(self) -> Advance | None:
        """What to ask the store now; None: nothing yet."""
        at = self.clock.now()
        lead = self.lead()
        while self.slots.tickets and self.is_lost(self.slots.tickets[0], at):
            self.slots.pass_by()
            self.waste(1)
        together = self.together()
        near = []
        if self.slots.tickets and self.comes(self.slots.tickets[0]) - lead <= at:
            near = list(takewhile(lambda slot: self.comes(slot) - together <= at, self.slots.tickets))
        told = len(self.slots.granted) + len(near)
        ahead = self.line.cost - told
        if self._lookahead is not None:  # the next ticket comes with the answer that tells the last one to go
            ahead = min(ahead, self._lookahead, max(2, self._lookahead) - told)
        want = max(0, self._owed + max(0, ahead) - (len(self.slots.tickets) - len(near)))
        if not near and (not want or self._can_wait(at)):
            return None
        first = self.line.first()
        # An answer that is slower than most finds its slot past: given back, it is soon had again.
        needed = self.round_trips.typical() + _REACTION + (first.early if first is not None else 0)
        return Advance(
            release=self.slots.given_back(),
            slots=tuple(near),
            take=min(want, MOST_TICKETS),
            notice=max(0, needed - self.tolerance(at) // 2),
            # A ticket that is not asked about yet comes before any new one.
            reach=together if len(near) == len(self.slots.tickets) else 0,
            lease=LEASE,
            mark=self.mark,
        )

    def _can_wait(self, at: int) -> bool:
        """Whether more tickets may wait for the next question about a slot, and ride along."""
        return not self._unplaced and at < self._next_question() <= at + _RIDE

    async def _put(self, question: Advance) -> Answer:
        """Ask, and sort the slots by the answer."""
        of = self.state
        try:
            answer = await self.command(question)
        except BaseException:
            # The store heard of them or not; giving them back twice does no harm, unless to another record.
            if of is not None and self.state is not None and of.generation == self.state.generation:
                self.slots.unused.extend(question.release)
            raise
        self.outage.ended()
        if answer.state is None:
            raise QueueNotFound(self.queue)
        told = [slot for slot in question.slots if slot.ticket in answer.granted and self.is_near(slot)]
        for slot in told:
            if slot in self.slots.tickets:
                self.slots.granted.append(self.go(slot))
            else:  # let pass while the question was on its way
                self.leases.ended(slot.ticket)
        void = answer.state.void
        self.slots.drop((*(slot.ticket for slot in told), *answer.missed), void)
        self.waste(sum(ticket > void for ticket in answer.missed))
        taken = answer.taken
        self.slots.granted.extend(self.go(slot) for slot in taken[: answer.begun])
        self.slots.tickets.extend(taken[answer.begun :])
        self._let_pass()
        if self.slots.granted:
            self._beginning.wake()
        self._set_placed()
        return answer

    def _let_pass(self) -> None:
        """Let slots pass that belong to a job which costs more than one."""
        while self._owed and (self.slots.granted or self.slots.tickets):
            if self.slots.granted:
                self.leases.ended(self.slots.granted.popleft().ticket)
            else:
                self.slots.tickets.popleft()
            self._owed -= 1

    def _set_placed(self) -> None:
        for event in self._unplaced:
            event.set()
        self._unplaced.clear()

    def forget_slots(self) -> None:
        """See `Link.forget_slots`."""
        self.slots.forget()
        self._asking.wake()  # it may be another's answer that told of it

    def has_slots(self) -> bool:
        """See `Link.has_slots`."""
        return bool(self.slots)

    def stepped(self) -> None:
        """See `Link.stepped`. Those that were told to go are given up when their time comes."""
        self.given_up += self.slots.pass_all()
        self._beginning.wake()
        self._asking.wake()

    def changed(self) -> None:
        """See `Link.changed`."""
        self._beginning.wake()
        if not self.held:
            self._parked.wake()

    def _is_close(self) -> bool:
        """Whether a slot is so near that it matters how well the store's clock is known."""
        return self.state is None or bool(self.slots.granted) or self._next_question() <= self.clock.now()

    def _next_question(self) -> float:
        """When to ask about a slot, or for one that comes after those that were told to go."""
        if self.slots.tickets:
            return self.comes(self.slots.tickets[0]) - self.lead()
        if self.line.cost <= len(self.slots.granted):
            return float("inf")
        return self.opens(self.slots.granted[-1]) - self.lead() if self.slots.granted else 0

    async def _sit_out(self) -> None:
        """Wait for the end of a hold; asks when it is told of one, and now and then."""
        listener = Listener(self.store, self.queue, self._parked.wake)
        began = self.clock.now()
        try:
            await listener.start()
            while True:
                # Asked only after listening began: the hold may have ended in between.
                await self._put(self._question() or Advance(mark=self.mark))
                if not self.held or not self._wants():
                    return
                await self._parked.until(self._end_of_hold(_PATIENCE[listener.hears]), self.clock)
                if not self._wants() or (not listener.hears and self.clock.now() - began > _LISTEN_AGAIN):
                    return
        finally:
            listener.stop()

    def _end_of_hold(self, patience: int) -> float:
        poll = self.clock.now() + patience
        until = self.state.held_until if self.state is not None else 0
        return min(poll, self.store_clock.surely(until)) if 0 < until < FOREVER else poll

    async def _begin(self) -> None:
        """Wake jobs when their slots have come, in order; each checks for itself, in the task that begins."""
        while True:
            waiter = self.line.first()
            if waiter is None or not self.slots.granted:
                await self._beginning.until(float("inf"), self.clock)
            elif self._pass_by():
                continue
            elif (opens := self.opens(self.slots.granted[0]) - waiter.early) > (at := self.clock.now()):
                await self._beginning.until(opens, self.clock)
            else:
                for other, go in zip(self.line.in_order(), self.slots.granted, strict=False):
                    if self.opens(go) - other.early > at:
                        break
                    other.wake()
                await checkpoint()  # after this they have looked
