"""One event loop's share of a queue: its jobs, its tickets, and one slot at a time that it waits for.

One task runs while there are jobs, and talks to the store: it takes tickets for jobs, and asks shortly before
each slot whether to go. Another one waits for slots to come, if any has to be waited for: see `Gate`.

All instants and durations in here are whole microseconds.
"""

from __future__ import annotations

import logging
from itertools import takewhile
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._shard.dispatcher import Gate
from intervalq._shard.leases import LEASE
from intervalq._shard.listener import Listener
from intervalq._timing.backends import spawn
from intervalq._timing.outage import Outage
from intervalq.errors import QueueClosed, QueueNotFound, StoreUnavailable
from intervalq.rules import FOREVER, MOST_TICKETS, Advance, Answer, Inspect, Settings
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

_LIKELY: Final = 1_000
"""Tickets may be taken ahead of jobs for as long as this, where at least ten slots fit into it."""

_EACH: Final = 10
"""How long one more job of a burst takes to begin."""

_QUESTION: Final = 400
"""How long a question and its answer keep an event loop busy, in parts, on a slow machine."""

_STARTED: Final = 20
"""By so much after its slot has come a job has begun."""

_RIDE: Final = 50_000
"""How long the next ticket may wait for a question about a slot, if there are tickets."""

_PATIENCE: Final = {True: 5_000_000, False: 500_000}
"""How often a held shard asks by itself: seldom where the store wakes it, for a wake-up may be lost."""

_LISTEN_AGAIN: Final = 30_000_000
"""A held shard that isn't woken by the store tries to listen once more after this."""


