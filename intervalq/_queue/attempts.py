"""Runs one job, from its place in the wait queue to its result: attempts, pauses between them, cool-downs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import copy_context
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import anyio
import anyio.to_thread

from intervalq._queue.held import HOLDING, hold, let_go, waits_again
from intervalq._queue.job import RunningJob
from intervalq._queue.options import Settle
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Queue
from intervalq._queue.threads import LATE, MAX_EARLY, in_time
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.backends import spawn
from intervalq._timing.clock import CLOCK
from intervalq._timing.retry_after import wait_after_error, wait_after_result
from intervalq.errors import IntervalqError, StoreError, short

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard

R = TypeVar("R")

log: Final = logging.getLogger("intervalq")


async def run(
    queue: Queue,
    function: Callable[[], Any],
    plan: Plan,
    job: RunningJob[Any] | None = None,
    *,
    in_thread: bool = False,
) -> Any:  # noqa: ANN401 - as the function has it
    """Wait for a slot, run the function, and retry it if it fails and attempts are left.

    If there is no slot for another attempt, the error that says so is raised, with the failure as its cause.
    """
    attempt, error = 1, None
    waiter = job._waiter if job is not None else plan.waiter(in_thread=in_thread)
    while True:
        try:
            grant, result, error = await _attempt(queue, function, plan, waiter, job, in_thread=in_thread)
        except IntervalqError as no_slot:
            if error is None or no_slot.__cause__ is not None:
                raise
            raise copy(no_slot) from error  # a copy, because all waiters are given the same one
        if error is None:
            if plan.retry_after:
                asked = wait_after_result(plan.retry_after, result, bare=plan.adapts)
                if asked is not None:
                    await heed(queue, grant, asked)
            return result
        asked = wait_after_error(plan.retry_after, error, bare=plan.adapts)
        if asked is not None:
            await heed(queue, grant, asked)
        if attempt > plan.retries:
            raise error
        if not asked:  # a cool-down is enough of a pause
            from intervalq._timing.backoff import backoff  # noqa: PLC0415 - few jobs are tried again

            clock = CLOCK.get()
            await clock.sleep_until(clock.now() + round(backoff(attempt, plan.backoff) * 1e6))
        attempt += 1
        waiter = plan.waiter(in_thread=in_thread, again=True)


async def _attempt(
    queue: Queue,
    function: Callable[[], Any],
    plan: Plan,
    waiter: Waiter,
    job: RunningJob[Any] | None,
    *,
    in_thread: bool,
) -> tuple[Grant, Any, Exception | None]:
    """Run the function once, in one slot; returns the grant, and the function's result or its error."""
    while True:
        if job is not None:
            job._waiter = waiter
            if waiter.again:
                await waits_again(queue._shard(), job._awaited_by)
        shard, grant = await queue._acquire(waiter, plan.timeout)
        held = failure = result = None
        if shard.connection.is_limited:
            held = hold(shard, tuple if job is None else partial(getattr, job, "_awaited_by"))
        try:
            if not in_thread:
                if job is not None:
                    job.begins(grant)
                made = function()
                result = await made if inspect.isawaitable(made) else not_awaitable(made)
                settle_by(plan.settle, result, partial(queue._settle, shard, grant), queue.name)
                return grant, result, None
            # A limiter of its own: waiting for a thread of the shared pool would use up the slot.
            own = anyio.CapacityLimiter(1)
            result = await anyio.to_thread.run_sync(in_time, shard, grant, function, limiter=own)
            if result is not LATE:
                if job is not None:
                    job.begins(grant)
                result = await result if inspect.isawaitable(result) else result
                settle_by(plan.settle, result, partial(queue._settle, shard, grant), queue.name)
                return grant, result, None
        except Exception as error:  # noqa: BLE001 - the job's own error; the caller decides on another attempt
            failure = error
            return grant, None, error
        finally:
            let_go(held)
            if result is LATE:
                shard.free(grant)  # the job has not begun
            else:
                shard.ended(grant, failure)
        waiter = late(shard, grant, waiter)


