"""The task of one shard that talks to the store while jobs wait.

It sends the requests that the planner decides on, one at a time, and waits out holds and outages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._keys.shards import keyed_on, turn_of
from intervalq._shard.answers import Answers
from intervalq._shard.connection import Connection
from intervalq._shard.deadlines import Deadlines
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grants
from intervalq._shard.leases import Leases
from intervalq._shard.listener import Listener
from intervalq._shard.planner import Ask, Situation, may_come_sooner, next_question, plan
from intervalq._shard.settlements import Looks, Settlements
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Returning, WaitQueue
from intervalq._shard.warnings import Warnings
from intervalq._timing.backends import spawn
from intervalq._timing.clock import Clock
from intervalq._timing.outage import Outage
from intervalq._timing.wakeable_sleep import WakeableSleep
from intervalq.errors import CorruptState, QueueNotFound, StoreUnavailable
from intervalq.rules import FOREVER, Advance, Inspect, Settled, Slot

log: Final = logging.getLogger("intervalq")

_QUESTION: Final = 400
"""How long a request and its answer keep an event loop busy, in parts, on a slow machine (microseconds)."""
_STARTED: Final = 20
"""Allowance for a due job to actually start, in microseconds."""


class Conversation:
    """Sends the requests of one shard at the right times.

    Args:
        clock: the process's own clock.
        connection: the connection to the record.
        wait_queue: the waiting jobs.
        grants: the shard's slots.
        time: the store's clock.
        leases: notes slots that won't be used.
        dispatcher: notes granted slots.
        deadlines: refuses jobs whose slots come too late.
        lookahead: see `IntervalQueue`.
        is_closed: whether the shard accepts no more jobs.
        failed: called with an error that prevents slots from being handed out.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        connection: Connection,
        wait_queue: WaitQueue,
        grants: Grants,
        time: StoreTime,
        leases: Leases,
        dispatcher: Dispatcher,
        deadlines: Deadlines,
        lookahead: int | None,
        is_closed: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        self.runs = False
        """Whether the task that talks to the store is running."""
        self.is_kept = False
        """Whether jobs are kept waiting, without requests for them, until the shard is started."""
        self._queue, self._store = connection.queue, connection.store
        self._clock, self._connection = clock, connection
        self._wait_queue, self._grants, self._time = wait_queue, grants, time
        self._leases, self._dispatcher, self._deadlines = leases, dispatcher, deadlines
        self._answers = Answers(grants, time, leases, dispatcher, connection.store)
        self._warnings = Warnings(self._queue, self._store.url)
        self.settlements = Settlements(clock, are_usual=connection.has_own_limits)
        self.outage = Outage()  # the present one, if there is one
        self._lookahead, self._is_closed, self._failed = lookahead, is_closed, failed
        self._returning, self._looks = Returning(), Looks(are_made=keyed_on(connection.store) is None)
        self._counted = 0  # jobs that had begun at the last request
        self.waits_for_a_start = False
        """Whether the next request waits for the start of a job."""
        self._unplaced: list[anyio.Event] = []  # set once tickets have been taken
        self._asking, self._parked, self._idle = WakeableSleep(clock), WakeableSleep(clock), anyio.Event()
        self.kept: list[Slot] | None = None
        """A list for the slots left at the end, if a caller gives back those of several shards in one step,
        because only the last tickets can become free again. None: this shard gives them back itself."""

    def someone_waits(self) -> None:
        """Note that a job began to wait."""
        if self._wait_queue.waiting == 1:
            self._returning.came(self._time, self._connection.state, self._clock.now())
        self.begin()

    def begin(self) -> None:
        """Send a request soon, because there is something to ask or to report."""
        if self.is_kept:
            return
        if not self.runs:
            self.runs = True
            self._idle = anyio.Event()
            spawn(self._drive)
        self._asking.wake()

    def settle(self, slot: Settled, more: Mapping[str, int], took: int) -> None:
        """Record by how much the job of a slot exceeded its ticket, by unit, `took` after its slot."""
        if (state := self._connection.state) is not None:
            self.settlements.add(slot, more, state.settings.limits)
            self._looks.settled(took)
            self.begin()

    def ask_anew(self) -> None:
        """Plan again, because the situation has changed."""
        self._asking.wake()

    def hold_changed(self) -> None:
        """Note that a hold has ended, or has another end than the one that is waited for."""
        if self._parked.is_on or not self._connection.is_held:
            self._parked.wake()

    def nobody_waits(self) -> None:
        """Note that no job waits any more."""
        self._asking.wake()
        self._parked.wake()

    async def ended(self) -> None:
        """Wait until there is nothing left to send."""
        if self.settlements:
            self.begin()
        while self.runs:  # as long as this waits, jobs may settle their costs
            self.settlements.hurry()
            self.nobody_waits()
            await self._idle.wait()

    async def placed(self) -> None:
        """Wait until the waiting jobs have the tickets that they should have by now; not during a hold.

        A job behind others with tickets may have none yet: it is taken with a later request about theirs.
        """
        if self.runs and not self._connection.is_held:
            event = anyio.Event()
            self._unplaced.append(event)
            await event.wait()

    def changed(self) -> None:
        """Plan again, because a job began or slots changed."""
        self._asking.wake()
        if not self._wait_queue.waiting or self._grants.tickets:
            self._parked.wake()

    async def _drive(self) -> None:
        """Run from the first waiting job until none waits."""
        try:
            while self._wait_queue or self._grants or self.settlements.at < FOREVER:
                try:
                    await self._talk()
                except Exception as trouble:  # noqa: BLE001 - after any error, nobody may wait for ever
                    self._end_leases()
                    self._grants.forget()
                    self.settlements.troubled(trouble)
                    self._failed(trouble)
        finally:
            self.runs = False
            self._dispatcher.stop()
            self._asking.end()
            self._parked.end()
            self._idle.set()
            self.set_placed()

    async def _talk(self) -> None:
        """Send requests as long as there are any."""
        self.outage.ended()
        while True:
            await checkpoint()  # jobs that are added in one turn of the event loop share one request
            try:
                if not self._wait_queue:
                    if not await self._wind_down():
                        return
                elif not await self._is_shut() and not await self._check_clock():
                    await self._ask_or_wait()
                self.outage.rested(self._clock.now())
            except StoreUnavailable as error:
                await self._bear(error)

    async def _wind_down(self) -> bool:
        """While nobody waits, report what there is to report. Returns whether there may be more."""
        at, end = self._clock.now(), self._end_of_speculation()
        until = min(self.settlements.at, end) if end > at else self.settlements.at
        if end <= at and (farewell := self._farewell()) is not None:
            await self._ask(farewell)
        elif self.settlements.at <= at:
            await self._report()
        elif until < FOREVER:
            await self._asking.until(until)
        else:
            return False
        return True

    async def _is_shut(self) -> bool:
        """Outside of the hours of the queue, give slots back and wait. Returns whether that was so."""
        if (until := self._time.shut_until(self._connection.state, at := self._clock.now())) is None:
            return False
        if until <= at:
            await self._connection.command(Inspect())
        elif (farewell := self._farewell()) is not None or self.settlements.at <= at:
            await (self._report() if farewell is None else self._ask(farewell))
        else:
            self.set_placed()
            await self._asking.until(min(until, self.settlements.at))
        return True

    async def _ask_or_wait(self) -> None:
        self._dispatcher.pass_dead()
        await self._answers.pass_void(self._connection.state)
        if self._connection.is_held:  # checked after the line above, whose answer may show it
            await self._sit_out()
            return
        now = self._situation()
        decision = plan(now)
        if isinstance(decision, Ask):
            if not await self._keeps_clear():
                await self._ask(self._advance(decision), decision.speculative)
        elif (alone := self.settlements.alone_at(now.at, decision)) <= now.at:
            await self._report()
        else:
            self.set_placed()
            # Granted slots may use up the lookahead: then the next request is sent when a job begins.
            self.waits_for_a_start = decision <= now.at
            until = float("inf") if self.waits_for_a_start else decision
            await self._dispatcher.sleep_until(self._asking, min(until, alone))
            self.waits_for_a_start = False

    async def _bear(self, error: StoreUnavailable) -> None:
        """Wait before the next attempt after an error of the store, or give up."""
        now, attached = self._clock.now(), self._connection.attached
        self._dispatcher.away = now
        if self.outage.began(now) and attached and self._wait_queue:
            log.warning("queue %r: jobs wait for the store: %s", self._queue, error)
        waits = self._wait_queue or (self.settlements and not self._is_closed())
        if not attached or not waits or self.outage.is_over(now):
            raise error
        await self._parked.until(self.outage.again(now))
        self._dispatcher.away = self._clock.now()

    async def _check_clock(self) -> bool:
        """Send a request only to improve the estimate of the clocks, if that matters soon."""
        state, at = self._connection.state, self._clock.now()
        wanted = state is None and self._connection.is_new()
        if state is not None and state.held_since is None:  # a look for a sooner slot needs no exact clock
            close = bool(self._grants.granted) or next_question(self._situation(Looks())) <= at
            wanted = close and self._time.wants_check(state, self._time.lead(), at)
        if wanted:
            await self._connection.command(Inspect())
            self._dispatcher.recheck()
        return wanted

    def _situation(self, looks: Looks | None = None) -> Situation:
        turn = turn_of(self._store, self._grants, self._connection.state)
        return Situation(
            at=self._clock.now(), state=turn.state, time=self._time, wait_queue=self._wait_queue,
            grants=self._grants, lookahead=self._lookahead, began=self._dispatcher.begun - self._counted,
            turn=turn.size, apart=self._dispatcher.last.apart(self._connection.state), behind=turn.behind,
            returns=self._returning.is_likely, settles=self.settlements.are_usual,
            counted=self._connection.counted, is_placed=turn.is_placed, looks=looks or self._looks,
        )  # fmt: skip

    def _advance(self, ask: Ask) -> Advance:
        self._counted = self._dispatcher.begun
        return self._connection.advance(ask, self._grants.given_back(self._connection.last_ticket()))

    def _farewell(self) -> Advance | None:
        """The command that gives slots back when nobody waits any more; None: there are none."""
        self._end_leases()
        self._dispatcher.not_ready()
        if self._returning.ticket:
            self._returning.stayed_away()
        if self.kept is not None:
            left = [*self._grants.unused, *self._grants.coming()]
            self.kept += [slot for slot in left if slot.ticket > self._grants.covered]
            self._grants.forget()
            return None
        back = self._grants.give_all_back(self._connection.last_ticket())
        return Advance(release=back, high_water_mark=self._connection.high_water_mark) if back else None

    def _end_leases(self) -> None:
        self._leases.unused(self._grants.coming(), self._connection.state)

    async def _report(self) -> None:
        """Send a request that reports and reads; slots may come sooner by what it reports."""
        question, now = Advance(high_water_mark=self._connection.high_water_mark), self._situation()
        if self.settlements and may_come_sooner(now):
            self._grants.unused += self._grants.tickets  # given back in the step that takes new ones
            self._grants.tickets.clear()
            now = self._situation()
        if self.settlements and isinstance(ask := plan(replace(now, looks=self._looks.now())), Ask):
            question = self._advance(ask)
        await self._ask(question)

    async def _ask(self, question: Advance, speculative: int = 0) -> None:
        """Send a request, and process its answer."""
        before = self._connection.state
        if before is not None and self._answers.refund(self.settlements, before, self._connection.counted):
            question = replace(question, settled=self.settlements.take(self._connection.counted))
        try:
            answer = await self._connection.command(question)
        except BaseException:
            self.settlements.failed()
            # The store may or may not have got these slots; giving them back twice to one record is harmless.
            state = self._connection.state
            if before is not None and state is not None and before.generation == state.generation:
                self._grants.unused.extend(question.release)
                self._grants.doubtful.update(question.release, question.slots)
            raise
        self.settlements.answered()
        self.outage.ended()
        if answer.state is None:
            raise QueueNotFound(self._queue, self._store.url)
        is_asked = not question.slots or answer.granted  # otherwise, none may be issued
        if question.take and is_asked and not answer.count and not self._connection.is_held:
            raise CorruptState(
                self._store.url,
                f"queue {self._queue!r}: costs exceed the range of times: use smaller ones, or drop it",
            )
        if before is None or before.generation != answer.state.generation:
            question = replace(question, slots=())  # in a recreated record these are others' tickets
        at = self._clock.now()
        self._looks.answered(question, answer, at)
        self._answers.take_in(question, answer, speculative, at)
        if speculative and self._grants.tickets:
            self._returning.took(self._grants.tickets[-1].ticket)
        self._deadlines.check()
        self._warnings.check(self._dispatcher, self._time, answer.state, at)
        self._dispatcher.look()
        self.set_placed()

    async def _keeps_clear(self) -> bool:
        """Let a job begin first if its slot is about to come: a request takes as long as some tolerances.

        Returns whether it waited, in which case another request may be needed by now.
        """
        state, at = self._connection.state, self._clock.now()
        if state is not None and self._grants.granted and state.tolerance < _QUESTION:
            opens = self._time.bounded(self._grants.granted[0], state, at).opens
            if 0 < opens - at < _QUESTION <= state.settings.interval // 2:
                await self._asking.until(opens + _STARTED)
                return True
        return False

    def _end_of_speculation(self) -> float:
        """Until when to keep slots for jobs that are likely to come."""
        if self._is_closed() or self._connection.is_held:
            return 0
        if [slot.ticket for slot in self._grants.tickets] == [self._returning.ticket]:
            return next_question(self._situation())
        if not self._grants.granted or not (last := self._grants.granted[-1]).speculative:
            return 0
        return self._time.bounded(last, self._connection.state, self._clock.now()).last + last.before

    def set_placed(self) -> None:
        """Wake everybody who waits for tickets to be taken."""
        for event in self._unplaced:
            event.set()
        self._unplaced.clear()

    async def _sit_out(self) -> None:
        """Wait for the end of a hold; check it after each wake-up, and from time to time."""
        listener = Listener(self._store, self._queue, self._parked.wake, self._clock)
        try:
            await listener.start()
            while True:
                self._dispatcher.away = self._clock.now()  # slots that have passed since the hold ended, too
                # Only after listening has begun: the hold may have ended in between.
                await self._answers.pass_void(self._connection.state)
                decision = plan(self._situation())
                if isinstance(decision, Ask) and not decision.slots:
                    # Tickets that are taken right after the end of a lease would void those of this shard.
                    await self._connection.at_rest()
                    decision = plan(self._situation())
                if isinstance(decision, Ask):
                    await self._ask(self._advance(decision), decision.speculative)
                else:
                    await self._report()
                if not self._connection.is_held or not self._wait_queue:
                    return
                await self._parked.until(listener.next_look(self._time, self._connection.state))
                shut_until = self._time.shut_until(self._connection.state, self._clock.now())
                if not self._wait_queue or listener.is_in_vain or shut_until is not None:
                    return
        finally:
            listener.stop()