class Shard(Gate):
    """See the module. Made and used in one event loop; `is_open` and `due` may be called from any thread."""

    def __init__(self, queue: str, store: Store, settings: Settings | None, *, lookahead: int | None) -> None:
        super().__init__(queue, store, settings)
        self.outage = Outage()
        self._lookahead = lookahead
        self._spare = 0  # tickets that the last question took for jobs that are likely to come
        self._counted = 0  # jobs that had begun at the last question
        self._unplaced: list[anyio.Event] = []  # who waits for tickets to be taken
        self._idle = anyio.Event()

    async def placed(self) -> None:
        """Wait until the jobs in line have the tickets that they should have by now; not during a hold."""
        if self.driven and not self.held:
            event = anyio.Event()
            self._unplaced.append(event)
            await event.wait()

    def refuse(self, *, drain: bool) -> None:
        """Take no more jobs, but those that were in line before if they are to begin."""
        self.closed, self.draining, self.ready = True, drain, None

    async def close(self, *, drain: bool) -> None:
        """Take no more jobs; let those that wait begin, or fail them; give unused tickets back."""
        self.refuse(drain=drain)
        if not drain:
            self.fail(QueueClosed(self.queue))
        if self.driven:
            self._asking.wake()
            self._parked.wake()
            await self._idle.wait()
        await self.leases.settle()

    def drive(self) -> None:
        """See `Gate.drive`."""
        self.driven = True
        self._idle = anyio.Event()
        spawn(self._drive)

    async def _drive(self) -> None:
        """Runs from the first job that waits until nobody does."""
        try:
            while self.line or self._owed or self.slots:
                try:
                    await self._ask()
                except Exception as trouble:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                    self.forget_slots()
                    self._owed = 0
                    self.fail(trouble)
        finally:
            self.driven = False
            self._beginning.wake()
            for nap in (self._asking, self._beginning, self._parked):
                nap.end()
            self._idle.set()
            self._set_placed()

    def fail(self, error: Exception) -> None:
        """See `Gate.fail`."""
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
                    if (end := self._end_of_likely()) > self.clock.now():
                        await self._asking.until(end)
                        continue
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
                        self._full = True
                    await self._asking.until(again)
                    self._full = False
                self.outage.ended()
            except StoreUnavailable as error:
                now = self.clock.now()
                if self.outage.began(now) and self.attached and self.line:
                    log.warning("queue %r: jobs wait for the store: %s", self.queue, error)
                if not self.attached or not self.line or self.outage.is_over(now):
                    raise
                await self._parked.until(self.outage.again(now))

    def _wants(self) -> bool:
        """Whether slots are waited for; one's own last job may hold the queue while others are still owed."""
        return bool(self.line) or (self._owed > 0 and not (self.held and (self.closed or self.paused)))

    def _farewell(self) -> Advance | None:
        """What to give back when nobody waits any more; None: nothing."""
        if self.is_limited:
            for run in self.slots.granted:
                for slot in run:
                    self.leases.ended(slot.ticket)
        self._owed = self._spare = 0
        self.ready = None
        back = self.slots.give_all_back(self.last())
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
        told = self.slots.told + len(near)
        ahead = self.line.cost - told
        if self._lookahead is not None:  # the next ticket comes with the answer that tells the last one to go
            ahead = min(ahead, self._lookahead, max(2, self._lookahead) - told)
        want = max(0, self._owed + max(0, ahead) - (len(self.slots.tickets) - len(near)))
        if not near and (not want or self._can_wait(at)):
            return None
        self._spare = spare = self._likely(self.line.cost - told) if want else 0
        first = self.line.first()
        # An answer that is slower than most finds its slot past: given back, it is soon had again.
        needed = self.round_trips.typical() + self.reaction + (first.early if first is not None else 0)
        if self.state is not None:  # where slots lie in the past, all jobs of a burst have to begin in time
            needed += min(self.state.credit, (want + spare) * _EACH)
        return Advance(
            release=self.slots.given_back(self.last()),
            slots=tuple(near),
            take=min(want + spare, MOST_TICKETS),
            notice=max(0, needed - self.tolerance(at) // 2),
            # A ticket that is not asked about yet comes before any new one.
            reach=together if len(near) == len(self.slots.tickets) else 0,
            lease=LEASE,
            mark=self.mark,
        )

    def _likely(self, more: int) -> int:
        """How many jobs are likely to come at once, beside those that need `more` slots.

        Where slots are closer together than questions to the store can be, callers that come again and again
        would wait for an answer each time. So tickets are taken for twice as many jobs as began since the
        last question: for a millisecond at most, so that as little is lost if nobody comes.
        """
        began, self._counted = self.begun - self._counted, self.begun
        most = _LIKELY // self.state.settings.interval if self.state is not None else 0
        if most < 10 or self.is_limited:
            return 0
        room = MOST_TICKETS if self._lookahead is None else self._lookahead - more
        return max(0, min(2 * began, most, room))

    def _end_of_likely(self) -> int:
        """Until when there are slots for jobs that are likely to come."""
        run = self.slots.granted[-1] if self.slots.granted else None
        if run is None or not run.likely or self.closed or self.held:
            return 0
        return self.bounded(run).last + run.before

    def _can_wait(self, at: int) -> bool:
        """Whether more tickets may wait for the next question about a slot, and ride along."""
        return not self._unplaced and at < self._next_question() <= at + _RIDE

    async def _put(self, question: Advance) -> Answer:
        """Ask, and sort the slots by the answer."""
        of, self.ready = self.state, None
        try:
            await self._keep_clear()
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
        void = answer.state.void
        here = self.slots.answered({*question.slots}, {*told}, {*answer.missed}, void)
        for slot in told:
            if slot in here:
                self.slots.granted.append(self.run(slot))
            else:  # let pass while the question was on its way
                self.leases.ended(slot.ticket)
        self.waste(sum(ticket > void for ticket in answer.missed))
        if answer.first is not None and answer.begun:
            self.slots.granted.append(self.run(answer.first, answer.begun, likely=self._spare > 0))
        if answer.count > answer.begun:
            self.slots.tickets.extend(answer.taken[answer.begun :])
        self._let_pass()
        self.let_begin()
        self._set_placed()
        return answer

    async def _keep_clear(self) -> None:
        """Let a job begin first that is about to: a question takes as long as some tolerances are."""
        state = self.state
        if state is not None and self.slots.granted and state.tolerance < _QUESTION:
            opens = self.bounded(self.slots.granted[0]).opens
            if 0 < opens - self.now() < _QUESTION <= state.settings.interval // 2:
                await self._asking.until(opens + _STARTED)

    def _set_placed(self) -> None:
        for event in self._unplaced:
            event.set()
        self._unplaced.clear()

    def forget_slots(self) -> None:
        """See `Link.forget_slots`."""
        self.ready = None
        self.slots.forget()
        self._asking.wake()  # it may be another's answer that told of it

    def has_slots(self) -> bool:
        """See `Link.has_slots`."""
        return bool(self.slots)

    def stepped(self) -> None:
        """See `Link.stepped`. Those that were told to go are given up when their time comes."""
        self.ready = None
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
        if self.line.cost <= self.slots.told:
            return float("inf")
        return self.store_clock.surely(self.slots.granted[-1].last) - self.lead() if self.slots.granted else 0

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
                await self._parked.until(self._end_of_hold(_PATIENCE[listener.hears]))
                if not self._wants() or (not listener.hears and self.clock.now() - began > _LISTEN_AGAIN):
                    return
        finally:
            listener.stop()

    def _end_of_hold(self, patience: int) -> float:
        poll = self.clock.now() + patience
        until = self.state.held_until if self.state is not None else 0
        return min(poll, self.store_clock.surely(until)) if 0 < until < FOREVER else poll
