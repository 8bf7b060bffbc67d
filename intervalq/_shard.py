"""One event loop's share of a queue: its jobs, its tickets, and one slot at a time that it waits for.

Two tasks run while there are jobs, none else. `_ask` talks to the store: it takes tickets for jobs, and asks
shortly before each slot whether to go. `_begin` waits for slots that may be used, and hands each to the next
job. A job that finds itself too late for its slot gives it up and keeps its place among its shard's jobs.

All instants and durations in here are whole microseconds.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from operator import attrgetter
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._backend import first_of, spawn
from intervalq._leases import LEASE
from intervalq._line import Line, Waiter
from intervalq._link import Go, Link
from intervalq._listener import Listener
from intervalq._nap import Nap
from intervalq.errors import QueueClosed, QueueNotFound, StoreUnavailable
from intervalq.rules import FOREVER, MOST_TICKETS, Advance, Answer, Inspect, Settings, Slot
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

OUTAGE: Final = 60_000_000
"""Jobs wait this long for a store that went away; then they fail with what it says."""

_TIMER: Final = 2_000
"""By how much an event loop may wake late: room for the question before a slot."""

_REACTION: Final = 200
"""How long a job takes to begin after the answer that tells it to go has come."""

_FIRST_LEAD: Final = 50_000
"""How long before a slot to ask while no round trip is known."""

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
        self._tickets: deque[Slot] = deque()  # not yet asked about, in slot order
        self._granted: deque[Go] = deque()  # may be used: all of them before those in _tickets
        self._unused: list[Slot] = []  # to be given back with the next question
        self._owed = 0  # slots that jobs of more than one slot still have to let pass
        self._unplaced: list[anyio.Event] = []  # who waits for tickets to be taken
        self._driven = False
        self._draining = False
        self._failing_since: int | None = None
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
            while True:
                await waiter.wait()
                if (slot := self.accept(waiter)) is not None:
                    return slot
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
        if self._granted:
            self._beginning.wake()

    async def placed(self) -> None:
        """Wait until the jobs in line have the tickets that they should have by now; not during a hold."""
        if self._driven and not self.held:
            event = anyio.Event()
            self._unplaced.append(event)
            await event.wait()

    def accept(self, waiter: Waiter) -> Go | None:
        """The last check before a job begins. None: too late for this slot, the waiter stays in line.

        Raises what the waiter failed with.
        """
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)  # one error for all who wait: each has its own way up
        go = waiter.slot
        ours = go is not None and bool(self._granted) and self._granted[0] is go
        if go is None or not ours or not self.is_open(go, waiter.early):
            waiter.answer()
            return None
        self._granted.popleft()
        self.begun += 1
        self.wasted = max(0, self.wasted - 1)
        self.begun_at = self.clock.now()
        self.leases.started(go.ticket)
        self._owed += waiter.cost - 1
        self._let_pass()
        self.line.remove(waiter)
        waiter.answer()
        self._asking.wake()
        return go

    def leave(self, waiter: Waiter) -> None:
        """The waiter wants no slot any more, or has one; a slot on its way to it goes to the next job."""
        self.line.remove(waiter)
        waiter.answer()
        if not self.line:
            self._asking.wake()
            self._parked.wake()

    def give_up(self, go: Go) -> None:
        """A slot that was told to go can't be used after all."""
        self.waste(1)
        self._sharpened += 1  # where each go holds the queue, there is no other time to ask for its clock
        self._unused.append(go.slot)
        self.leases.ended(go.ticket)

    def expected(self, waiter: Waiter) -> Slot | None:
        """The slot that a waiting job will get if nothing changes; None: its ticket is not taken yet."""
        slots = [*(go.slot for go in self._granted), *self._tickets]
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
            while self.line or self._owed or self._granted or self._tickets or self._unused:
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
        for waiter in self.line.in_order():
            self.line.remove(waiter)
            waiter.error = error
            waiter.wake()
        self._set_placed()

    async def _ask(self) -> None:
        """Talk to the store for as long as there is something to say."""
        self._failing_since = None
        pause = 50_000
        while True:
            await checkpoint()  # jobs that are added in one turn of the event loop share one question
            try:
                if not self._wants():
                    if (farewell := self._farewell()) is None:
                        return
                    await self._put(farewell)
                elif self.held:
                    await self._sit_out()
                elif self._is_close() and self.is_blurred(self._lead()):
                    await self.command(Inspect())
                    self._beginning.wake()
                elif (question := self._question()) is not None:
                    await self._put(question)
                else:
                    self._set_placed()
                    await self._asking.until(self._next_question(), self.clock)
                pause = 50_000
                self._failing_since = None
            except StoreUnavailable as error:
                now = self.clock.now()
                if self._failing_since is None:
                    self._failing_since = now
                    if self.attached and self.line:
                        log.warning("queue %r: jobs wait for the store: %s", self.queue, error)
                if not self.attached or not self.line or now - self._failing_since >= OUTAGE:
                    raise
                # full jitter, so that shards don't come back all at once
                await self._parked.until(now + random.randint(0, pause), self.clock)  # noqa: S311
                pause = min(2 * pause, 5_000_000)

    def _wants(self) -> bool:
        """Whether slots are waited for; one's own last job may hold the queue while others are still owed."""
        return bool(self.line) or (self._owed > 0 and not (self.held and (self.closed or self.paused)))

    def _farewell(self) -> Advance | None:
        """What to give back when nobody waits any more; None: nothing."""
        back = [*self._unused, *(go.slot for go in self._granted), *self._tickets]
        for go in self._granted:
            self.leases.ended(go.ticket)
        self.forget_slots()
        self._owed = 0
        return Advance(release=_ordered(back), mark=self.mark) if back else None

    def _question(self) -> Advance | None:
        """What to ask the store now; None: nothing yet."""
        at = self.clock.now()
        lead = self._lead()
        while self._tickets and self.is_lost(self._tickets[0], at):
            self._unused.append(self._tickets.popleft())
            self.waste(1)
        near = []
        for slot in self._tickets:
            if self.comes(slot) - lead > at:
                break
            near.append(slot)
        ahead = max(0, self.line.cost - len(self._granted) - len(near))
        if self._lookahead is not None:
            ahead = min(ahead, self._lookahead)
        want = max(0, self._owed + ahead - (len(self._tickets) - len(near)))
        if not near and not want:
            return None
        unused, self._unused = _ordered(self._unused), []
        first = self.line.first()
        # An answer that is slower than most finds its slot past: given back, it is soon had again.
        needed = self.round_trips.typical() + _REACTION + (first.early if first is not None else 0)
        return Advance(
            release=unused,
            slots=tuple(near),
            take=min(want, MOST_TICKETS),
            notice=max(0, needed - self.tolerance(at) // 2),
            # A ticket that is not asked about yet comes before any new one.
            reach=lead if len(near) == len(self._tickets) else 0,
            lease=LEASE,
            mark=self.mark,
        )

    async def _put(self, question: Advance) -> Answer:
        """Ask, and sort the slots by the answer."""
        of = self.state
        try:
            answer = await self.command(question)
        except BaseException:
            # The store heard of them or not; giving them back twice does no harm, unless to another record.
            if of is not None and self.state is not None and of.generation == self.state.generation:
                self._unused.extend(question.release)
            raise
        self._failing_since = None
        if answer.state is None:
            raise QueueNotFound(self.queue)
        gone = {*answer.granted, *answer.missed}
        for slot in (slot for slot in question.slots if slot.ticket in answer.granted):
            if slot in self._tickets:
                self._granted.append(self.go(slot))
            else:  # let pass while the question was on its way
                self.leases.ended(slot.ticket)
        void = answer.state.void  # that ours are dead keeps nobody waiting
        live = (slot for slot in self._tickets if slot.ticket > void and slot.ticket not in gone)
        self._tickets = deque(live)
        self.waste(sum(ticket > void for ticket in answer.missed))
        taken = answer.taken
        self._granted.extend(self.go(slot) for slot in taken[: answer.begun])
        self._tickets.extend(taken[answer.begun :])
        self._let_pass()
        if self._granted:
            self._beginning.wake()
        self._set_placed()
        return answer

    def _let_pass(self) -> None:
        """Let slots pass that belong to a job which costs more than one."""
        while self._owed and (self._granted or self._tickets):
            if self._granted:
                self.leases.ended(self._granted.popleft().ticket)
            else:
                self._tickets.popleft()
            self._owed -= 1

    def _set_placed(self) -> None:
        for event in self._unplaced:
            event.set()
        self._unplaced.clear()

    def forget_slots(self) -> None:
        """See `Link.forget_slots`."""
        self._tickets.clear()
        self._granted.clear()
        self._unused.clear()
        self._asking.wake()  # it may be another's answer that told of it

    def has_slots(self) -> bool:
        """See `Link.has_slots`."""
        return bool(self._tickets or self._granted or self._unused)

    def changed(self) -> None:
        """See `Link.changed`."""
        self._beginning.wake()
        if not self.held:
            self._parked.wake()

    def _lead(self) -> int:
        """How long before a slot to ask about it: a question under way, the question itself, a late timer."""
        slow = self.round_trips.slow()
        return 2 * slow + _TIMER if slow is not None else _FIRST_LEAD

    def _is_close(self) -> bool:
        """Whether a slot is so near that it matters how well the store's clock is known."""
        return self.state is None or bool(self._granted) or self._next_question() <= self.clock.now()

    def _next_question(self) -> float:
        return self.comes(self._tickets[0]) - self._lead() if self._tickets else float("inf")

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
        """Hand each slot that may be used to the next job, when it has come and not after."""
        while True:
            go = self._granted[0] if self._granted else None
            waiter = self.line.first()
            at = self.clock.now()
            if go is None or waiter is None:
                await self._beginning.until(float("inf"), self.clock)
            elif self.is_past(go, at):
                self._granted.popleft()
                self.give_up(go)
                self._asking.wake()
            elif (opens := self.opens(go) - waiter.early) > at:
                await self._beginning.until(opens, self.clock)
            else:
                waiter.slot = go
                waiter.heard = heard = anyio.Event()
                waiter.wake()
                await heard.wait()


def _ordered(slots: list[Slot]) -> tuple[Slot, ...]:
    return tuple(sorted(slots, key=attrgetter("ticket")))
