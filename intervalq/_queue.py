"""The handle of a queue: what users touch. It opens its store and its shard where it is first used."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakValueDictionary

import anyio

from intervalq import _parse, rules
from intervalq._backend import current_loop, is_over
from intervalq._decorate import decorate
from intervalq._inspect import QueueState, inspected
from intervalq._job import Job, RunningJob
from intervalq._line import Waiter
from intervalq._map import paced_map
from intervalq._run import Plan, run, start
from intervalq._settings import Duration, Options, options, wait_of, whole
from intervalq._shard import Shard
from intervalq.errors import ForkedError, QueueNotFound, SlotTimeout, WrongLoop
from intervalq.rules import FOREVER, Answer, Command, Configure, Drop, Hold, Inspect, Reclaim, Resume
from intervalq.store import Store, open_store, shown_url

if TYPE_CHECKING:
    from intervalq import sync

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")


class Slot:
    """The slot that a job runs in."""

    __slots__ = ("due", "ticket")

    def __init__(self, ticket: int, due: float) -> None:
        self.ticket = ticket
        """The job's place in the queue: slots are used in the order of their tickets."""
        self.due = due
        """The instant that the slot stands for: seconds since 1970 on the store's clock."""

    def __repr__(self) -> str:
        return f"Slot(ticket={self.ticket}, due={self.due!r})"


