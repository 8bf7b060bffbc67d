"""The loop of one schedule in a process: wait for the next occurrence, take it, run the function."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio import CapacityLimiter
from anyio.abc import TaskGroup

from intervalq._hours.zone import shown
from intervalq._timing.clock import CLOCK
from intervalq._timing.outage import LoopOutage
from intervalq._timing.wakeable_sleep import WakeableSleep
from intervalq.errors import InvalidOption, MissingExtra, StoreError, StoreUnavailable
from intervalq.schedules import _lease
from intervalq.schedules._choice import Choice, choose
from intervalq.schedules._holder import Process
from intervalq.schedules._occurrence import Occurrence
from intervalq.schedules._records import Changed, Records
from intervalq.schedules._task import ScheduledTask
from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import Outcome, Record, declare, end, fire, skip
from intervalq.store import wall_clock

log: Final = logging.getLogger("intervalq")

_HELD: Final = 1_000_000
"""Microseconds between two looks at an occurrence that waits for the end of an earlier run, and the minimum
between two looks at a paused schedule."""

_BEHIND: Final = 20_000
"""The head start, in microseconds, of the process that took the last occurrence. The others don't know yet
whether that run has ended, and presume it: if they were first while it goes on, they would ask twice."""

_THREADS: Final = 40
"""How many runs of one plain function may go on at once in a process."""

_PAUSE: Final = 5.0
"""The longest pause between two attempts to reach the store, in seconds."""


class Runner:
    """One schedule in one process."""

    def __init__(self, task: ScheduledTask, records: Records, group: TaskGroup) -> None:
        self._task = task
        self._records = records
        self._group = group
        self._sleep = WakeableSleep(CLOCK.get())
        self._threads = CapacityLimiter(_THREADS)
        self._plan = task.plan.to_text()
        """When it occurred at the last look."""
        self._process = Process()
        self._before: Record | None = None
        """The record from which this process last tried to take an occurrence."""
        self._started = 0
        """The last occurrence that this process has started. The known record may be older."""
        self._late = 0
        """The last occurrence that was too late for its grace."""
        self._let_go = 0
        """The fencing number of the last run whose process was given a head start."""
        self._ended = 0
        """That of the last run which was presumed to have ended."""

    def wake(self) -> None:
        """Look at the record again: it has changed, or the store's clock has."""
        self._sleep.wake()

    async def follow(self) -> None:
        """Run the schedule until cancelled."""
        name, outage = self._task.name, LoopOutage(_PAUSE)
        try:
            while not await self._with_patience(outage, self._declare):
                pass
            while True:
                try:
                    await self._with_patience(outage, self._step)
                except (InvalidOption, MissingExtra) as error:  # of a plan that another machine could read
                    message = "schedule %r doesn't run in this process until it is changed: %s"
                    log.error(message, name, error)  # noqa: TRY400 - no bug
                    await self._sleep.until(math.inf)
        except StoreError:
            log.exception("schedule %r doesn't run any more in this process", name)
            raise
        finally:
            self._sleep.end()

    async def _with_patience(self, outage: LoopOutage, step: Callable[[], Awaitable[None]]) -> bool:
        """Do a step, and return whether that was possible; if the store doesn't answer, pause.

        After that, it is unknown what the step has done, so the next one begins with a look.
        """
        try:
            if outage:
                await self._records.look([self._task.name])
            await step()
        except StoreUnavailable as error:
            if not outage:
                log.warning("schedule %r: %s; trying again", self._task.name, error)
            outage.failed()
            await outage.pause()
            return False
        outage.ended()
        return True

    async def _declare(self) -> None:
        """Make sure that the record has the plan of this program, which started last."""
        text, known = self._task.plan.to_text(), self._records.get(self._task.name)
        if known is None or known.plan != text:
            await self._records.change(self._task.name, lambda record, now: declare(record, text, now))
            if known is not None:
                log.info("schedule %r: this program has changed it to: %s", self._task.name, self._task.plan)

    async def _step(self) -> None:
        """Do what is to be done now, or sleep until there is something."""
        name, record = self._task.name, self._records.get(self._task.name)
        if record is None:  # dropped, or lost by the store
            await self._declare()
            return
        if self._process.has(record.holder, record.fired) and (record.fired or 0) > self._started:
            await self._begin(record)
            return
        if record.paused and not record.is_asked:
            await self._wait_for_resume(record)
            return
        now, plan = self._records.now(), self._records.plan(name, record)
        if record.plan != self._plan:
            self._plan = record.plan
            log.info("schedule %r: another program has changed it to: %s", name, plan)
        choice = self._choice(record, plan, now)
        if choice is None:
            await self._sleep.until(math.inf)
        elif choice.due > now:
            await self._sleep.until(self._records.local(choice.due))
        elif self._lets_go(record) and now < choice.due + _BEHIND:
            await self._sleep.until(self._records.local(choice.due + _BEHIND))
        else:
            await self._take(record, choice, now)

    def _lets_go(self, record: Record) -> bool:
        """Whether another process goes first: the one whose run had not ended in the known record."""
        grace, is_mine = self._task.grace, self._process.has(record.holder, record.fired)
        if not record.running or is_mine or record.fence == self._let_go:
            return False
        self._let_go = record.fence
        return grace is None or grace > 10 * _BEHIND

    def _choice(self, record: Record, plan: Plan, now: int) -> Choice | None:
        """What to take next: by the plan, or what somebody has asked for."""
        through, misfire = max(record.through, self._late, self._started), self._task.misfire
        choice = None if record.paused else choose(self._task.name, plan, through, now, misfire)
        if record.asked is None or not record.is_asked or record.asked <= self._started:
            return choice
        before = choice is not None and choice.scheduled < record.asked and choice.due <= now
        return choice if before else Choice(record.asked, record.asked)

    async def _wait_for_resume(self, record: Record) -> None:
        """Wait until the schedule would occur next, then look: if it was resumed before, nothing is lost."""
        now, plan = self._records.now(), self._records.plan(self._task.name, record)
        following = plan.after(max(record.through, now)) if self._records.need_looks else None
        if following is None:
            await self._sleep.until(math.inf)
            return
        until = max(plan.due(self._task.name, following), now + _HELD)
        if await self._sleep.until(self._records.local(until)):
            await self._records.look([self._task.name])

    async def _take(self, record: Record, choice: Choice, now: int) -> None:
        task, records = self._task, self._records
        before = self._presumed(record, now)
        outcome = self._fire(before, choice, now)
        if outcome.verdict != "ours" and before is not record:
            before, outcome = record, self._fire(record, choice, now)
        if outcome.verdict == "ours":
            self._before = before
            await records.swap(task.name, outcome.record, earliest=choice.due, presumed=before)
        elif outcome.verdict == "held" and task.overlap == "skip":
            log.info("schedule %r: %s is skipped, an earlier run goes on", task.name, self._time(choice))
            await records.swap(task.name, skip(record, choice.scheduled))
        elif outcome.verdict == "held":
            until = min(record.until, now + _HELD) if records.need_looks else record.until
            await self._sleep.until(records.local(until))
            await records.look([task.name])
        else:
            assert outcome.verdict == "misfire", outcome
            log.warning("schedule %r: %s is missed, it is too late", task.name, self._time(choice))
            self._late = choice.scheduled

    def _presumed(self, record: Record, now: int) -> Record:
        """The record that is probably stored: a run of another process has ended since it was known.

        The record of that end is known, too, so if this is right, the store is asked only once.
        """
        is_others = record.running and not self._process.has(record.holder, record.fired)
        if not is_others or now >= record.until or record.fence == self._ended:
            return record
        self._ended = record.fence
        return end(record, record.holder, now, finished=True)

    def _fire(self, before: Record, choice: Choice, now: int) -> Outcome:
        task = self._task
        return fire(
            before,
            choice.scheduled,
            choice.due,
            now,
            self._process.name(choice.scheduled, wall_clock() - now),
            grace=None if choice.scheduled == before.asked else task.grace,
            lease=_lease.LEASE,
            overlap=task.overlap,
        )

    async def _begin(self, taken: Record) -> None:
        """Start the function, unless the lease is nearly over, because the answer came late or was lost."""
        if self._task.overlap == "allow" or _lease.left(self._records, taken.until, _lease.LEASE):
            self._start(taken)
        else:
            await _lease.extend(self._records, self._task.name, taken.holder, _lease.LEASE)

    def _start(self, taken: Record) -> None:
        """Start the function of the occurrence that this process has taken, once."""
        assert self._before is not None
        assert taken.fired is not None
        self._started = taken.fired
        plan: Plan = self._records.plan(self._task.name, taken)
        due = taken.fired if taken.fired == taken.asked else plan.due(self._task.name, taken.fired)
        occurrence = Occurrence.of(self._task.name, plan, self._before, taken, due)
        self._group.start_soon(self._run, occurrence, taken)

    async def _run(self, occurrence: Occurrence, taken: Record) -> None:
        async def call(begins: Callable[[], None] = _nothing) -> None:
            await self._task.call(occurrence, self._threads, begins)

        name = self._task.name
        try:
            if self._task.overlap == "allow":
                await _lease.run_beside(self._records, name, taken.holder, call)
            else:
                plan = self._records.plan(name, taken)
                following = plan.after(taken.through) if self._task.overlap == "wait" else None
                await _lease.run(self._records, name, taken, call, following)
                self.wake()
        except Exception as error:
            reason: BaseException = error
            while isinstance(reason, BaseExceptionGroup) and len(reason.exceptions) == 1:
                reason = reason.exceptions[0]  # a task group wraps its only error
            log.error(  # noqa: TRY400 - that one instead of the group
                "schedule %r: the function failed at %s",
                self._task.name,
                occurrence.scheduled,
                exc_info=reason,
            )

    def _time(self, choice: Choice) -> str:
        return shown(self._task.plan.time(choice.scheduled))


