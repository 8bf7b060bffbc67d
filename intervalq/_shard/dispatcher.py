"""Wakes the jobs whose slots have come, in order, and makes the last check before one begins.

A slot goes to the first waiting job when it comes, so jobs keep their order. As many jobs are woken
as slots have come; each makes the last check itself, in the task that begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from anyio.lowlevel import checkpoint

from intervalq._shard.connection import Connection
from intervalq._shard.grants import Grant, GrantRange, Grants
from intervalq._shard.last_start import LastStart
from intervalq._shard.leases import Leases
from intervalq._shard.store_time import REACTION, StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._timing.backends import spawn
from intervalq._timing.clock import Clock
from intervalq._timing.precision import Precision
from intervalq._timing.slices import run_soon
from intervalq._timing.wakeable_sleep import WakeableSleep
from intervalq.rules import FOREVER, Slot, State

_HANDOFF: Final = 80
"""How long a woken job needs until it reads the clock itself, in microseconds."""

_FINE: Final = 1_000
"""With a tolerance below this, in microseconds, jobs are woken a handoff early and wait for the slot."""


class Asker(Protocol):
    """The part that talks to the store."""

    waits_for_a_start: bool
    """Whether its next request waits for the start of a job."""

    def changed(self) -> None:
        """Plan again, because a job began or slots changed."""
        ...


class Nobody:
    """A placeholder until there is an asker."""

    waits_for_a_start = False

    def changed(self) -> None:
        """Do nothing."""


class Dispatcher:
    """Hands out a shard's slots to its jobs.

    Args:
        clock: the process's own clock.
        wait_queue: the waiting jobs.
        grants: the shard's slots.
        time: the store's clock, which shows when slots have come.
        leases: notes jobs that begin and slots that stay unused, if the queue limits its running jobs.
        precision: for how long the ends of waits poll the clock.
        connection: has the record, as the last answer showed it.
        failed: called with an error that prevents slots from being handed out.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        wait_queue: WaitQueue,
        grants: Grants,
        time: StoreTime,
        leases: Leases,
        precision: Precision,
        connection: Connection,
        failed: Callable[[Exception], None],
    ) -> None:
        self.begun = 0
        """How many jobs began."""
        self.last = LastStart()
        self.late = 0
        """How many slots were granted late."""
        self.skipped: Counter[str] = Counter()
        """How many slots were given up, by cause."""
        self.away = 0  # when the store could not be reached last, or the queue may have been held
        self.ready: GrantRange | None = None
        """Slots that have come while nobody waits: new jobs may take them one by one, up to `ready_until`."""
        self.ready_until = 0
        self._clock = clock
        self._now = clock.now
        self._wait_queue = wait_queue
        self._grants = grants
        self._time = time
        self._leases = leases
        self._precision = precision
        self._connection = connection
        self._asker: Asker = Nobody()
        self._failed = failed
        self._sleep = WakeableSleep(clock)
        self._runs = False  # whether the task that waits for slots is running
        self._wanted = False  # whether there may be slots to wait for
        self._refuses = False
        self._looked = 0  # the end of the range for whose slot the clock was last polled

    def use_asker(self, asker: Asker) -> None:
        """Notify this asker from now on."""
        self._asker = asker

    # --- jobs ---------------------------------------------------------------------------------------

    def accept(self, waiter: Waiter) -> Grant | None:
        """The last check before a job begins. None: it is not the job's turn, and it goes on waiting.

        Raises the waiter's error, if it has one.
        """
        if waiter.error is not None:
            # The same exception is raised in every waiter: drop the traceback of the previous one.
            raise waiter.error.with_traceback(None)
        grants = self._grants
        while grants.granted and self._wait_queue.first() is waiter:
            first, at = self._bounded(grants.granted[0]), self._now()
            if first.all_from <= at <= first.all_until and waiter.fits(first):
                return self._begin(waiter, at)
            opens = self._opens(first)
            if self._is_lost(first, opens, at):
                self._is_over(first)
            elif not waiter.fits(first):
                self.give_up(grants.use(), "cheap")
                self._asker.changed()
            elif opens > first.closes:
                break
            elif (left := opens - waiter.early - at) > 0:
                if left > self._handoff(at):
                    break
                self._see_it_come(at, left)
            else:
                return self._begin(waiter, at, opens)
        return None

    def take_ready(self) -> Grant | None:
        """Take a ready slot for a new job; None: the job has to wait."""
        ready = self.ready
        if ready is None or self._now() > self.ready_until:
            return None
        grant = Grant(ready)
        self.begun += 1
        ready.count -= 1
        if not ready.count:
            self.ready = None
            self._grants.granted.popleft()
            self.last.was(grant.ticket, self._now())
        return grant

    def give_up(self, grant: Grant, cause: str) -> None:
        """Note that a granted slot won't be used."""
        if not grant.range.speculative:
            self.skipped[cause] += 1
        if cause != "late":  # lateness says nothing about the estimate of the clock
            # If each grant holds the queue, there is no other occasion to read the store's clock.
            self._time.check_again()
        self._grants.unused.append(grant.slot)
        self._leases.ended(grant.ticket)

    def pass_dead(self) -> None:
        """Drop tickets whose slots are over and can't be granted late, without a request."""
        state, grants = self._connection.state, self._grants
        if state is None or state.held_since is not None or state.settings.max_running or grants.granted:
            return
        end = 0
        while grants.tickets and self._over(slot := grants.tickets[0], state) < self._now():
            if slot.ticket >= end:  # the end of a range stays while its first slots are dropped
                end = grants.row_end()
                if state.current < end:
                    break
            grants.pass_by()
            self.missed(slot, state)

    def missed(self, slot: Slot, state: State) -> None:
        """Count a slot that was revoked, or over before it was granted: perhaps unknown to this process."""
        over = "late" if self._over(slot, state) > self.away else "away"
        self.skipped["revoked" if slot.ticket <= state.revoked_through else over] += 1

    def _over(self, slot: Slot, state: State) -> int:
        """When a slot is surely too old to be granted, on the process's own clock."""
        return self._time.clock.surely(slot.due + state.held_total + state.tolerance + state.credit)

    def undo(self, grant: Grant, *, again: bool = True) -> bool:
        """Take back the slot of a job that could not begin in it, because its thread came too late.

        The slot is granted again, as for a task that comes too late. Otherwise a thread that is always late
        would take one ticket after the other, and never begin. Returns whether to request the grant.
        """
        self.begun -= 1
        self.last.was_none(grant.ticket)
        if grant.range.record != self._grants.record:
            return False
        if grant.at_once:
            self._time.answer_came_late(self._now() - self._connection.heard_at)
        state, is_known = self._connection.state, grant.range.steps == self._time.clock.steps
        if again and is_known and state is not None and self._grants.take_back(grant.slot, state.current):
            self._leases.wanted(grant.ticket)
            self._asker.changed()
            return True
        self.give_up(grant, "thread")
        return False

    def _handoff(self, at: int) -> int:
        """How long before its slot to wake a job, which then waits for the slot itself: waking takes time."""
        state = self._connection.state
        fine = state is not None and state.tolerance < _FINE and self._clock.goes_on
        return min(_HANDOFF, self._precision.look(at)) if fine else 0

    def _see_it_come(self, at: int, left: int) -> None:
        """Poll the clock until a slot has come, in the task of the job that begins then."""
        while self._now() < at + left:
            pass
        self._precision.looked(at + left, left)

    def _opens(self, first: GrantRange) -> int:
        return self.last.opens(first, self._connection.state)

    def _is_lost(self, first: GrantRange, opens: int, at: int) -> bool:
        """Whether the first slot of a range is over, or has come and will be over before it may be used."""
        closes = first.closes
        return at > closes or (opens > closes and at >= first.instant + first.after)

    def _begin(self, waiter: Waiter, at: int, opens: int = -FOREVER) -> Grant:
        """Let a job begin in the first granted slot."""
        self._wait_queue.remove(waiter)
        first = self._grants.granted[0]
        was = first.shift
        if first.moves and self._grants.move(max(at, opens)):
            if at - first.instant - first.before > was:
                self._came_late(first)
        elif self._time.repeated or self._time.reaction > REACTION:
            self._time.job_began()
        grant = self._grants.use(opens)
        self.begun += 1
        if is_bound := waiter.in_thread:
            waiter.handed_at = at
        self.last.was(grant.ticket, max(at, grant.closes) if is_bound else at, is_bound=is_bound)
        if self._precision.looks:
            self._precision.kept()
        if self._connection.is_limited:
            self._leases.started(grant.ticket)
        if self._asker.waits_for_a_start or not self._wait_queue.waiting:
            self._asker.changed()
        if not self._wait_queue.waiting:
            self._all_began(at)
        return grant

    def _all_began(self, at: int) -> None:
        """Nobody waits any more: let new jobs take the rest of a range without waiting."""
        if not self._grants.granted or self._connection.is_limited or self._refuses:
            return
        first = self._bounded(self._grants.granted[0])
        if first.all_open(at) and self._opens(first) <= at:
            self.ready, self.ready_until = first, first.instant + first.before

    def _is_over(self, first: GrantRange) -> None:
        """Handle a first granted slot that is over before its job began: request it again, or give it up."""
        if first.steps != self._time.clock.steps:
            self.give_up(self._grants.use(), "stepped")
        else:
            self._came_late(first)
            state = self._connection.state
            assert state is not None
            if state.current < self._grants.row_end():
                self._grants.ask_again()
            else:
                for _ in range(first.count if first.moves else 1):
                    self.give_up(self._grants.use(), "late")
        self._asker.changed()

    def _came_late(self, first: GrantRange) -> None:
        """Adapt to a job that came too late for the first slot of a range, so that the next ones don't."""
        heard = self._connection.heard_at
        if first.opens == -FOREVER and self._opens(first) <= heard:
            self._time.answer_came_late(self._now() - heard)
        else:
            self._precision.missed(self._time.lateness.typical(), looked=self._looked == first.end)
        if self._clock.goes_on and self._precision.share:
            run_soon()

    # --- waiting for slots --------------------------------------------------------------------------

    def look(self) -> None:
        """Wake jobs after slots were granted: now, or by a task when their slots have come."""
        if not self._grants.granted:
            return
        if self._runs:
            self._sleep.wake()
        elif self._wake(self._now()) < self._wait_queue.waiting:
            self._start()

    def watch(self, waiter: Waiter) -> None:
        """Watch for the turn of a job that has begun to wait: without a task, it can't check by itself."""
        self.ready = None
        if self._grants.granted and (not self._runs or self._wait_queue.first() is waiter):
            self._start()

    def needs_task(self) -> None:
        """Start the waiting task: a job is about to wait for a slot that is already granted."""
        if self._grants.granted and not self._runs:
            self._start()

    def not_ready(self) -> None:
        """Let the next jobs wait."""
        self.ready = None

    def refuse(self) -> None:
        """From now on, never have slots ready for new jobs."""
        self._refuses, self.ready = True, None

    def recheck(self) -> None:
        """Compute waits again, because what is known of the queue has changed."""
        self._sleep.wake()

    def stop(self) -> None:
        """End the task that waits for slots, because nobody waits."""
        self._wanted = False
        self._sleep.wake()
        self._sleep.end()

    def _start(self) -> None:
        if self._runs:
            self._sleep.wake()
        else:
            self._runs = self._wanted = True
            spawn(self._run)

    def _wake(self, at: int) -> int:
        """Wake jobs whose slots have come, in order, and return how many."""
        woken, waiters = 0, self._wait_queue.in_order()
        at += self._handoff(at)
        for granted in self._grants.granted:
            opens = self._opens(self._bounded(granted))
            comes = granted.instant + granted.after
            for waiter in islice(waiters, granted.count):
                if opens - waiter.early > at:
                    return woken
                waiter.wake()
                woken += 1
                if granted.moves:
                    return woken  # the next one depends on when this one begins
                opens = comes = comes + granted.step
        return woken

    async def _run(self) -> None:
        """Wake jobs when their slots have come, until `stop`."""
        try:
            while self._wanted:
                await self._next()
        except Exception as error:  # noqa: BLE001 - after any error, nobody may wait for ever
            self._failed(error)
        finally:
            self._runs = False

    async def _next(self) -> None:
        waiter = self._wait_queue.first()
        if waiter is None or not self._grants.granted:
            await self._sleep.until(float("inf"))
            return
        first, at = self._bounded(self._grants.granted[0]), self._now()
        opens, early = self._opens(first), waiter.early
        if self._is_lost(first, opens, at):
            self._is_over(first)
            return
        if opens > first.closes:  # it is over as soon as it has come, and is requested again then
            opens, early = first.instant + first.after, 0
        if (left := opens - early - self._handoff(at) - at) > 0:
            look = self._precision.look(at) if self._clock.goes_on else 0
            if left > look:
                await self.sleep_until(self._sleep, at + left - look)
            else:
                self._looked = first.end
                while self._now() < at + left:
                    await checkpoint()
                self._precision.looked(self._now(), left)
        else:
            self._wake(at)
            await checkpoint()  # let the woken jobs make their checks

    async def sleep_until(self, sleep: WakeableSleep, instant: float) -> None:
        """Sleep, and measure how late the process wakes."""
        if instant <= self._now():
            return
        fired = await sleep.until(instant)
        if fired or self._now() > instant:  # if woken later than that, the timer would have been later still
            self._time.lateness.add(max(0, int(self._now() - instant)))

    def _bounded(self, granted: GrantRange) -> GrantRange:
        if granted.readings == self._time.clock.answers:
            return granted
        return self._time.bounded(granted, self._connection.state, self._now())
