"""The workers of a handle: functions that run the tasks of queues, from `run` to `stop`."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import anyio

from intervalq._queue.options import Duration, wait_of, whole
from intervalq._queue.queue import IntervalQueue
from intervalq._spec import parse
from intervalq.errors import InvalidOption, StoreError, StoreUnavailable
from intervalq.tasks._claim import values as _values
from intervalq.tasks._session.lifecycle import Lifecycle
from intervalq.tasks._worker.job import Job, Refused, Work
from intervalq.tasks._worker.policy import Policy
from intervalq.tasks._worker.pool import WorkerPool
from intervalq.tasks.rules import Count
from intervalq.tasks.store import TaskStore

log: Final = logging.getLogger("intervalq")

F = TypeVar("F", bound=Work)

_EMPTY_POLL: Final = 0.05
_LOOK: Final = 10
"""At most one part in so many of the time is spent looking whether queues are empty."""


class Workers(Lifecycle):
    """The part of `Tasks` that runs functions."""

    def __init__(self, url: str | None, given: TaskStore | None, expiry: float, form: _values.Form) -> None:
        super().__init__(url, given, expiry, form)
        self._jobs: list[Job] = []
        self._pools: list[WorkerPool] = []
        self._counts: Counter[str] = Counter()  # of runs that have ended
        self._stopping: anyio.Event | None = None

    def worker(
        self,
        *queues: str,
        queue: IntervalQueue | None = None,
        concurrency: int | None = None,
        max_attempts: int | None = 5,
        backoff: Duration = 1.0,
        timeout: Duration | None = None,
        on_dependency: Refused | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs the tasks of some queues; it is given back as it is.

        It is called with the claimed task. When it returns, the task is done; what it returns may be changes
        (`tasks.new(...)` and so on) that are made in the same step; `task.change(queue="next")` of its own
        task moves that on instead of ending it (see `Claim.ack`). When it raises, the task is tried again
        later, and after `max_attempts` goes to the dead-letter queue, named as the queue with `.dead`. It may
        settle the claim by itself, for example with `async with claim.commit() as connection:`. It may be run
        more than once, at the same time even, should this process be taken for dead; only one commits.

        Args:
            queues: those that the tasks are in.
            queue: the `IntervalQueue` that paces the starts, over all processes.
            concurrency: how many run at a time in this process. None: what `run` says.
            max_attempts: None: it is tried for ever. Attempts that killed their process count, too.
            backoff: the pause after the first failed attempt; doubles each time up to a minute, with full
                jitter.
            timeout: how long one attempt may take; then it has failed, with TimeoutError. None: no limit. A
                plain function can't be interrupted: it goes on in its thread, maybe beside the next attempt.
            on_dependency: called with the claim and the DependencyError when the changes that the function
                returned can't be made, because others changed those tasks. It may be async, and what it
                returns are other changes; None: do the task again after a pause, which is what is done
                without it, too. That counts no attempt.
        """
        job_queues = names_of(queues)
        policy = Policy(
            None if max_attempts is None else whole("max_attempts", max_attempts, 1),
            parse.duration(backoff, what="backoff") / 1e6,
        )
        many = None if concurrency is None else whole("concurrency", concurrency, 1, 10_000)
        seconds = wait_of(timeout)

        def register(function: F) -> F:
            self._jobs.append(Job(function, job_queues, queue, many, policy, seconds, on_dependency))
            return function

        return register

    @property
    def counts(self) -> Counter[str]:
        """Internal: what became of the tasks that this handle has run. See `WorkerPool.counts`."""
        return sum((pool.counts for pool in self._pools), self._counts)

    @property
    def jobs(self) -> Sequence[Job]:
        """Internal: the functions that `worker` decorated."""
        return self._jobs

    async def run(self, *, concurrency: int = 10, until_empty: bool = False, grace: Duration = 30.0) -> None:
        """Run the workers until `stop` is called, or this is cancelled.

        Args:
            concurrency: how many tasks of each worker run at a time in this process, unless it says itself.
            until_empty: end when the workers' queues have no tasks.
            grace: how long after `stop` running functions may go on; then they are cancelled, and their tasks
                given back.

        Raises:
            InvalidOption: there are no workers, or they run already.
            StoreError: the store can't be worked with; while it is only away, workers wait.
            SystemExit, KeyboardInterrupt: a function raised it. The first is a failed attempt.
        """
        if not self._jobs:
            raise InvalidOption("there is nothing to run: decorate functions with @tasks.worker(...) first")
        many = whole("concurrency", concurrency, 1, 10_000)
        seconds = parse.duration(grace, what="grace") / 1e6
        session = self.session()
        if self._pools:
            raise InvalidOption("the workers of this handle run already: make one handle for each run")
        self._pools = pools = [WorkerPool(job, session, job.concurrency or many) for job in self._jobs]
        self._stopping = stopping = anyio.Event()
        errors: list[StoreError] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._end, stopping, group.cancel_scope, seconds)
                if until_empty:
                    group.start_soon(self._stop_when_empty, errors, group.cancel_scope)
                async with anyio.create_task_group() as running:
                    for pool in pools:
                        pool.on_error = group.cancel_scope.cancel
                        running.start_soon(pool.run)
                group.cancel_scope.cancel()
        finally:
            self._counts, self._pools = self.counts, []
            with anyio.CancelScope(shield=True):
                await session.leave()
        for error in (*(pool.error for pool in pools), *errors):
            if error is not None:
                raise error

    def stop(self) -> None:
        """Let `run` end: no more tasks begin, and it returns when those that run have ended."""
        if self._stopping is not None:
            self._stopping.set()

    async def _end(self, stopping: anyio.Event, scope: anyio.CancelScope, grace: float) -> None:
        await stopping.wait()
        for pool in self._pools:
            pool.stop()
        await anyio.sleep(grace)
        running = sum(pool.running for pool in self._pools)
        if running:
            log.warning("%d tasks still run %g s after the stop: cancelled, given back", running, grace)
        scope.cancel()

    async def _stop_when_empty(self, errors: list[StoreError], scope: anyio.CancelScope) -> None:
        while True:
            try:
                await self.wait_empty(*{name for job in self._jobs for name in job.queues})
            except StoreUnavailable:
                await anyio.sleep(_EMPTY_POLL)
            except StoreError as error:  # raised by `run`, not as a group
                errors.append(error)
                scope.cancel()
            else:
                self.stop()
                return

    async def wait_empty(self, *queues: str, timeout: Duration | None = None) -> None:
        """Wait until none of the queues has any task, claimed and future ones included.

        Raises:
            TimeoutError: they weren't in time.
            StoreError: they can't be looked at.
        """
        names = names_of(queues)
        seconds = wait_of(timeout)
        pause = _EMPTY_POLL
        with anyio.fail_after(math.inf if seconds is None else seconds):
            begun = anyio.current_time()
            while await self.apply(Count(names=names)):
                took = anyio.current_time() - begun  # to count a million tasks takes a while: less often
                await anyio.sleep(max(pause, min(_LOOK * took, 2.0)))
                pause = min(1.0, pause * 1.2)
                begun = anyio.current_time()


def names_of(queues: Sequence[str]) -> tuple[str, ...]:
    """Names of queues, each once.

    Raises:
        InvalidName, InvalidOption: not all are, or there are none.
    """
    if not queues:
        raise InvalidOption("name at least one queue")
    return tuple(dict.fromkeys(_values.queue_name(queue) for queue in queues))
