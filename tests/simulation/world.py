"""The world of one run: real handles in simulated processes, real rules in a simulated store, and faults."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel

from intervalq import IntervalQueue
from simulation.facts import Account
from simulation.judges.all import judge
from simulation.loop import OWNER, Process, ProcessClock, RunningClock, WorldLoop
from simulation.mixes import MIXES
from simulation.network import Connection, Network, Records, WakingConnection
from simulation.observer import Observer
from simulation.planning import plan
from simulation.plans import PlannedJob, PlannedProcess, Route
from simulation.users import Actor, Users

Call: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

QUEUE: Final = "simulated"
_KEY: Final = "key"

_NEAR: Final = Route(up=(0.0002, 0.001), down=(0.0002, 0.001), deadline=5.0)

_TIMER: Final = 0.002
"""The maximum lateness of timers once faults have ended, in seconds."""

_PATIENCE: Final = 50.0
"""How long a queue may take to recover, besides the slots, in seconds: timeouts, pauses between attempts to
reach the store, polls of held shards, cool-downs, and leases of dead processes."""

_REPORTED: Final = 7.0
"""Seconds after the last job within which the store must know that it ended: a timeout and a margin."""

_QUIET: Final = 100.0
"""Seconds after the last job within which every task and timer must end."""


class World:
    """One schedule: its store, processes and faults. `seen` is the observer, with the verdict at the end."""

    def __init__(self, mix: str, seed: int, loop: WorldLoop) -> None:
        self.loop = loop
        self.mix = MIXES[mix]
        self.plan = plan(self.mix, f"{mix}:{seed}:plan")
        self.queue = f"{QUEUE}:{_KEY}" if self.plan.keyed else QUEUE
        self.seen = Observer(self._time, 1 + self.plan.store_ppm / 1e6)
        self.seen.copies, self.seen.blur = self.mix.again > 0, self.mix.blur
        self.seen.lossless, self.seen.subscribes = not (self.mix.lost or self.mix.slow), self.mix.subscribes
        self.users = Users(self.seen)
        self.records = Records(self.plan.store_base, self.plan.store_ppm)
        self.seen.store = self.records.now
        self.dice = random.Random(f"{mix}:{seed}:network")
        self.network = Network(self.records, self.mix, self.dice, self.seen)
        self.network.interrupt = self._interrupt
        self.users.exits, self.users.gone = self.mix.exits, self._exit
        self.users.closed = self._closed
        self.network.withdraw = self._withdraw
        self.network.reclaim = self._reclaim
        self.actors: list[Actor] = []
        self.busy = 0  # the sum of `busy` of all actors
        self.idle: asyncio.Future[None] = loop.create_future()
        self.ended = 0.0
        self.steps = 0  # of all processes

    def _time(self) -> float:
        """The true time, in the midst of a step of a process."""
        process = OWNER.get(None)
        return self.loop.time() + (0.0 if process is None else process.clock.spent)

    # --- what is planned ----------------------------------------------------------------------------

    def _actor(self, planned: PlannedProcess) -> Actor:
        lateness = planned.lateness
        kind_of_clock = RunningClock if self.mix.exact else ProcessClock
        clock = kind_of_clock(planned.base, planned.ppm, lambda: self._lateness(lateness))
        process = Process(planned.name, clock)
        kind = WakingConnection if self.plan.waking else Connection
        connection = kind(self.network, process, planned.route, self.queue)
        queue = IntervalQueue(QUEUE, store=connection, backoff=0.02, **planned.options)
        actor = Actor(process, connection, queue[_KEY] if self.plan.keyed else queue)
        if planned.busy:
            connection.stop = partial(self._stall, actor, planned.busy)
        if planned.latecomers:
            actor.all_began = partial(self._follow, actor, [*planned.latecomers])
        self.actors.append(actor)
        return actor

    def _lateness(self, most: float) -> float:
        if self.network.is_healthy:
            most = min(most, _TIMER)
        return self.dice.uniform(0, most)

    def _at(self, instant: float, action: Callable[..., object], *args: object) -> None:
        self.loop.call_at(instant, action, *args, context=Context())

    def _prepare(self) -> None:
        for planned in self.plan.processes:
            actor = self._actor(planned)
            self._calls_of(planned, actor)
            for begin, end in planned.outages:
                self._at(begin, partial(self._cut, actor, is_cut=True))
                self._at(end, partial(self._cut, actor, is_cut=False))
            for when, steps, length in planned.stalls:
                self._at(when, actor.process.trap, steps, partial(self._stall, actor, length))
            if planned.turn is not None:
                self._take_turns(actor, planned.turn)
            if planned.crash is not None:
                when, steps = planned.crash
                self._at(when, actor.process.trap, steps, partial(self._crash, actor))
        operator = self._actor(
            PlannedProcess(name="operator", options={}, route=_NEAR, base=7, ppm=0.0, lateness=0.0001)
        )
        operator.connection.is_good = True
        by_name = {actor.process.name: actor for actor in self.actors}
        for when, who, verb, amount in self.plan.verbs:
            actor = operator if who is None else by_name[who]
            self._call(when, actor, partial(self.users.verb, actor, verb, amount))
        for when, seconds in self.plan.steps:
            self._at(when, self._step_clock, seconds)
        for when, age in self.plan.losses:
            self._at(when, self._lose, age)

    def _calls_of(self, planned: PlannedProcess, actor: Actor) -> None:
        """Let the users of a process come at their times."""
        for job in planned.jobs:
            self._call(job.at, actor, partial(self.users.job, actor, job))
        for jobs, thinks in planned.callers:
            self._call(jobs[0].at, actor, partial(self.users.caller, actor, jobs, thinks))
        if planned.close is not None:
            when, drain = planned.close
            self._call(when, actor, partial(self.users.close, actor, drain=drain))
        if planned.starts is not None and planned.starts < math.inf:
            self._call(planned.starts, actor, partial(self.users.start, actor))

    def _call(self, instant: float, actor: Actor, user: Call) -> None:
        """Let a user in the actor's process make a call at an instant."""
        call = self._noted(actor, user)

        def begin() -> None:
            if not self.users.over:
                self.loop.create_task(call())

        self.loop.call_at(instant, begin, context=actor.process.context)

    def _noted(self, actor: Actor, user: Call) -> Call:
        """A user's call, which is waited for from now on."""
        self.busy += 1
        actor.busy += 1

        async def call() -> None:
            try:
                await user()
            finally:
                self._back(actor, 1)

        return call

    def _follow(self, actor: Actor, jobs: list[PlannedJob]) -> None:
        """Let another job come just as the last one begins in a handle that is being closed."""
        if jobs and actor.process in self.seen.closed:
            self.loop.create_task(self._noted(actor, partial(self.users.job, actor, jobs.pop()))())

    def _back(self, actor: Actor, calls: int) -> None:
        self.busy -= calls
        actor.busy -= calls
        if self.busy == 0:
            self._expire()

    # --- faults -------------------------------------------------------------------------------------

    def _cut(self, actor: Actor, is_cut: bool) -> None:
        if self.loop.time() < self.plan.ends or not is_cut:
            actor.connection.is_cut = is_cut
            self.seen.say(actor.process.name, "is cut off" if is_cut else "is back")

    def _stall(self, actor: Actor, seconds: float) -> None:
        if self.loop.time() < self.plan.ends:
            self.seen.stalled(actor.process, seconds)
            self.loop.stop_process(actor.process, seconds)

    def _interrupt(self, process: Process, delay: float, seconds: float) -> None:
        actor = next(actor for actor in self.actors if actor.process is process)
        self._at(self.loop.time() + delay, self._stall, actor, seconds)

    def _withdraw(self, process: Process, delay: float) -> None:
        """Cancel the first waiting job after a delay, by when it may or may not have its slot."""
        self.loop.call_at(self.loop.time() + delay, self.users.cancel_first, process, context=process.context)

    def _reclaim(self, delay: float) -> None:
        """Let the operator revoke tickets whose slots come soon, behind granted ones."""
        verb, amount = "reclaim", 0.0
        if self.dice.random() < 0.2:
            verb, amount = "configure", round(self.plan.interval * self.dice.uniform(1, 4), 6)
        operator = self.actors[-1]
        self._call(self.loop.time() + delay, operator, partial(self.users.verb, operator, verb, amount))

    def _take_turns(self, actor: Actor, turn: float) -> None:
        """Take the processor away for a part of this turn and of each later one."""
        if self.loop.time() < self.plan.ends:
            self.loop.stop_process(actor.process, turn * self.mix.taken)
            self._at(self.loop.time() + turn, self._take_turns, actor, turn)

    def _crash(self, actor: Actor) -> None:
        if self.loop.time() < self.plan.ends:
            self._end(actor, actor.busy)

    def _exit(self, actor: Actor) -> None:
        self._end(actor, actor.busy - 1)  # the call that closed the handle returns on its own

    def _end(self, actor: Actor, calls: int) -> None:
        actor.process.dead = True
        self.seen.dies(actor.process)
        self._back(actor, calls)

    def _step_clock(self, seconds: float) -> None:
        self.records.set_clock(seconds)
        self.seen.clock_set(seconds)

    def _lose(self, age: float | None) -> None:
        self.records.lose(age)
        self.network.primary += 1
        self.seen.lost(age, everything=self.queue not in self.records.states)

    # --- the run ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the schedule from its first job to the verdict."""
        self._prepare()
        await self._until(self.plan.ends)
        self._heal()
        if self.busy:
            self._at(self._deadline(), self._expire)
            await self.idle
        for job in self.seen.jobs:
            if job.outcome is None and not job.process.dead:
                self.seen.violated(f"job {job.number} of {job.process.name} still waits")
                job.outcome = "waits"
        if self.busy and not self.seen.violations:
            self.seen.violated("a call other than a job has not returned")
        self.ended = self.loop.time()
        if not self.seen.violations:
            await self._rest()
        self.steps = sum(actor.process.steps for actor in self.actors)
        self._account()
        self._reports()
        judge(self.seen, self.plan)
        self.users.over = True
        await self._sweep()

    def _account(self) -> None:
        for actor in self.actors:
            if (shard := actor.shard) is not None and not actor.process.dead:
                self.seen.accounts[actor.process] = Account(
                    at=self.ended, begun=shard.begun, given_up=shard.given_up, late=shard.dispatcher.late,
                    calls=shard.calls, regressions=shard.regressions,
                    clock=shard.store_time() - self.records.now() / 1e6,
                )  # fmt: skip

    async def _until(self, instant: float) -> None:
        reached = self.loop.create_future()
        self._at(instant, reached.set_result, None)
        await reached

    def _heal(self) -> None:
        """End all faults: repair the network, and resume the queue."""
        self.network.is_healthy = True
        for actor in self.actors:
            actor.connection.is_cut = False
        self.network.resume(self.queue)

    def _deadline(self) -> float:
        """When all jobs must have ended: after outstanding tickets, the slots of all jobs, and a margin."""
        now, state = self.records.now(), self.records.states.get(self.queue)
        interval = round(self.plan.interval * 1e6)
        outstanding = 0
        if state is not None:
            interval = max(interval, state.settings.interval)
            clock = state.clock(now)
            # A process that doesn't know yet that its tickets were revoked waits for their slots.
            held = [
                actor.shard.grants.tickets for actor in self.actors if actor.shard and not actor.process.dead
            ]
            outstanding = max(
                0, *(due - clock for due in (state.due, *(each[-1].due for each in held if each)))
            )
        slots, takes = 0, 0.0
        for planned, actor in zip(self.plan.processes, self.actors, strict=False):
            if not actor.process.dead:
                jobs = [*planned.jobs, *(job for jobs, _ in planned.callers for job in jobs)]
                slots += sum(job.cost * (1 + min(job.fails, job.retries)) for job in jobs)
                takes += sum(job.takes * (1 + min(job.fails, job.retries)) for job in jobs)
                takes += sum(sum(thinks) for _, thinks in planned.callers)
        passed = (60 if self.plan.night else 0) + 2 * slots * interval / 1e6 + self.plan.waits_for_windows()
        return self.loop.time() + (outstanding + 10 * interval) / 1e6 + passed + takes + _PATIENCE

    def _expire(self) -> None:
        if not self.idle.done():
            self.idle.set_result(None)

    async def _rest(self) -> None:
        """With nothing to do, a handle has no task and no timer."""
        await self._until(self.loop.time() + _REPORTED)
        self._leases()
        await self._until(self.loop.time() + _QUIET)
        for actor in self.actors:
            process = actor.process
            if process.dead:
                continue
            running = [task for task in process.tasks if not task.done()]
            timers = self.loop.timers(process)
            if isinstance(process.clock, RunningClock):
                timers += process.clock.timers().is_open
            if running or timers:
                self.seen.violated(f"{process.name} is idle and has {len(running)} tasks, {timers} timers")
            for task in process.tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    self.seen.violated(f"a task of {process.name} failed: {task.exception()!r}")

    def _leases(self) -> None:
        """When no job runs any more, the store knows so for every live process that could reach it.

        A handle that can't reach the store while it is being closed leaves its leases to expire.
        """
        state, seen = self.records.states.get(self.queue), self.seen
        if state is None or seen.losses or seen.copies or seen.steps:
            return
        for ticket, until in state.running.items():
            granted = [
                grant for grant in seen.grants[seen.trace.name(state.generation), ticket] if grant.heard
            ]
            if until <= self.records.now() or not granted:
                continue
            process = granted[-1].process
            closed = seen.closed.get(process, float("inf"))
            is_renewed = process in seen.overtaken
            if not (process.dead or is_renewed) and not any(at > closed for at in seen.failures[process]):
                self.seen.violated(f"nothing runs, and ticket {ticket} counts as running")

    def _closed(self, actor: Actor) -> None:
        """A handle that has been closed has reported all of its jobs that had ended."""
        state, seen, process = self.records.states.get(self.queue), self.seen, actor.process
        if state is None or seen.losses or seen.failures[process] or seen.copies:
            return
        record = seen.trace.name(state.generation)
        for start in seen.starts:
            runs = state.running.get(start.ticket, 0) > self.records.now()
            if start.job.process is process and start.record == record and runs and start.ended < seen.time():
                seen.violated(
                    f"{process.name} has closed its handle, and ticket {start.ticket} counts as running"
                )

    def _reports(self) -> None:
        """A handle reports that its store lost its record if and only if that happened."""
        gone = [at for at in self.seen.losses if at not in self.seen.failovers]
        for actor in self.actors:
            process = actor.process
            reported = actor.shard.regressions if actor.shard is not None else 0
            if reported and not self.seen.losses:
                self.seen.violated(f"{process.name} reports that its store lost writes, but it did not")
            heard = self.seen.attached[process]
            knew = [
                at for at in gone if any(each < at for each in heard) and any(each > at for each in heard)
            ]
            if (
                knew
                and process in self.seen.shown
                and not reported
                and not self.seen.failovers
                and not self.plan.keyed
                and not process.dead
            ):
                self.seen.violated(f"{process.name} does not report that its store lost its record")

    async def _sweep(self) -> None:
        """End the remaining tasks after the verdict: tasks that are destroyed while pending log errors."""
        for _ in range(200):
            left = [task for actor in self.actors for task in actor.process.tasks if not task.done()]
            if not left:
                return
            for actor in self.actors:
                actor.connection.is_cut = True
                actor.process.revive()
                self.loop.release(actor.process)
            await anyio.lowlevel.checkpoint()
            for task in left:
                # Cancelling a coroutine that has not begun would warn that it was never awaited.
                if inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CREATED:  # type: ignore[arg-type]
                    task.cancel()
