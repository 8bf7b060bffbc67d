"""The handle of a queue that users work with. It opens its store and its shard at its first use."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar, cast, overload

from intervalq._queue.attempts import run, start
from intervalq._queue.decorate import decorate
from intervalq._queue.handle import Handle
from intervalq._queue.held import HOLDING, held_here, waiting
from intervalq._queue.inspect import QueueState, inspected, outstanding
from intervalq._queue.job import Job
from intervalq._queue.map import paced_map
from intervalq._queue.options import MAX_COST, Duration, check_burst, check_cost, options, wait_of, whole
from intervalq._queue.plan import Plan
from intervalq._queue.ports import Blocking
from intervalq._queue.slot import ComingSlot, Slot
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq._spec import parse
from intervalq.errors import InvalidOption, QueueNotFound
from intervalq.rules import Answer, Command, Configure, Drop, Hold, Inspect, Reclaim, Resume
from intervalq.store import DocumentStore, Store

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")


class IntervalQueue(Handle):
    """Starts at most one job per interval, across all handles of the same name and store, wherever they run.

    A handle is cheap, doesn't connect until it is used, and may be created at import time. It belongs to one
    event loop and one process; it is pickled as its settings. While no job waits it has no task, no timer and
    no network traffic.

    Args:
        name: 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
        interval: the time from one start to the next: seconds, a timedelta, or text such as `200ms`; from a
            microsecond to a year. None, without a rate: use the settings that the queue already has.
        rate: instead of an interval, for example `10/s`, `5000/h`, `100/15m`.
        store: a URL or a `Store`. None: the environment variable `INTERVALQ_STORE`, else a SQLite database in
            the user's state folder, which all processes of one machine can share.
        burst: how many jobs may begin at once after an idle time; 1, the default, is strict spacing.
        lookahead: how many of this handle's waiting jobs hold a ticket. A process that dies leaves at most
            this many slots empty. None: all of them. 1: handles take turns, whatever their backlog. The
            default, 16, keeps a busy handle in line and a dead one cheap.
        tolerance: how late after its slot a job may begin; for a later job, the slot moves, or the job takes
            a new one. So starts are at least `interval - tolerance` apart. None: a tenth of the interval,
            times the burst.
        max_running: how many jobs may run at the same time over all handles; None: no limit. While the
            limit is reached, the queue's clock stands still. The jobs of a dead process count for 10 s. A job
            that waits for its own queue while it holds the last place gets `SelfDeadlock`.
        timeout: how long a job may wait for its slot before `SlotTimeout`; None: without limit.
        retries: how many further attempts a job gets if its function raises; each takes a slot of its own.
        backoff: the first pause before another attempt, in seconds; doubles each time up to a minute, with
            full jitter.
        retry_after: whether an exception that carries a Retry-After (status 429 or 503; httpx, requests,
            aiohttp) cools the queue down for that long, for everybody.
        strict: wait until a slot has surely come, however far away the store is. False: if round trips are so
            long that the store's clock can't be known within the tolerance, begin in the middle of the range
            of possible times, which keeps the spacing even between near and far processes (see
            `QueueState.spacing`).
        precision: the share of a processor, 0 to 1, that this process may spend on watching the clock right
            before slots if it wakes too late otherwise. None: 0.1. It does so only while it misses slots. At
            the first missed slot, its thread also asks Linux (6.12 or newer) for a short time slice, so that
            it runs sooner after it wakes, with an unchanged share of the processor. 0 turns both off.

    Raises:
        InvalidName, InvalidInterval, InvalidOption: at once.
        UnknownStore, MissingExtra: at first use.
        ConfigMismatch: at first use, if the queue already runs with other settings.
        StoreUnavailable: at first use, if the store can't be reached; later, if it stays unreachable for a
            minute. No job ever starts unpaced.
    """

    def __init__(
        self,
        name: str,
        *,
        interval: Duration | None = None,
        rate: str | None = None,
        store: str | os.PathLike[str] | Store | None = None,
        burst: int = 1,
        lookahead: int | None = 16,
        tolerance: Duration | None = None,
        max_running: int | None = None,
        timeout: Duration | None = None,
        retries: int = 0,
        backoff: Duration = 1.0,
        retry_after: bool = False,
        strict: bool = False,
        precision: float | None = None,
    ) -> None:
        by_url = store is None or isinstance(store, str | os.PathLike)
        checked = options(
            name,
            interval=interval,
            rate=rate,
            store_url=os.fspath(cast("str | os.PathLike[str]", store))
            if by_url and store is not None
            else None,
            burst=burst,
            lookahead=lookahead,
            tolerance=tolerance,
            max_running=max_running,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            retry_after=retry_after,
            strict=strict,
            precision=precision,
        )
        super().__init__(checked, None if by_url else cast("Store", store))

    # --- jobs ---------------------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Decorate a function, so that each call waits for a slot first; its signature is kept.

        Async functions and async generators wait in their event loop; plain functions and generators block
        their thread (see `intervalq.sync`). In a generator, the first step waits.
        """
        return cast("F", decorate(function, self, self, lambda: self.blocking))

    async def run(
        self,
        function: Callable[[], Awaitable[R]],
        *,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> R:
        """Wait for a slot, call the async function, and return its result. Options as for `add`."""
        result: R = await run(self, function, self.plan(priority, cost, timeout, retries))
        return result

    @overload
    async def add(
        self,
        function: Callable[..., Awaitable[R]],
        *args: Any,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> Job[R]: ...

    @overload
    async def add(
        self,
        function: Callable[..., R],
        *args: Any,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> Job[R]: ...

    async def add(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> Job[Any]:
        """Queue a call in the background, and return once it has a ticket, or a place behind others.

        A job behind others of this handle gets its ticket with the next request for theirs, at most 50 ms
        later, or when it is one of the next `lookahead` jobs.

        Args:
            function: async, or plain: then it runs in a worker thread. A function decorated by this queue
                waits only once.
            args: for the function; bind keyword arguments with functools.partial.
            priority: jobs of a higher priority begin before other jobs of this handle.
            cost: how many consecutive slots the job takes, up to a billion: it begins at the first, and the
                others stay empty, even if this process dies.
            timeout: see `IntervalQueue`; None: the queue's.
            retries: see `IntervalQueue`; None: the queue's.

        Raises:
            QueueClosed, ConfigMismatch, StoreError: the job is not queued.
        """
        job = start(self, function, args, self.plan(priority, cost, timeout, retries))
        try:
            await job.queued()
        except BaseException:
            job.cancel()  # the caller doesn't have it yet, so nobody else could
            raise
        return job

    @overload
    def map(
        self,
        function: Callable[[T], Awaitable[R]],
        items: Iterable[T] | AsyncIterable[T],
        *,
        ordered: bool = False,
        window: int = 64,
    ) -> AsyncGenerator[R, None]: ...

    @overload
    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        ordered: bool = False,
        window: int = 64,
    ) -> AsyncGenerator[R, None]: ...

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        ordered: bool = False,
        window: int = 64,
    ) -> AsyncGenerator[Any, None]:
        """Call the function for each item at the queue's pace, and yield the results.

        Args:
            function: as for `add`.
            items: read as they are needed: at most `window` of them wait, run, or have an unread result, so
                memory is bounded whatever their number.
            ordered: yield results in the order of the items; False: as they are ready.
            window: see `items`.

        If the function raises, the iteration ends with that error, and the other jobs are cancelled.
        """
        plan = self.plan()
        return paced_map(self, function, items, plan, ordered=ordered, window=whole("window", window, 1))

    def slot(
        self, *, priority: int = 0, cost: int = 1, timeout: Duration | None = None
    ) -> AbstractAsyncContextManager[Slot]:
        """`async with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        usual = timeout is None and priority == 0 and cost == 1
        return ComingSlot(self, None if usual else self.plan(priority, cost, timeout))

    async def acquire(self, waiter: Waiter, timeout: float | None) -> tuple[Shard, Grant]:
        """Internal: wait in line for a slot, at most `timeout` seconds (None: without limit)."""
        shard = self.shard()
        if HOLDING.get() and (held := held_here()):
            async with waiting(shard, held, ends=timeout is not None):
                return shard, await shard.slot(waiter, timeout)
        return shard, await shard.slot(waiter, timeout)

    def plan(
        self, priority: int = 0, cost: int = 1, timeout: Duration | None = None, retries: int | None = None
    ) -> Plan:
        """Internal: a job's own options, checked, combined with those of the queue."""
        if timeout is None and retries is None and priority == 0 and cost == 1:
            return self._usual
        mine = self._options
        check_cost(mine.interval, cost)
        return Plan(
            whole("priority", priority, -1_000_000),
            whole("cost", cost, 1, MAX_COST),
            mine.timeout if timeout is None else wait_of(timeout),
            mine.retries if retries is None else whole("retries", retries, 0),
            mine.backoff,
            mine.retry_after,
        )

    @property
    def usual(self) -> Plan:
        """Internal: the plan of a job without options of its own."""
        return self._usual

    @cached_property
    def _usual(self) -> Plan:
        mine = self._options
        return Plan(0, 1, mine.timeout, mine.retries, mine.backoff, mine.retry_after)

    # --- the whole queue, everywhere ----------------------------------------------------------------

    async def pause(self) -> None:
        """Stop every shard of the queue until somebody resumes it.

        Jobs whose slots are already granted may still begin: for up to 50 ms or two round trips, and for up
        to 100 ms more in a process that wakes late. Slots move by the length of the pause, and keep their
        order.
        """
        await self._command(Hold())

    async def resume(self) -> None:
        """End every pause and cool-down at once; the queue goes on at its pace, without a burst."""
        await self._command(Resume())

    async def cool_down(self, seconds: Duration) -> None:
        """Stop every shard of the queue for a while, as a server's Retry-After requests.

        If several pauses and cool-downs overlap, the one that ends last counts.
        """
        await self._command(Hold(length=parse.duration(seconds, what="cool-down")))

    async def configure(
        self,
        *,
        interval: Duration | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running: int | None = None,
    ) -> None:
        """Change the queue for everybody, while it runs; None leaves a setting as it is.

        A longer interval applies at once: waiting jobs take new tickets. A shorter one applies after the
        slots that are already handed out. `max_running=0` removes the limit. The queue of each key is
        configured separately.
        """
        checked = options(
            self._options.name, interval=interval, rate=rate, store_url=None, burst=1, lookahead=None,
            tolerance=None, max_running=None, timeout=None, retries=0, backoff=0, retry_after=False,
        )  # fmt: skip
        command = Configure(
            interval=checked.interval,
            burst=None if burst is None else whole("burst", burst, 1),
            max_running=None if max_running is None else whole("max_running", max_running, 0),
        )
        before = (await self._command(Inspect(), may_be_new=True)).state
        if before is not None:
            settings = before.settings
            check_burst(command.interval or settings.interval, command.burst or settings.burst)
            # From now on this handle uses the queue's settings instead of its own.
            self.shard().connection.adopt(settings)
        answer = await self._command(command)
        if answer.state is not None:
            settings = answer.state.settings
            self.shard().connection.adopt(settings)
            self._options = replace(
                self._options,
                interval=settings.interval, burst=settings.burst, max_running=settings.max_running,
                tolerance=settings.tolerance,
            )  # fmt: skip

    async def reclaim(self) -> int:
        """Free the slots of shards that died, and return how many tickets were outstanding.

        Live shards lose their tickets, too, and take new ones by themselves.
        """
        before = await self._command(Inspect(), may_be_new=True)
        await self._command(Reclaim())
        return 0 if before.state is None else outstanding(before.state)

    async def drop(self) -> None:
        """Remove the queue's record from the store. The next job creates it again."""
        await self.shard().command(Drop())

    async def inspect(self) -> QueueState:
        """The queue as the store has it, and the live figures of this handle.

        Raises:
            QueueNotFound: the store has no such queue.
        """
        answer = await self._command(Inspect())
        return inspected(self.shard(), answer)

    async def _command(self, command: Command, *, may_be_new: bool = False) -> Answer:
        answer = await self.shard().command(command)
        if answer.state is None and not (may_be_new and self._options.interval is not None):
            raise QueueNotFound(self.name)
        return answer

    @cached_property
    def blocking(self) -> Blocking:
        """The same queue for blocking code, which `@queue` on plain functions uses."""
        if self._given_store is not None and not isinstance(self._given_store, DocumentStore):
            raise InvalidOption(
                f"{self!r} has a store object of this event loop: to use it from threads, give a URL instead"
            )
        return _blocking[0](self)


_blocking: Final[list[Callable[[IntervalQueue], Blocking]]] = []


def blocking_by(make: Callable[[IntervalQueue], Blocking]) -> None:
    """Internal: register the factory of handles for blocking code; called by `intervalq.sync`."""
    _blocking[:] = [make]
