"""The workers of a handle: functions that run the tasks of queues, from `run` to `stop`."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, overload

import anyio

from intervalq._queue.options import Cost, Duration, wait_of, whole
from intervalq._queue.queue import IntervalQueue
from intervalq._spec import parse
from intervalq.errors import DependencyError, InvalidOption, StoreError, StoreUnavailable, short
from intervalq.tasks._claim import values as _values
from intervalq.tasks._schedule.keeper import Keeper
from intervalq.tasks._session.lifecycle import Lifecycle
from intervalq.tasks._worker.job import ChunkRefused, ChunkWork, Job, Refused, Work, check_function
from intervalq.tasks._worker.pace import CostOf, QueueOf, pace_of
from intervalq.tasks._worker.policy import Policy
from intervalq.tasks._worker.pool import WorkerPool
from intervalq.tasks.rules import Count
from intervalq.tasks.store import MAX_ROWS, TaskStore, check_keeps

log: Final = logging.getLogger("intervalq")

F = TypeVar("F", bound=Work)
C = TypeVar("C", bound=ChunkWork)
A = TypeVar("A", bound=Callable[[Any], Any])

_EMPTY_POLL: Final = 0.05
_LOOK: Final = 10
"""At most one part in this many of the time is spent on checking whether queues are empty."""


class Workers(Lifecycle):
    """The part of `Tasks` that runs functions."""

    def __init__(self, url: str | None, given: TaskStore | None, expiry: float, form: _values.Form) -> None:
        super().__init__(url, given, expiry, form)
        self._jobs: list[Job] = []
        self._pools: list[WorkerPool] = []
        self._counts: Counter[str] = Counter()  # of earlier runs
        self._stopping: anyio.Event | None = None
        self._keeper: Keeper | None = None

    @overload
    def worker(
        self,
        *queues: str,
        queue: QueueOf | None = None,
        cost: CostOf = 1,
        concurrency: int | None = None,
        max_attempts: int | None = 5,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        on_dependency: Refused | None = None,
        keep: Duration | None = None,
    ) -> Callable[[F], F]: ...

    @overload
    def worker(
        self,
        *queues: str,
        batch: int,
        within: Duration | None = None,
        queue: IntervalQueue | None = None,
        cost: Cost = 1,
        concurrency: int | None = None,
        max_attempts: int | None = 5,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        on_dependency: ChunkRefused | None = None,
        keep: Duration | None = None,
    ) -> Callable[[C], C]: ...

    def worker(
        self,
        *queues: str,
        batch: int | None = None,
        within: Duration | None = None,
        queue: QueueOf | None = None,
        cost: CostOf = 1,
        concurrency: int | None = None,
        max_attempts: int | None = 5,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        on_dependency: Callable[[Any, DependencyError], Any] | None = None,
        keep: Duration | None = None,
    ) -> Callable[[A], A]:
        """Decorate the function that runs the tasks of some queues; it is returned unchanged.

        It is called with the claimed task. When it returns, the task is done. Any JSON value that it returns
        is the result in the outcome of a kept task; for other tasks it is dropped. It may return changes
        (`tasks.new(...)` and so on), which are made in the same step; `task.change(queue="next")` of its own
        task moves that on instead of ending it (see `Claim.ack`). If it raises, the task is tried again
        later, and after `max_attempts` goes to the dead-letter queue, which has the queue's name with
        `.dead`. It may settle the claim itself, for example with `async with claim.commit() as connection:`.
        It may run more than once, and even twice at the same time if this process is wrongly taken for dead;
        only one run commits.

        With `batch`, it is called with a list of claims, a chunk. Those that it has not settled itself are
        acknowledged when it returns, and have failed when it raises. A claim that is lost or cancelled
        meanwhile has `open` false, and the function goes on; it is cancelled when all that it has not settled
        are lost. Returned changes are made in one step with the acknowledgement of the chunk, all or nothing:
        if one of its tasks is lost, the others run again, which counts no attempt. The last attempt of a task
        that has failed before is made in a chunk of its own, so that no task is dead because of another one.

        Args:
            queues: the queues of the tasks.
            batch: call the function with a list of up to this many claims, from 1 to 1,000. None: with one
                claim, not in a list.
            within: with `batch`: how long a chunk that isn't full waits for more tasks, counted from the time
                its first one was claimed. None: not at all; it has what is there when the function is free.
            queue: the `IntervalQueue` that paces the starts of the function, over all processes: a chunk
                takes one slot, however many tasks it has, and fills up while it waits for it. Or a function
                of the claim (without `batch`) that returns it, such as `lambda task: pace[task.key]`, or None
                to begin at once. A task that waits for its slot counts against `concurrency`.
            cost: what a task (or a chunk) takes of the queue, as for `IntervalQueue.add`. Or a function of
                the claim (without `batch`) that returns it. The worker's function reports what it really took
                of limits: `claim.slot.settle(tokens=834)`. A task that costs more than a limit allows fails.
            concurrency: how often the function runs at a time in this process. None: as `run` says.
            max_attempts: None: no limit. Attempts that killed their process count, too.
            backoff: the pause after the first failed attempt; it doubles each time up to a minute, with full
                jitter.
            timeout: how long one call may take before it fails with TimeoutError. None: no limit. A plain
                function can't be interrupted: it continues in its thread, perhaps beside the next attempt.
            on_dependency: called with the claim (with `batch`: the list of those to be acknowledged) and the
                DependencyError if the changes that the function returned can't be made because others changed
                those tasks. It may be async, and returns other changes, or None to repeat the task after a
                pause, which is also the default. This counts no attempt.
            keep: how long to keep the outcomes of tasks that have no `keep` of their own, see `Tasks.new`.
                None: they leave none. It covers what the function ends: a task that is cancelled before a
                worker had it leaves nothing.

        Raises:
            InvalidOption: an option is out of its range, `within` is given without `batch`, or the function
                doesn't take one argument; a queue has a worker of this handle already; or `queue` is none,
                `cost` can't be taken of it, or is given alone.
            InvalidName, InvalidInterval: a name or a duration is malformed.
        """
        job_queues = names_of(queues)
        policy = Policy(
            None if max_attempts is None else whole("max_attempts", max_attempts, 1),
            parse.duration(backoff, what="backoff") / 1e6,
        )
        many = None if concurrency is None else whole("concurrency", concurrency, 1, 10_000)
        seconds = wait_of(timeout)
        if batch is None and within is not None:
            raise InvalidOption(
                f"within={short(within)} is for chunks: give batch=, the most tasks of one, too"
            )
        size = None if batch is None else whole("batch", batch, 1, MAX_ROWS)
        kept = _values.keep_time(keep)
        pace = pace_of(queue, cost, chunks=batch is not None)
        pause = 0.0 if within is None else parse.duration(within, what="within") / 1e6

        def register(function: A) -> A:
            check_function(function)
            if self._pools:
                raise InvalidOption("the workers of this handle are running: decorate functions before run()")
            self._refuse_second(job_queues)
            job = Job(function, job_queues, pace, many, policy, seconds, on_dependency, size, pause, kept)
            self._jobs.append(job)
            return function

        return register

    def _refuse_second(self, queues: tuple[str, ...]) -> None:
        """Refuse a worker if one of its queues has one: each task would go to either of them, by chance."""
        taken = [queue for queue in queues if any(queue in job.queues for job in self._jobs)]
        if taken:
            raise InvalidOption(
                f"queue {taken[0]!r} already has a worker of this handle, and each task would go to either "
                "of them: let one function decide by the task, or insert some of the tasks into another queue"
            )

    @property
    def _outcomes(self) -> Counter[str]:
        """The outcomes of the tasks that this handle has run. See `WorkerPool.counts`."""
        return sum((pool.counts for pool in self._pools), self._counts)

    async def run(self, *, concurrency: int = 10, until_empty: bool = False, grace: Duration = 30.0) -> None:
        """Run the workers until `stop` is called, or this is cancelled.

        Args:
            concurrency: how many tasks (or chunks) of each worker run at a time in this process, unless the
                worker sets it.
            until_empty: end when the workers' queues have no tasks.
            grace: how long running functions may go on after `stop`; then they are cancelled, and their tasks
                given back.

        Raises:
            InvalidOption: there are no workers, or they are already running.
            StoreError: the store can't be used; while it is only unreachable, workers wait.
            UnsupportedOperation: a worker has `keep`, and the store keeps no outcomes.
            SystemExit, KeyboardInterrupt: a function raised it. The first counts as a failed attempt.
        """
        if not self._jobs:
            raise InvalidOption("there is nothing to run: decorate functions with @tasks.worker(...) first")
        many = whole("concurrency", concurrency, 1, 10_000)
        seconds = parse.duration(grace, what="grace") / 1e6
        session = self._session()
        if any(job.keep_for for job in self._jobs):
            check_keeps(session.store, "omit keep= of its workers, or use another store")
        if self._pools:
            raise InvalidOption("the workers of this handle are already running: create one handle per run")
        self._pools = pools = [WorkerPool(job, session, job.concurrency or many) for job in self._jobs]
        self._stopping = stopping = anyio.Event()
        self._keeper = keeper = Keeper(session)
        errors: list[BaseException] = []

        def failed(error: BaseException) -> None:
            errors.append(error)
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._end, stopping, group.cancel_scope, seconds)
                group.start_soon(keeper.run, failed)
                if until_empty:
                    group.start_soon(self._stop_when_empty, failed)
                async with anyio.create_task_group() as running:
                    for pool in pools:
                        pool.on_error = group.cancel_scope.cancel
                        running.start_soon(pool.run)
                group.cancel_scope.cancel()
        finally:
            self._counts, self._pools, self._keeper = self._outcomes, [], None
            with anyio.CancelScope(shield=True):
                await session.leave()
        for error in (*(pool.error for pool in pools), *errors):
            if error is not None:
                raise error

    def stop(self) -> None:
        """Let `run` end: no more tasks begin, and it returns when running ones have ended."""
        if self._stopping is not None:
            self._stopping.set()

    async def _end(self, stopping: anyio.Event, scope: anyio.CancelScope, grace: float) -> None:
        await stopping.wait()
        for pool in self._pools:
            pool.stop()
        await anyio.sleep(grace)
        running = sum(pool.running for pool in self._pools)
        if running:
            log.warning(
                "%d functions still ran %g s after the stop: cancelled and given back", running, grace
            )
        scope.cancel()

    async def _stop_when_empty(self, failed: Callable[[BaseException], None]) -> None:
        while True:
            try:
                await self.wait_empty(*{name for job in self._jobs for name in job.queues})
            except StoreUnavailable:
                await anyio.sleep(_EMPTY_POLL)
            except StoreError as error:  # raised by `run`, not as a group
                failed(error)
                return
            else:
                self.stop()
                return

    async def wait_empty(self, *queues: str, timeout: Duration | None = None) -> None:
        """Wait until none of the queues has any task, including claimed and future ones.

        Raises:
            TimeoutError: they were not empty in time.
            StoreError: the store can't be asked.
        """
        names = names_of(queues)
        seconds = wait_of(timeout)
        pause = _EMPTY_POLL
        with anyio.fail_after(math.inf if seconds is None else seconds):
            begun = anyio.current_time()
            while await self._apply(Count(names=names)):
                took = anyio.current_time() - begun  # counting many tasks takes some time
                await anyio.sleep(max(pause, min(_LOOK * took, 2.0)))
                pause = min(1.0, pause * 1.2)
                begun = anyio.current_time()


def names_of(queues: Sequence[str]) -> tuple[str, ...]:
    """Names of queues, each once.

    Raises:
        InvalidName, InvalidOption: not all are names of queues, or there are none.
    """
    if not queues:
        raise InvalidOption("name at least one queue")
    if callable(queues[0]):  # a decorator without its parentheses
        raise InvalidOption('name the queue of the worker: @tasks.worker("cars"), not @tasks.worker')
    return tuple(dict.fromkeys(_values.queue_name(queue) for queue in queues))
