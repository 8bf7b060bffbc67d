"""The handle of a queue that users work with. It opens its store and its shard at its first use."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, cast, overload

from intervalq._queue.attempts import refuse_called, run, start
from intervalq._queue.control import Control
from intervalq._queue.decorate import decorate
from intervalq._queue.held import HOLDING, held_here, waiting
from intervalq._queue.job import Job
from intervalq._queue.keywords import JobOptions
from intervalq._queue.map import Maps
from intervalq._queue.options import Cost, Duration, Each, Rate, Settle, options, wait_of, whole
from intervalq._queue.plan import Plan, usual
from intervalq._queue.ports import Blocking, blocking_of
from intervalq._queue.slot import ComingSlot, Slot
from intervalq._spec import parse
from intervalq._spec.limits import Limits
from intervalq._spec.mismatch import OnMismatch
from intervalq._timing.retry_after import RetryAfter
from intervalq.errors import InvalidOption, short
from intervalq.store import DocumentStore, Store, checked_store

if TYPE_CHECKING:
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard
    from intervalq._shard.wait_queue import Waiter

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_ANSWER: Final = 5.0
"""Seconds that the store has for its answers in `try_slot`."""


class IntervalQueue(Maps, Control):
    """Starts at most one job per interval, across all handles of the same name and store, wherever they run.

    A handle is cheap, doesn't connect until it is used, and may be created at import time. It belongs to one
    event loop and one process; it is pickled as its settings. While no job waits it has no task, no timer and
    no network traffic.

    Args:
        name: 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
        interval: the time from one start to the next: seconds, a timedelta, or text such as `200ms`; from a
            microsecond to a year. None, without a rate: use the settings that the queue already has.
        rate: instead of interval, starts a second, or text such as `10/s`, `100/15m`, `5 per hour`; `auto`:
            find the server's limit, from the floor up; a refusal (status 429 or 503) lowers it for everybody.
        floor, ceiling: with `rate="auto"`, the lowest rate (at least `1/d`), if the server refuses all, and
            the highest, if it refuses none. They have no default, because only you know what is too much.
        store: a URL or a `Store`. None: the environment variable `INTERVALQ_STORE`, else a SQLite database in
            the user's state folder, which all processes of one machine can share.
        burst: how many jobs may begin at once after an idle time; 1, the default, is strict spacing.
        lookahead: how many of this handle's waiting jobs hold a ticket. A process that dies leaves at most
            this many slots empty. None: all of them. 1: handles take turns, whatever their backlog. The
            default, 16, keeps a busy handle supplied and a dead one cheap.
        tolerance: how late after its slot a job may begin; for a later job, the slot moves, or the job takes
            a new one. So starts are at least `interval - tolerance` apart. None: a tenth of the interval,
            times the burst.
        max_running: how many jobs may run at the same time over all handles; None: no limit. While the
            limit is reached, the queue's clock stands still. The jobs of a dead process count for 10 s. A job
            that waits for its own queue while it holds the last place gets `SelfDeadlock`.
        timeout: how long a job may wait for its slot before `SlotTimeout`; None: without limit. It is raised
            at once if it is known that the slot comes later.
        retries: how many further attempts a job gets if its function raises; each takes a slot of its own.
        backoff: the first pause before another attempt, in seconds; doubles each time up to a minute, with
            full jitter.
        retry_after: True: an exception that leaves a job, or one behind it, with status 429 or 503 and a
            Retry-After or reset header (httpx, requests, aiohttp) cools the queue down for that long, for
            everybody. A function decides instead: it is called with each exception that leaves a job, and
            with each result except those of slots and generators, and returns the time to wait, or None. The
            exception is raised, and the result returned, all the same. With `rate="auto"` it is True.
        strict: wait until a slot has surely come, however far away the store is. False: if round trips are so
            long that the store's clock can't be known within the tolerance, begin in the middle of the range
            of possible times, which keeps the spacing even between near and far processes (see
            `QueueState.spacing`).
        precision: the share of a processor, 0 to 1, that this process may spend on watching the clock right
            before slots if it wakes too late otherwise. None: 0.1. It does so only while it misses slots. At
            the first missed slot, its thread also asks Linux (6.12 or newer) for a short time slice, so that
            it runs sooner after it wakes, with an unchanged share of the processor. 0 turns both off.
        limits: limits in addition to the interval, or instead of one: text such as `500/min` and
            `30_000 tokens/min`, or `Limit`s. In any window at most that many jobs begin, or units are taken
            (see `cost` of `add`). `5000/day from utc` has fixed windows instead. None: there are none.
        on_mismatch: what this handle does if the queue, or that of a key, already runs with other settings:
            "raise" `ConfigMismatch`; "adopt" the queue's; or "update" the queue to interval, burst,
            max_running and limits of this handle, for everybody. The tolerance of a queue can't be changed.
        new: refuse to use a queue that exists, with `QueueExists`. This doesn't apply to the queues of keys.
        start: False: keep this handle's own jobs until `await queue.start()`.
        each: the rate of each key (`queue["tenant-42"]`) under the common pace, which all keys share fairly;
            "shared": keys have no rate of their own. Then every job needs a key, and `limits` count all keys
            together. A list of a rate, or "shared", and limits as in `limits`, such as `["10/s", "500/min",
            "5_000 tokens/min"]`, also limits each key by itself, but not in fixed windows (`from utc`); the
            rate may be left out before a limit of units. None: each key is a queue of its own, with limits of
            its own. Not with burst or max_running, nor on NATS (`UnsupportedOperation`).
        log: a file to which a line of JSON is appended for each start of this handle, in the background.
            None: no log. `intervalq report` draws it; docs/command-line.md has its fields.
        window: the part of the day in which jobs of this handle begin, such as `22:00-06:00`, by the store's
            clock; its end doesn't belong to it. Others wait until it opens. None: all day.
        timezone: the zone of `window`, such as `Europe/Berlin`.

    Raises:
        InvalidName, InvalidInterval, InvalidOption: at once.
        UnknownStore, MissingExtra: at first use.
        ConfigMismatch, QueueExists: at first use, see `on_mismatch` and `new`.
        StoreUnavailable: at first use, if the store can't be reached; later, if it stays unreachable for a
            minute. No job ever starts unpaced.
    """

    def __init__(
        self,
        name: str,
        *,
        interval: Duration | None = None,
        rate: Rate | None = None,
        floor: Rate | None = None,
        ceiling: Rate | None = None,
        store: str | os.PathLike[str] | Store | None = None,
        burst: int = 1,
        lookahead: int | None = 16,
        tolerance: Duration | None = None,
        max_running: int | None = None,
        timeout: Duration | None = None,
        retries: int = 0,
        backoff: Duration = 1.0,
        retry_after: RetryAfter = False,
        strict: bool = False,
        precision: float | None = None,
        limits: Limits | None = None,
        on_mismatch: OnMismatch = "raise",
        new: bool = False,
        start: bool = True,
        each: Each | None = None,
        log: str | os.PathLike[str] | None = None,
        window: str | None = None,
        timezone: str = "UTC",
    ) -> None:
        if isinstance(store, os.PathLike):
            store = os.fspath(store)
        checked = options(
            name,
            interval=interval,
            rate=rate,
            floor=floor,
            ceiling=ceiling,
            store_url=store if isinstance(store, str) else None,
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
            limits=limits,
            on_mismatch=on_mismatch,
            new=new,
            start=start,
            each=each,
            log=log,
            window=window,
            timezone=timezone,
        )
        super().__init__(checked, None if store is None or isinstance(store, str) else checked_store(store))

    # --- jobs ---------------------------------------------------------------------------------------

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, /, *, cost: Cost = 1, settle: Settle[Any] | None = None) -> Callable[[F], F]: ...

    def __call__(
        self, function: F | None = None, /, *, cost: Cost = 1, settle: Settle[Any] | None = None
    ) -> F | Callable[[F], F]:
        """Decorate a function, so that each call waits for a slot first; its signature is kept.

        Async functions and async generators wait in their event loop; plain functions and generators block
        their thread (see `intervalq.sync`). In a generator, the first step waits.

        `@queue(cost=..., settle=...)` gives each call these options, see `add`; a generator has no result
        to settle.
        """
        self._plan(cost=cost, settle=settle)  # a mistake shows here, not at the first call
        made = partial(
            decorate, owner=self, queue=self, blocking=lambda: self.blocking, cost=cost, settle=settle
        )
        return cast("F | Callable[[F], F]", made if function is None else made(function))

    async def run(
        self,
        function: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        priority: int = 0,
        cost: Cost = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
        settle: Settle[R] | None = None,
    ) -> R:
        """Wait for a slot, call the async function, and return its result. Options as for `add`."""
        refuse_called(function)
        call: Callable[..., Awaitable[R]] = partial(function, *args) if args else function
        result: R = await run(self, call, self._plan(priority, cost, timeout, retries, settle))
        return result

    @overload
    async def add(
        self,
        function: Callable[..., Awaitable[R]],
        *args: Any,
        settle: Settle[R] | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...

    @overload
    async def add(
        self,
        function: Callable[..., R],
        *args: Any,
        settle: Settle[R] | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[R]: ...

    async def add(
        self,
        function: Callable[..., Any],
        *args: Any,
        priority: int = 0,
        cost: Cost = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
        settle: Settle[Any] | None = None,
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
                others stay empty, even if this process dies. Limits of starts count it as that many. Or what
                it takes of limits, by unit: `{"tokens": 1200}`.
            timeout: see `IntervalQueue`; None: the queue's.
            retries: see `IntervalQueue`; None: the queue's.
            settle: a function of the result that says what the job really took of limits, by unit:
                `lambda answer: {"tokens": answer.usage}`; `cost` is the estimate then (see `Slot.settle`).
                If it returns None, or the job fails, the estimate counts. If the function itself fails, that
                is logged, the estimate counts, and the result is returned.

        Raises:
            QueueClosed, ConfigMismatch, StoreError: the job is not queued.
        """
        job = start(self, function, args, self._plan(priority, cost, timeout, retries, settle))
        try:
            await job.queued()
        except BaseException:
            job.cancel()  # the caller doesn't have it yet, so nobody else could
            raise
        return job

    def slot(
        self, *, priority: int = 0, cost: Cost = 1, timeout: Duration | None = None
    ) -> AbstractAsyncContextManager[Slot]:
        """`async with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        usual = timeout is None and priority == 0 and cost == 1
        return ComingSlot(self, None if usual else self._plan(priority, cost, timeout))

    def try_slot(
        self, *, within: Duration = 0, priority: int = 0, cost: Cost = 1
    ) -> AbstractAsyncContextManager[Slot]:
        """`async with queue.try_slot():` - the body begins at a slot that comes within a time, or not at all.

        It raises `SlotTimeout` at once, with `retry_after`, if the next slot comes later, and doesn't leave a
        slot empty then. The time in which the store answers doesn't count; after 5 s it raises in any case.

        Args:
            within: how long the body may wait for its slot.
            priority: as for `add`.
            cost: as for `add`.
        """
        return ComingSlot(self, self._plan_to_try(within, priority, cost))

    def _plan_to_try(self, within: Duration = 0, priority: int = 0, cost: Cost = 1) -> Plan:
        """The options of `try_slot`, checked."""
        seconds = parse.duration(within, what="within") / 1e6
        return replace(self._plan(priority, cost), timeout=max(seconds, _ANSWER), within=seconds)

    async def _acquire(self, waiter: Waiter, timeout: float | None) -> tuple[Shard, Grant]:
        """Wait for a slot, at most `timeout` seconds (None: without limit)."""
        shard = self._shard()
        if HOLDING.get() and (held := held_here()):
            async with waiting(shard, held, ends=timeout is not None):
                return shard, await shard.slot(waiter, timeout)
        return shard, await shard.slot(waiter, timeout)

    def _settle(self, shard: Shard, grant: Grant, took: Mapping[str, int]) -> None:
        """Note what the job of a slot took of the limits, by unit."""
        shard.settle(grant, self._options.beyond(grant.slot, took))

    def _plan(
        self,
        priority: int = 0,
        cost: Cost = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
        settle: Settle[Any] | None = None,
    ) -> Plan:
        """A job's own options, checked, combined with those of the queue."""
        if timeout is None and retries is None and priority == 0 and cost == 1 and settle is None:
            return self._usual
        if callable(cost):
            raise InvalidOption(
                f"cost={short(cost)} must be a number, or numbers by unit; if it depends on arguments, "
                "write `async with queue.slot(cost=...)` in the function instead of decorating it"
            )
        if settle is not None and not (callable(settle) and isinstance(cost, Mapping)):
            raise InvalidOption(
                f"settle={short(settle)} must be a function of the result that returns what it took by unit, "
                "and needs the estimate of these units: cost={'tokens': 1200}"
            )
        mine = self._agreed()
        slots, units = mine.units(cost)
        return replace(
            self._usual,
            priority=whole("priority", priority, -1_000_000),
            cost=slots,
            timeout=mine.timeout if timeout is None else wait_of(timeout),
            retries=mine.retries if retries is None else whole("retries", retries, 0),
            units=units,
            settle=settle,
        )

    @property
    def _usual(self) -> Plan:
        """The plan of a job without options of its own."""
        return self._usual_plan

    @cached_property
    def _usual_plan(self) -> Plan:
        self._options.check_key()
        return usual(self._options)

    @cached_property
    def blocking(self) -> Blocking:
        """The same queue for blocking code, which `@queue` on plain functions uses."""
        if self._given_store is not None and not isinstance(self._given_store, DocumentStore):
            raise InvalidOption(
                f"{self!r} has a store object of this event loop: to use it from threads, give a URL instead"
            )
        return blocking_of(self)
