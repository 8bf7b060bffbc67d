"""When a job added now could begin, and which waiting jobs are known to get their slots too late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import chain, islice, takewhile
from typing import Final

import anyio

from intervalq._keys.shards import keyed_on
from intervalq._shard.connection import Connection
from intervalq._shard.grants import Grants
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._spec.configure import ordered
from intervalq._spec.passing import resumed
from intervalq._spec.standing import NextSlots
from intervalq._timing.clock import Clock
from intervalq.errors import SlotTimeout, StoreUnavailable
from intervalq.rules import FOREVER, Answer, Command, Inspect, Slot, State, Units

_FRESH: Final = 50_000
"""A job may be refused by an answer that is younger than this, in microseconds, without asking again."""


class Deadlines:
    """Refuses jobs that can't begin in time, before they take a ticket or as soon as its slot is known.

    Slots may come later than they seem to now, for example because of a pause. They rarely come earlier: only
    if a hold is ended, or other processes give their last slots back.

    Args:
        clock: the process's own clock.
        connection: has the record, as the last answer showed it.
        wait_queue: the waiting jobs.
        grants: the shard's slots.
        time: the store's clock.
        send: sends a command to the queue's record.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        connection: Connection,
        wait_queue: WaitQueue,
        grants: Grants,
        time: StoreTime,
        send: Callable[[Command], Awaitable[Answer]],
    ) -> None:
        self._clock = clock
        self._connection = connection
        self._wait_queue = wait_queue
        self._grants = grants
        self._time = time
        self._send = send
        self._looking: anyio.Event | None = None  # set when the request in flight is answered, or has failed

    def wait(self, waiter: Waiter) -> float | None:
        """Seconds until a job like this one, added now, could begin, by the last answer.

        None: unknown, because the queue is paused without an end, or at its limit of running jobs, or because
        the store has not answered yet, or refused the handle's settings.
        """
        at, key = self._clock.now(), keyed_on(self._connection.store)
        state = self._record(at)
        if state is None and key is not None:
            state = key.common  # a new key waits only for the others
        if state is None:
            is_known = self._connection.has_seen and not self._wait_queue.waiting
            return (self._time.opens(at) - at) / 1e6 if is_known else None
        if state.held_since is not None and (state.full or state.held_until >= FOREVER):
            return None
        added = Waiter(-waiter.order[0], waiter.cost, units=waiter.units)
        return self._left(self._begins(self._next_due(added, state, at), state, at), at)

    def note(self, waiter: Waiter) -> None:
        """Note the deadline of a job that must begin within a time."""
        if waiter.latest is None and waiter.within is not None:
            waiter.latest = self._clock.now() + waiter.within
            self._wait_queue.has_deadlines = True

    def refuse_behind_own(self, waiter: Waiter) -> bool:
        """Refuse a job that is about to wait if slots of this shard alone show that it is late."""
        at = self._clock.now()
        state, slots = self._record(at), self._grants.granted_count + len(self._grants.tickets)
        behind = self._wait_queue.waiting - slots
        is_last = not self._wait_queue.has_behind(waiter.order)
        if waiter.latest is None or state is None or not slots or not is_last or self._void(state):
            return False
        if behind < 0:
            if self._wait_queue.mixed or waiter.cost > 1 or waiter.units:
                return False  # it may need a slot of its own
            due = self._next_due(waiter, state, at)
        else:
            last = self._grants.last()
            due = last.due + (last.cost + behind) * state.settings.interval
        begins = self._begins(due, state, at)
        if begins <= self._limit(waiter, at):
            return False
        waiter.error = self._error(waiter)
        return True

    async def refuse_early(self, waiter: Waiter) -> None:
        """Refuse a job that would begin too late, before it waits and takes a ticket.

        Otherwise, processes with more jobs than the queue's pace allows would waste slots: a ticket that is
        given back leaves its slot empty if others took tickets after it.

        Raises:
            SlotTimeout: a slot comes too late.
        """
        error, age = self._refusal(waiter), self._clock.now() - self._connection.heard_at
        if self._was_close(waiter) if error is None else age > _FRESH:
            try:
                await self._look()
            except StoreUnavailable:
                return  # the job waits for the store as others do
            error = self._refusal(waiter)
        if error is not None:
            raise error

    async def _look(self) -> None:
        """Ask for the record; jobs that come meanwhile share the answer."""
        came = self._clock.now()
        while self._connection.heard_at < came:
            if self._looking is not None:
                await self._looking.wait()  # if that request has failed, this job sends its own
                continue
            self._looking = looking = anyio.Event()
            try:
                # The answer to any request that is on its way serves as well. One job waits for it here:
                # several would only hand the lock to each other.
                while self._connection.is_busy and self._connection.heard_at < came:
                    await self._connection.at_rest()
                if self._connection.heard_at < came:
                    await self._send(Inspect())
            finally:
                self._looking = None
                looking.set()
            return

    def check(self) -> None:
        """After an answer: refuse the jobs whose tickets turn out to have slots that come too late."""
        at = self._clock.now()
        state = self._record(at)
        if state is None or not self._wait_queue.has_deadlines:
            return
        late: list[Waiter] = []
        slots = [*self._coming(state)]
        used, free, soonest = 0, self._behind(state, at), at + self._time.notice(at)
        for waiter in self._wait_queue.in_order():
            place = next((i for i in range(used, len(slots)) if waiter.fits(slots[i])), None)
            if place is not None:
                due = slots[place].due
            elif state.held_since is not None:
                due = free.next(
                    waiter.cost, self._units(waiter, state)
                )  # tickets are taken when the hold ends
            else:
                break
            if waiter.latest is not None and self._begins(due, state, at) > max(waiter.latest, soonest):
                late.append(waiter)  # a job behind it gets its slot
                continue
            if place is None:
                free.take(waiter.cost, self._units(waiter, state), due)
                used = len(slots)  # it skips all slots that are too cheap for it
            else:
                used = place + 1
        for waiter in late:
            self._wait_queue.remove(waiter)
        for waiter in late:
            waiter.error = self._error(waiter)
            waiter.wake()

    def _record(self, at: int) -> State | None:
        """The record, as the last answer showed it; for that of a key, see `KeyStore.for_forecasts`."""
        state, key = self._connection.state, keyed_on(self._connection.store)
        if state is None or key is None:
            return state
        return key.for_forecasts(state, self._end_of_hold(state, at))

    def _end_of_hold(self, state: State, at: int) -> int:
        """When a hold ends, on the store's clock; now, if nobody knows."""
        # A running job that ends before a pause does not end the hold.
        is_known = 0 < state.held_until < FOREVER
        return state.held_until if is_known else self._time.clock.latest(at)

    def _refusal(self, waiter: Waiter) -> SlotTimeout | None:
        at = self._clock.now()
        state = self._record(at)
        if waiter.latest is None or state is None:
            return None
        begins = self._begins(self._next_due(waiter, state, at), state, at)
        return self._error(waiter) if begins > self._limit(waiter, at) else None

    def _limit(self, waiter: Waiter, at: int) -> int:
        """The latest instant for a slot: even an idle queue gives none before its answer arrives."""
        assert waiter.latest is not None
        return max(waiter.latest, at + self._time.notice(at))

    def _error(self, waiter: Waiter) -> SlotTimeout:
        assert waiter.within is not None
        return SlotTimeout(self._connection.queue, waiter.within / 1e6, self.wait(waiter), at_once=True)

    def _was_close(self, waiter: Waiter) -> bool:
        """Whether, at the last answer, the next slot but one would have been too late for this job.

        Then others have probably taken the next slot since, so that the job's ticket would be useless.
        """
        then = self._connection.heard_at
        state = self._record(then)
        if waiter.within is None or state is None:
            return False
        begins = self._begins(self._next_due(waiter, state, then, another=True), state, then)
        return begins > then + waiter.within

    def _begins(self, due: int, state: State, at: int) -> float:
        """The earliest instant, on the process's own clock, for a slot to come."""
        return self._time.opens(self._comes(due, state, at))

    def _comes(self, due: int, state: State, at: int) -> float:
        instant = due + state.held_total
        if state.held_since is None:
            return self._time.clock.perhaps(instant)
        # A pause without an end may be ended now, or a running job end: the answer still needs its time then.
        comes = self._end_of_hold(state, at) + max(0, instant - state.held_since)
        return max(self._time.clock.perhaps(comes), at + self._time.notice(at) + 1)

    def _left(self, begins: float, at: int) -> float:
        """Seconds after which a slot has surely come."""
        ahead = begins - at - self._time.notice(at)
        return 0.0 if ahead <= 0 else (begins + self._time.clock.error(round(begins)) - at) / 1e6

    def _free(self, state: State, at: int) -> int:
        """The first slot by the pace, on the queue's clock, that nobody has a ticket for."""
        reading = self._time.clock.earliest(at)
        now = state.clock(reading)
        if state.held_since is not None:  # a hold may have ended since the last answer
            now += max(0, reading - self._end_of_hold(state, at))
        step, key = state.settings.interval, keyed_on(self._connection.store)
        own = max(now - state.credit, state.due + step)
        if key is None:
            return own
        waits = state.ticket > max(state.current, state.revoked_through)
        own = max(own, now + step) if waits else own  # new tickets follow those that wait
        return max(own, key.free(state, self._end_of_hold(state, at)))

    def _coming(self, state: State) -> Iterator[Slot]:
        """All slots in which jobs may still begin; one to be granted again may come before granted ones."""
        granted = chain.from_iterable(self._grants.granted)
        return merge(granted, islice(self._grants.tickets, self._void(state), None))

    def _void(self, state: State) -> int:
        """How many tickets, from the first, were revoked: they are dropped with the next request."""
        return sum(
            1
            for _ in takewhile(
                lambda slot: slot.ticket <= state.revoked_through and slot.ticket not in state.running,
                self._grants.tickets,
            )
        )

    def _behind(self, state: State, at: int) -> NextSlots:
        """The slots behind the last ticket. While the queue is held, units come back to the limits."""
        since = state.held_since
        if since is None or not state.settings.limits:
            return NextSlots(state, self._free(state, at))
        after = resumed(state, max(self._end_of_hold(state, at), since))  # may revoke tickets: see `edges`
        held = replace(after, held_since=since, held_total=state.held_total)
        return NextSlots(after, self._free(held, at))

    def _next_due(self, waiter: Waiter, state: State, at: int, *, another: bool = False) -> int:
        """The slot, on the queue's clock, of a job that begins to wait now; `another`: of a second one."""
        waiters, grants, step = self._wait_queue, self._grants, state.settings.interval
        coming, ahead = self._coming(state), list[Waiter]()
        if waiters.mixed or waiter.cost > 1 or waiter.units or waiters.has_behind(waiter.order):
            for each in waiters.in_order():
                if each.order < waiter.order and _first(coming, each) is None:
                    ahead.append(each)
            before = sum([each.cost for each in ahead])
            slot = _first(coming, waiter)
        else:
            tickets = len(grants.tickets) - self._void(state)
            before = max(0, waiters.waiting - grants.granted_count - tickets)
            slot = next(islice(coming, waiters.waiting, None), None)
        if slot is not None:
            return slot.due
        free = self._behind(state, at)
        if not state.settings.limits:
            return free.due + (before + another) * step
        for each in ahead or [waiter] * before:  # where they aren't listed, all take the same
            free.place(each.cost, self._units(each, state))
        return [free.place(waiter.cost, self._units(waiter, state)) for _ in range(1 + another)][-1]

    def _units(self, waiter: Waiter, state: State) -> Units:
        return ordered(waiter.cost, waiter.units, self._connection.counted, state.settings.limits)


def _first(slots: Iterator[Slot], waiter: Waiter) -> Slot | None:
    """The next of the slots that has room for the job; those before it are used up."""
    return next((slot for slot in slots if waiter.fits(slot)), None)
