"""One job from its place in line to its result: attempts, pauses between them, cool-downs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import anyio.to_thread

from intervalq._backend import spawn
from intervalq._job import RunningJob
from intervalq._line import Waiter
from intervalq._retry import backoff, retry_after
from intervalq.errors import StoreError

if TYPE_CHECKING:
    from intervalq._queue import IntervalQueue

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one job is run; see `IntervalQueue.add`. Times are seconds."""

    priority: int
    cost: int
    timeout: float | None
    retries: int
    backoff: float
    retry_after: bool


async def run(
    queue: IntervalQueue,
    function: Callable[[], Awaitable[R]],
    plan: Plan,
    job: RunningJob[R] | None = None,
) -> R:
    """Wait for a slot, run, and again if it fails and may be tried again."""
    attempt = 1
    while True:
        if job is None:
            waiter = Waiter(priority=plan.priority, cost=plan.cost)
        elif attempt == 1:
            waiter = job.waiter  # in line since it was added
        else:
            waiter = job.waiter = Waiter(priority=plan.priority, cost=plan.cost)
        shard, slot = await queue.acquire(waiter, plan.timeout)
        if job is not None:
            job.begins(slot)
        try:
            return await function()
        except Exception as error:
            asked = retry_after(error) if plan.retry_after else None
            if asked is not None:
                await _cool_down(queue, asked)
            if attempt > plan.retries:
                raise
        finally:
            shard.leases.ended(slot.ticket)
        if asked is None:  # a cool-down is pause enough
            await anyio.sleep(backoff(attempt, plan.backoff))
        attempt += 1


def start(
    queue: IntervalQueue, function: Callable[..., Any], args: tuple[Any, ...], plan: Plan
) -> RunningJob[Any]:
    """Put a job in line, and start it in the background when its slot has come."""
    call = partial(call_any, undecorated(queue, function), *args)
    shard = queue.shard()
    job: RunningJob[Any] = RunningJob(shard, Waiter(priority=plan.priority, cost=plan.cost))
    shard.enter(job.waiter)  # right here, so that jobs begin in the order in which they were added

    async def work() -> None:
        try:
            await job.carry(lambda: run(queue, call, plan, job))
        finally:
            queue.jobs.discard(job)

    queue.jobs.add(job)  # until it ends, so that closing can wait for it
    spawn(work)
    return job


async def call_any(function: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - as the function has it
    """Call an async function, or a plain one in a worker thread."""
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    call = getattr(inner, "__call__", None)  # noqa: B004 - its kind matters, not whether it is there
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call):
        return await function(*args)
    result = await anyio.to_thread.run_sync(partial(function, *args), limiter=anyio.CapacityLimiter(1))
    return await result if inspect.isawaitable(result) else result


def undecorated(queue: IntervalQueue, function: Callable[..., R]) -> Callable[..., R]:
    """A function that this queue decorated, without its own wait for a slot."""
    if isinstance(function, partial):
        return partial(undecorated(queue, function.func), *function.args, **function.keywords)
    owner = getattr(function, "__intervalq__", None)
    if owner is not queue and getattr(owner, "_queue", None) is not queue:
        return function
    inner = cast("Callable[..., R]", function.__wrapped__)  # type: ignore[attr-defined] # by functools.wraps
    bound_to = getattr(function, "__self__", None)
    return inner if bound_to is None else partial(inner, bound_to)


async def _cool_down(queue: IntervalQueue, seconds: float) -> None:
    try:
        await queue.cool_down(seconds)
    except StoreError:
        # The caller must see the job's own error; the next start will meet the store's.
        return
