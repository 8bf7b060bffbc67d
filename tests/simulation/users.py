"""The users of queues in a simulated world, who call the same methods as real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import anyio

from intervalq import IntervalQueue, Slot
from intervalq._queue import attempts
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.precision import Looking
from intervalq.errors import (
    ConfigMismatch,
    IntervalqError,
    QueueClosed,
    QueueExists,
    QueueNotFound,
    SlotTimeout,
    StoreError,
)
from simulation.facts import ObservedJob
from simulation.loop import Process
from simulation.mixes import CHANGES
from simulation.network import Connection
from simulation.observer import Observer
from simulation.plans import PlannedJob


class JobError(Exception):
    """Raised by jobs that are planned to fail."""


class Actor:
    """A process with its handle."""

    def __init__(self, process: Process, connection: Connection, queue: IntervalQueue) -> None:
        self.process = process
        self.connection = connection
        self.queue = queue
        self.shard: Shard | None = None
        self.begins: Grant | None = None  # the grant that was accepted last
        self.busy = 0  # calls of users that have not returned
        self.all_began: Callable[[], None] = lambda: None
        """Called in the step in which its last waiting job begins."""

    def open(self, seen: Observer) -> Shard:
        """The handle's shard, opened in the process's context; grants that jobs accept are recorded."""
        if self.shard is None:
            self.shard = shard = self.queue._shard()
            accept, take_ready = shard.dispatcher.accept, shard.dispatcher.take_ready

            def noting(waiter: Waiter) -> Grant | None:
                if (grant := accept(waiter)) is not None:
                    self.begins = grant
                    if not shard.wait_queue:
                        self.all_began()
                return grant

            def noting_ready() -> Grant | None:
                grant = take_ready()
                self.begins = grant or self.begins
                return grant

            shard.precision._looking = Looking()
            failed = shard._fail

            def noting_error(error: Exception) -> None:
                if not isinstance(error, IntervalqError):
                    seen.violated(f"{self.process.name} fails with {error!r}")
                failed(error)

            shard.dispatcher._failed = shard.conversation._failed = noting_error
            shard.dispatcher.accept = noting  # type: ignore[method-assign]
            shard.dispatcher.take_ready = shard.take_ready = noting_ready  # type: ignore[method-assign]
        return self.shard


def _as_it_is(took: dict[str, int] | None) -> dict[str, int] | None:
    """The settlement of a job that returns what it took."""
    return took


def _coming(queue: IntervalQueue, way: str, timing: dict[str, Any]) -> AbstractAsyncContextManager[Slot]:
    """The context manager of a slot, or of one that comes in time or not at all."""
    if way == "slot":
        return queue.slot(**timing)
    return queue.try_slot(within=timing.pop("timeout", None) or 0, **timing)


class Users:
    """What users do. Each method is called in the process of the actor that it gets."""

    def __init__(self, seen: Observer) -> None:
        self.seen = seen
        self.exits = False
        """Whether processes end when their handles are closed."""
        self.gone: Callable[[Actor], None] = lambda _: None
        """Called with an actor whose process ends."""
        self.closed: Callable[[Actor], None] = lambda _: None
        """Called with an actor whose handle has been closed."""
        self._scopes: dict[ObservedJob, anyio.CancelScope] = {}  # of the jobs that have not ended
        self.over = False
        """Whether the run has been judged: nothing is recorded any more."""

    async def job(self, actor: Actor, planned: PlannedJob) -> None:
        """Add a job, wait for it, perhaps cancel it."""
        actor.open(self.seen)
        job = self.seen.added(actor.process, planned)
        with anyio.CancelScope() as scope:
            self._scopes[job] = scope
            cancelling = None
            if planned.cancelled_after is not None:
                loop = asyncio.get_running_loop()
                cancelling = loop.call_later(planned.cancelled_after, self._cancel, job, scope)
            outcome = "cancelled"
            try:
                outcome = await self._outcome(actor, job)
            finally:
                if cancelling is not None:  # otherwise it would count as a timer of an idle process
                    cancelling.cancel()
                del self._scopes[job]
                if not self.over:
                    self.seen.ended(job, outcome)

    async def caller(self, actor: Actor, jobs: list[PlannedJob], thinks: list[float]) -> None:
        """Add jobs one after the other, each after the previous one has ended."""
        for planned, seconds in zip(jobs, thinks, strict=True):
            await self.job(actor, planned)
            await anyio.sleep(seconds)

    async def _outcome(self, actor: Actor, job: ObservedJob) -> str:
        async def body() -> dict[str, int] | None:
            grant, shard = actor.begins, actor.shard
            assert grant is not None
            assert shard is not None
            assert shard.state is not None
            self.seen.started(job, grant.ticket, shard.state.generation, grant.due)
            try:
                if job.plan.takes:
                    await anyio.sleep(job.plan.takes)
                if len(job.starts) <= job.plan.fails:
                    raise JobError
                job.starts[-1].took = job.plan.took
            finally:
                self.seen.stopped(job)
            return job.plan.took or None

        wanted = job.plan
        timing: dict[str, Any] = {
            "priority": wanted.priority, "cost": wanted.cost, "timeout": wanted.timeout,
        }  # fmt: skip
        if wanted.plain:
            timing.clear()
        if wanted.units:
            timing["cost"] = wanted.units
        settling: dict[str, Any] = {"settle": _as_it_is} if wanted.took else {}
        try:
            if wanted.way == "add":
                added = await actor.queue.add(body, retries=wanted.retries, **timing, **settling)
                job.expects, job.told, job.placed = added.ticket, added.due, self.seen.time()
                try:
                    await added
                except asyncio.CancelledError:
                    added.cancel()
                    raise
            elif wanted.way == "run":
                await actor.queue.run(body, retries=wanted.retries, **timing, **settling)
            elif wanted.way == "thread":
                await self._in_thread(actor, job)
            else:
                async with _coming(actor.queue, wanted.way, timing) as slot:
                    actor.begins = slot._grant
                    if took := await body():
                        with suppress(QueueClosed):  # then the estimate counts
                            slot.settle(**took)
        except (IntervalqError, JobError) as error:
            return self._named(job, error)
        return "done"

    def _named(self, job: ObservedJob, error: Exception) -> str:
        if isinstance(error, SlotTimeout):
            self.seen.refused(job, error.retry_after, str(error))
        return type(error).__name__

    async def _in_thread(self, actor: Actor, job: ObservedJob) -> None:
        """Run a plain function as `attempts` and `threads` do, with virtual time instead of a thread."""
        wanted, clock = job.plan, actor.process.clock
        plan = actor.queue._plan(wanted.priority, wanted.units or wanted.cost, wanted.timeout)
        waiter = plan.waiter(in_thread=True)
        with actor.queue._callers.waiting(lambda call: call()):
            while True:
                shard, grant = await actor.queue._acquire(waiter, wanted.timeout)
                job.handed, since = (grant.opens - clock.now()) / 1e6, self.seen.time()
                try:
                    if wanted.slow:
                        await anyio.sleep(wanted.slow)
                    grant.awaited = grant.opens > clock.now()
                    lags = wanted.lags if grant.awaited else 0.0
                    await clock.sleep_until(grant.opens)
                    if lags:
                        await anyio.sleep(lags)
                except BaseException:
                    shard.undo(grant)
                    raise
                finally:
                    job.in_hand.append((since, self.seen.time()))
                if shard.is_open(grant):
                    break
                job.came_late.append(grant.ticket)
                shard.free(grant)
                waiter = attempts.late(shard, grant, waiter)
        assert shard.state is not None
        self.seen.started(job, grant.ticket, shard.state.generation, grant.due)
        try:
            await anyio.sleep(wanted.takes)
            job.starts[-1].took = wanted.took
        finally:
            self.seen.stopped(job)
            shard.free(grant)
        if wanted.took:
            tell = partial(actor.queue._settle, shard, grant)
            attempts.settle_by(_as_it_is, wanted.took, tell, actor.queue.name)

    def _cancel(self, job: ObservedJob, scope: anyio.CancelScope) -> None:
        if job.outcome is None:
            job.cancelled = True
            self.seen.say(job.process.name, "cancels", job.number)
            scope.cancel()

    def cancel_first(self, process: Process) -> None:
        """Cancel the job of a process that has waited longest."""
        waiting = [job for job in self._scopes if job.process is process and not job.starts]
        if waiting:
            self._cancel(waiting[0], self._scopes[waiting[0]])

    async def start(self, actor: Actor) -> None:
        """Let the jobs of a handle begin that were kept until now."""
        actor.open(self.seen)
        self.seen.say(actor.process.name, "starts its jobs")
        self.seen.released_at[actor.process] = self.seen.time()
        with suppress(QueueClosed):
            await actor.queue.start()

    async def close(self, actor: Actor, *, drain: bool) -> None:
        """Close the handle."""
        actor.open(self.seen)
        self.seen.closed[actor.process] = self.seen.time()
        self.seen.drains[actor.process] = drain
        self.seen.say(actor.process.name, "closes", "and drains" if drain else "")
        await actor.queue.close(drain=drain)
        self.seen.say(actor.process.name, "closed")
        self.seen.shut[actor.process] = self.seen.time()
        self.closed(actor)
        if self.exits:
            self.seen.exited[actor.process] = self.seen.time()
            self.gone(actor)

    async def verb(self, actor: Actor, verb: str, amount: float) -> None:
        """Pause, resume and so on."""
        queue = actor.queue
        actor.open(self.seen)
        self.seen.say(actor.process.name, verb, amount or "")
        try:
            if verb == "cool_down":
                await queue.cool_down(amount)
            elif verb == "quote":
                self.seen.quoted(actor.process, await queue.quote())
            elif verb in CHANGES:
                await queue.configure(**{CHANGES[verb]: amount})  # type: ignore[arg-type]
            else:
                await getattr(queue, verb)()
        except (ConfigMismatch, QueueClosed, QueueExists, QueueNotFound, StoreError) as error:
            self.seen.say(actor.process.name, "fails", type(error).__name__)