class IntervalQueue:
    """Starts at most one job per interval, across all handles of the same name and store, wherever they run.

    A handle is cheap, connects to nothing until it is used, and may be made at import time. It lives in one
    event loop and one process; it pickles as its settings. When nothing waits it has no task, no timer and no
    traffic.

    Args:
        name: 1 to 128 of `A-Z a-z 0-9 . _ -`, a letter or digit first.
        interval: the time from one start to the next: seconds, a timedelta, or text such as `200ms`; from a
            microsecond to a year. None, without a rate: take the settings that the queue already has.
        rate: instead of an interval, for example `10/s`, `5000/h`, `100/15m`.
        store: a URL or a `Store`. None: the environment's `INTERVALQ_STORE`, else a JSON file in the user's
            state folder, which works across the processes of one machine.
        burst: how many jobs may begin at once after an idle time; 1, the default, is strict spacing.
        lookahead: how many of this handle's waiting jobs hold a ticket. A process that dies leaves at most
            this many slots empty. None: all of them. 1: handles take turns, whatever their backlog. The
            default, 16, keeps a busy handle in line and a dead one cheap.
        tolerance: how late after its slot a job may begin; a job that is later takes a new slot. So starts
            are at least `interval - tolerance` apart. None: a tenth of the interval.
        max_running: how many jobs may run at the same time over all handles; None: no limit. While the
            limit is reached the queue's clock stands still. A dead process's jobs count for 10 s.
        timeout: how long a job may wait for its slot before `SlotTimeout`; None: as long as it takes.
        retries: how many more attempts a job gets when its function raises; each takes a slot of its own.
        backoff: the first pause before another attempt, in seconds; doubles each time up to a minute, with
            full jitter.
        retry_after: whether an exception that carries a Retry-After (status 429 or 503; httpx, requests,
            aiohttp) cools the queue down for that long, for everybody.

    Raises:
        InvalidName, InvalidInterval, InvalidOption: at once.
        UnknownStore, MissingExtra: at first use.
        ConfigMismatch: at first use, when the queue already runs with other settings.
        StoreUnavailable: at first use, when the store can't be reached; later, when it stays away for a
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
    ) -> None:
        by_url = store is None or isinstance(store, str | os.PathLike)
        self._options = options(
            name,
            interval=interval,
            rate=rate,
            store_url=os.fspath(cast("str | os.PathLike[str]", store)) if by_url and store is not None else None,
            burst=burst,
            lookahead=lookahead,
            tolerance=tolerance,
            max_running=max_running,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            retry_after=retry_after,
        )
        self._begin_life(None if by_url else cast("Store", store))

    def _begin_life(self, given: Store | None) -> None:
        self._given_store = given
        self._store: Store | None = given
        self._shard: Shard | None = None
        self._home: tuple[int, object] | None = None  # the process and event loop that the shard lives in
        self.jobs: set[RunningJob[Any]] = set()
        self._parent: IntervalQueue | None = None
        self._children: WeakValueDictionary[str, IntervalQueue] = WeakValueDictionary()
        self._blocking: sync.IntervalQueue | None = None

    # --- jobs ---------------------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Decorate a function, so that each call waits for a slot first; its signature is kept.

        Async functions and async generators wait in their event loop; plain functions and generators block
        their thread (see `intervalq.sync`). Of a generator, the first step waits.
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
        """Wait for a slot, call the async function, and give what it gives. Options as for `add`."""
        return await run(self, function, self.plan(priority, cost, timeout, retries))

    async def add(
        self,
        function: Callable[..., Awaitable[R]] | Callable[..., R],
        *args: Any,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> Job[R]:
        """Queue a call in the background, and return once the store knows of it.

        Args:
            function: async, or plain: then it runs in a worker thread. A function decorated by this queue
                waits once, not twice.
            args: for the function; bind keyword arguments with functools.partial.
            priority: jobs of a higher priority begin before this handle's others.
            cost: how many slots the job takes: it begins at the first and the others stay empty; 1 to 1000.
            timeout: see `IntervalQueue`; None: the queue's.
            retries: see `IntervalQueue`; None: the queue's.

        Raises:
            QueueClosed, ConfigMismatch, StoreError: the job is not queued.
        """
        job = start(self, function, args, self.plan(priority, cost, timeout, retries))
        await job.queued()
        return job

    def map(
        self,
        function: Callable[[T], Awaitable[R]] | Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        ordered: bool = False,
        window: int = 64,
    ) -> AsyncIterator[R]:
        """Call the function for each item at the queue's pace, and give the results.

        Args:
            function: as for `add`.
            items: taken as they are needed: at most `window` wait, run, or are unread at a time, so memory
                is bounded whatever their number.
            ordered: give results in the order of the items; False: as they come.
            window: see `items`.

        An error of the function ends the iteration with it; jobs whose results were not given are cancelled.
        """
        plan = self.plan(0, 1, None, None)
        return paced_map(self, function, items, plan, ordered=ordered, window=whole("window", window, 1))

    @asynccontextmanager
    async def slot(
        self, *, priority: int = 0, cost: int = 1, timeout: Duration | None = None
    ) -> AsyncIterator[Slot]:
        """`async with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        plan = self.plan(priority, cost, timeout, 0)
        shard, slot = await self.acquire(Waiter(priority=plan.priority, cost=plan.cost), plan.timeout)
        try:
            yield Slot(slot.ticket, shard.due(slot))
        finally:
            shard.leases.ended(slot.ticket)

    async def acquire(self, waiter: Waiter, timeout: float | None) -> tuple[Shard, rules.Slot]:
        """Internal: wait in line for a slot, at most `timeout` seconds (None: as long as it takes)."""
        shard = self.shard()
        with anyio.move_on_after(timeout):
            return shard, await shard.slot(waiter)
        raise SlotTimeout(self.name, timeout or 0)

    def plan(self, priority: int, cost: int, timeout: Duration | None, retries: int | None) -> Plan:
        """Internal: a job's own options, checked, over those of the queue."""
        mine = self._options
        return Plan(
            priority=whole("priority", priority, -1_000_000),
            cost=whole("cost", cost, 1, rules.MOST_TICKETS),
            timeout=mine.timeout if timeout is None else wait_of(timeout),
            retries=mine.retries if retries is None else whole("retries", retries, 0),
            backoff=mine.backoff,
            retry_after=mine.retry_after,
        )

    # --- the whole queue, everywhere ----------------------------------------------------------------

    async def pause(self) -> None:
        """Stop every shard of the queue until somebody resumes it.

        Jobs that were told to go a few milliseconds ago may still begin. Slots move by the length of the
        pause, and keep their order.
        """
        await self._command(Hold())

    async def resume(self) -> None:
        """End every pause and cool-down at once; the queue goes on at its pace, without a burst."""
        await self._command(Resume())

    async def cool_down(self, seconds: Duration) -> None:
        """Stop every shard of the queue for a while, as a server's Retry-After asks for.

        Of several pauses and cool-downs the one that ends last counts.
        """
        await self._command(Hold(length=_parse.duration(seconds, what="cool-down")))

    async def configure(
        self,
        *,
        interval: Duration | None = None,
        rate: str | None = None,
        burst: int | None = None,
        max_running: int | None = None,
    ) -> None:
        """Change the queue for everybody, while it runs; None leaves a setting as it is.

        A longer interval holds at once: jobs that wait take new tickets. A shorter one begins after the
        slots that are handed out already. `max_running=0` takes the limit away.
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
        shard = self.shard()
        shard.attached = True  # whoever changes the settings knows that his own are not the queue's
        answer = await self._command(command)
        if answer.state is not None:
            settings = answer.state.settings
            self._options = replace(
                self._options,
                interval=settings.interval, burst=settings.burst, max_running=settings.max_running,
            )  # fmt: skip

    async def reclaim(self) -> int:
        """Free the slots of shards that died, and say how many tickets were outstanding.

        Shards that live lose their tickets too, and take new ones by themselves.
        """
        before = await self._command(Inspect())
        await self._command(Reclaim())
        return 0 if before.state is None else before.state.ticket - max(before.state.current, before.state.void)

    async def drop(self) -> None:
        """Remove the queue's record from the store. Handles that are used later make it anew."""
        await self.shard().command(Drop())

    async def inspect(self) -> QueueState:
        """The queue as the store has it, and the live figures of this handle.

        Raises:
            QueueNotFound: the store has no such queue.
        """
        answer = await self._command(Inspect())
        return inspected(self.shard(), answer)

    async def _command(self, command: Command) -> Answer:
        shard = self.shard()
        answer = await shard.command(command)
        if answer.state is None and (self._options.interval is None or isinstance(command, Inspect)):
            raise QueueNotFound(self._options.record)
        return answer

    # --- keyed queues -------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> IntervalQueue:
        """A queue of its own for a key (a tenant, a host, an API key), with the same settings.

        It leaves nothing behind: not here, once nobody holds it, and not in the store, where its record is
        forgotten a minute after it could matter.
        """
        if self._options.key is not None:
            raise TypeError(f"{self!r} is the queue of one key already")
        key = _parse.name(key)
        child = self._children.get(key)
        if child is None:
            child = object.__new__(type(self))
            child._options = replace(self._options, key=key)  # noqa: SLF001 - its own class
            child._begin_life(self._given_store)  # noqa: SLF001
            child._parent = self  # noqa: SLF001
            self._children[key] = child
        return child

    # --- life ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The queue's name; of a keyed queue, `name:key`."""
        return self._options.record

    @property
    def blocking(self) -> sync.IntervalQueue:
        """The same queue for code that blocks: what `@queue` on plain functions uses."""
        if self._blocking is None:
            from intervalq import sync  # noqa: PLC0415 - it builds on this module

            self._blocking = sync.IntervalQueue.of(self)
        return self._blocking

    async def close(self, *, drain: bool = True) -> None:
        """Let this handle's jobs begin and end (drain), or give those that wait `QueueClosed`.

        Unused tickets go back, connections close. The queue itself, and other handles, go on.
        """
        shard = self._shard
        if shard is None or self._home is None or self._home[0] != os.getpid():
            return
        shard = self.shard()
        await shard.close(drain=drain)
        if drain:
            for job in list(self.jobs):
                await job.ended()
        if self._store is not None and self._parent is None:
            await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=kind is None)

    def shard(self) -> Shard:
        """Internal: the shard of this handle in this event loop, made at first use.

        Raises:
            ForkedError, WrongLoop: the handle lives elsewhere.
        """
        home = (os.getpid(), current_loop())
        if self._shard is not None and self._home is not None and self._home != home:
            if self._home[0] != home[0]:
                raise ForkedError(self.name)
            if not is_over(self._home[1]):
                raise WrongLoop(self.name)
            self._shard, self._store = None, self._given_store
        if self._shard is None:
            mine = self._options
            self._shard = Shard(
                mine.record, self._open(), mine.settings, lookahead=mine.lookahead, tolerance=mine.tolerance
            )
            self._home = home
        return self._shard

    def _open(self) -> Store:
        if self._parent is not None:
            self._parent.shard()  # checks process and event loop
            return self._parent._open()  # noqa: SLF001
        if self._store is None:
            self._store = open_store(self._options.store_url)
        return self._store

    def twin(self) -> IntervalQueue:
        """Internal: a handle with the same settings that has not been used yet."""
        twin = _from_options(self._options)
        twin._begin_life(self._given_store)  # noqa: SLF001 - its own class
        return twin

    @property
    def has_own_store(self) -> bool:
        """Internal: whether a store object was given, which can't be opened again elsewhere."""
        return self._given_store is not None

    def __reduce__(self) -> tuple[Callable[..., IntervalQueue], tuple[Options]]:
        if self._given_store is not None:
            raise TypeError(
                f"{self!r} was given a store object, which can't travel: give the store's URL to pickle a handle"
            )
        return _from_options, (self._options,)

    def __repr__(self) -> str:
        mine = self._options
        parts = [repr(mine.record)]
        if mine.interval is not None:
            parts.append(f"interval={_parse.text(mine.interval)!r}")
        if self._given_store is not None:
            parts.append(f"store={self._given_store.url!r}")
        elif mine.store_url is not None:
            parts.append(f"store={shown_url(mine.store_url)!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _from_options(mine: Options) -> IntervalQueue:
    queue = object.__new__(IntervalQueue)
    queue._options = mine  # noqa: SLF001 - unpickled
    queue._begin_life(None)  # noqa: SLF001
    return queue