def _nothing() -> None:
    pass


async def look_first(records: Records, names: list[str]) -> None:
    """Read the records of schedules, however long the store can't be reached."""
    outage = LoopOutage()
    while True:
        try:
            await records.look(names)
        except StoreUnavailable as error:
            if not outage:
                log.warning("schedules wait for the store: %s; trying again", error)
            outage.failed()
            await outage.pause()
        else:
            return


async def look_often(records: Records, runners: dict[str, Runner], seconds: float) -> None:
    """Read the records of all schedules of a process when they change, and at regular intervals.

    Schedules whose records changed are woken; if the store's clock has been set, all are.
    """
    ahead = records.local(0)
    while True:
        async with records.changes() as changed:
            hears = True
            while hears:
                with anyio.move_on_after(seconds if records.need_looks else math.inf):
                    hears = await _heard(changed)
                try:
                    others = await records.look([*runners])
                except StoreUnavailable as error:
                    log.warning("the records of schedules can't be read: %s; trying again", error)
                    continue
                before, ahead = ahead, records.local(0)
                stepped = abs(ahead - before) > _STEPPED
                for name in runners if stepped else others & {*runners}:
                    runners[name].wake()
        await anyio.sleep(_AGAIN)


async def _heard(changed: Changed) -> bool:
    """Wait for a change; False: the subscription has ended, so changes may have been missed."""
    try:
        await changed()
    except StoreError as error:
        log.debug("no wake-ups for schedules: %s", error)
        return False
    return True


_AGAIN: Final = 5.0
"""Seconds until a subscription that has ended is renewed."""

_STEPPED: Final = 50_000
"""If the store's clock has jumped by this many microseconds, all schedules look at it again."""