def start(queue: Queue, function: Callable[..., Any], args: tuple[Any, ...], plan: Plan) -> RunningJob[Any]:
    """Add a job to the wait queue, and start it in the background when its slot has come."""
    refuse_called(function)
    call = partial(undecorated(queue, function), *args)
    in_thread = not is_async(call)
    shard = queue._shard()
    job: RunningJob[Any] = RunningJob(shard, plan.waiter(in_thread=in_thread), queue._jobs)
    shard.enter(job._waiter)  # not in the task, so that jobs begin in the order in which they were added
    queue._jobs[job] = None
    work = partial(run, queue, call, plan, job, in_thread=in_thread)
    context = copy_context()
    context.run(HOLDING.set, ())  # the caller of `add` need not wait for the job: see `Job._awaited_by`

    def begin() -> None:
        context.run(spawn, job.carry, work)

    if plan.timeout is None:
        job._waiter.start = begin  # a job that waits for its slot needs no task for it
    else:
        begin()
    return job


def settle_by(
    settle: Settle[Any] | None, result: object, tell: Callable[[Mapping[str, int]], None], name: str
) -> None:
    """Settle what a job took, as computed from its result.

    The job is done, so an error here must not cost its result: it is logged, and the estimate stays charged.
    """
    if settle is None:
        return
    try:
        if (took := settle(result)) is not None:
            tell(took)
    except Exception:
        log.warning("queue %r: settle= failed, so the estimate counts", name, exc_info=True)


def late(shard: Shard, grant: Grant, waiter: Waiter) -> Waiter:
    """Give back a slot for which a thread came too late; the job keeps its place in the wait queue.

    A thread that slept until its slot came slept for too long, and might do so each time: it gets the next
    slot once that has come, so that it need not sleep. So does a thread that was late for the first time. If
    it is too late again, though it did not sleep, it took that long to run, and gets the one after that so
    much earlier; also if it was to get this one earlier, but came back too late for that.
    """
    shard.undo(grant)
    took = min(MAX_EARLY, shard.clock.now() - waiter.handed_at)
    early = took if waiter.was_late and not grant.awaited else 0
    again = Waiter(
        cost=waiter.cost, early=early, in_thread=True, order=waiter.order, again=True, units=waiter.units
    )
    again.was_late = True
    again.within, again.latest, again.since = waiter.within, waiter.latest, waiter.since
    return again


def not_awaitable(result: object) -> NoReturn:
    """Refuse a plain function where an async one is needed; it was called."""
    raise TypeError(
        f"the function returned {short(result)}, which can't be awaited: give an async function (async def); "
        "add(), or the queue as a decorator, takes plain functions, too"
    )


def refuse_called(function: object) -> None:
    """Refuse what a call returned where its function is needed: a coroutine has not waited for its slot."""
    if inspect.isawaitable(function) and not callable(function):
        if inspect.iscoroutine(function):
            function.close()  # else Python would warn that it was never awaited
        raise TypeError(
            f"{short(function)} is a call that was made already: hand over the function, as in "
            "run(get, path) or add(get, path)"
        )


def is_async(function: Any) -> bool:  # noqa: ANN401 - any callable
    """Whether calling the function returns an awaitable."""
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    call = getattr(inner, "__call__", None)  # noqa: B004 - its kind matters, not its existence
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def undecorated(queue: Queue, function: Callable[..., R]) -> Callable[..., R]:
    """A function that this queue decorated, without its own wait for a slot."""
    if isinstance(function, partial):
        return partial(undecorated(queue, function.func), *function.args, **function.keywords)
    owner = getattr(function, "__intervalq__", None)
    if owner is not queue and getattr(owner, "_queue", None) is not queue:
        return function
    inner = cast("Callable[..., R]", function.__wrapped__)  # type: ignore[attr-defined] # by functools.wraps
    bound_to = getattr(function, "__self__", None)
    return inner if bound_to is None else partial(inner, bound_to)


async def heed(queue: Queue, grant: Grant, seconds: float) -> None:
    """Stop the queue for a while after a server refused a job, if the queue's store can be reached."""
    try:
        await queue._refused(grant, seconds)
    except StoreError:
        # The caller must see the job's own error; the next start will raise the store's.
        return
