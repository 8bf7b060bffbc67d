"""Queues for blocking code: the same queue, run by one event loop in a thread of its own per process."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast

from intervalq._queue import queue as asynchronous
from intervalq._queue.attempts import late, start
from intervalq._queue.decorate import decorate
from intervalq._queue.held import Held, held_here, hold, let_go, waiting
from intervalq._queue.inspect import QueueState
from intervalq._queue.keywords import JobOptions, QueueOptions, Settings, SlotOptions
from intervalq._queue.options import Duration
from intervalq._queue.plan import Plan
from intervalq._queue.slot import Slot
from intervalq._queue.threads import EARLY, opens_here
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.background_loop import BACKGROUND
from intervalq._timing.backoff import backoff, retry_after
from intervalq.errors import ForkedError, StoreError

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")


async def _late(shard: Shard, slot: Grant, waiter: Waiter) -> Waiter:
    return late(shard, slot, waiter)


async def _acquire(
    queue: asynchronous.IntervalQueue, held: Held, waiter: Waiter, timeout: float | None
) -> tuple[Shard, Grant]:
    if not held:
        return await queue.acquire(waiter, timeout)
    async with waiting(queue.shard(), held, ends=timeout is not None):
        return await queue.acquire(waiter, timeout)


class IntervalQueue:
    """`intervalq.IntervalQueue` for blocking code: the same arguments, the same queue, plain calls.

    Safe from any number of threads, and in child processes after a fork. As a decorator it paces plain
    functions and generators in the thread that calls them.
    """

    def __init__(self, name: str, **options: Unpack[QueueOptions]) -> None:
        self._queue = asynchronous.IntervalQueue(name, **options)
        self._process = os.getpid()

    @classmethod
    def of(cls, queue: asynchronous.IntervalQueue) -> IntervalQueue:
        """A blocking handle with the settings of an async one."""
        return cls._around(queue.twin)

    @classmethod
    def _around(cls, make: Callable[[], asynchronous.IntervalQueue]) -> IntervalQueue:
        blocking = object.__new__(cls)
        blocking._queue = make()
        blocking._process = os.getpid()
        return blocking

    @property
    def name(self) -> str:
        """See `intervalq.IntervalQueue.name`."""
        return self._queue.name

    def __call__(self, function: F) -> F:
        """Decorate a plain function or generator: see `intervalq.IntervalQueue.__call__`."""
        return cast("F", decorate(function, self, None, lambda: self))

    def run(self, function: Callable[[], R], **options: Unpack[JobOptions]) -> R:
        """Wait for a slot, call the function in this thread, and return its result. Options as for `add`."""
        plan = self._plan(**options)
        attempt = 1
        while True:
            with self._slot(plan):
                try:
                    return function()
                except Exception as error:
                    asked = retry_after(error) if plan.retry_after else None
                    if asked is not None:
                        self._cool_down_quietly(asked)
                    if attempt > plan.retries:
                        raise
            if asked is None:  # a cool-down is pause enough
                time.sleep(backoff(attempt, plan.backoff))
            attempt += 1

    def add(self, function: Callable[..., R], *args: Any, **options: Unpack[JobOptions]) -> Future[R]:
        """Queue a call in the background: it runs in a worker thread. The future can be cancelled.

        Options: `priority`, `cost`, `timeout`, `retries`, as for `intervalq.IntervalQueue.add`.
        """
        queue, plan, future = self._live(), self._plan(**options), Future[R]()

        async def begin() -> None:
            job = start(queue, function, args, plan)
            future.add_done_callback(lambda _: BACKGROUND.tell(job.cancel))
            job.when_done(lambda: job.pass_on(future))

        BACKGROUND.call(begin)
        return future

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, ordered: bool = False, window: int = 64
    ) -> Iterator[R]:
        """See `intervalq.IntervalQueue.map`; the function runs in worker threads."""
        queue = self._live()

        async def begin() -> AsyncGenerator[R, None]:
            return queue.map(function, items, ordered=ordered, window=window)

        results = BACKGROUND.call(begin)
        end = object()
        try:
            while (result := BACKGROUND.call(partial(anext, results, end))) is not end:
                yield cast("R", result)
        finally:
            BACKGROUND.call(results.aclose)

    def slot(self, **options: Unpack[SlotOptions]) -> AbstractContextManager[Slot]:
        """`with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        return self._slot(self._plan(**options))

    @contextmanager
    def _slot(self, plan: Plan) -> Iterator[Slot]:
        queue = self._live()
        held = held_here()
        waiter = Waiter(priority=plan.priority, cost=plan.cost, early=EARLY)
        while True:
            shard, slot = BACKGROUND.call(_acquire, queue, held, waiter, plan.timeout)
            try:
                if opens_here(shard, slot):
                    break
            except BaseException:
                BACKGROUND.tell(shard.give_up, slot)
                raise
            waiter = BACKGROUND.call(_late, shard, slot, waiter)
        mine = hold(shard)
        try:
            yield Slot.of(slot)
        finally:
            let_go(mine)
            BACKGROUND.tell(shard.leases.ended, slot.ticket)

    def pause(self) -> None:
        """See `intervalq.IntervalQueue.pause`."""
        BACKGROUND.call(self._live().pause)

    def resume(self) -> None:
        """See `intervalq.IntervalQueue.resume`."""
        BACKGROUND.call(self._live().resume)

    def cool_down(self, seconds: Duration) -> None:
        """See `intervalq.IntervalQueue.cool_down`."""
        BACKGROUND.call(self._live().cool_down, seconds)

    def configure(self, **settings: Unpack[Settings]) -> None:
        """See `intervalq.IntervalQueue.configure`."""
        BACKGROUND.call(partial(self._live().configure, **settings))

    def reclaim(self) -> int:
        """See `intervalq.IntervalQueue.reclaim`."""
        return BACKGROUND.call(self._live().reclaim)

    def drop(self) -> None:
        """See `intervalq.IntervalQueue.drop`."""
        BACKGROUND.call(self._live().drop)

    def inspect(self) -> QueueState:
        """See `intervalq.IntervalQueue.inspect`."""
        return BACKGROUND.call(self._live().inspect)

    def __getitem__(self, key: str) -> IntervalQueue:
        """See `intervalq.IntervalQueue.__getitem__`."""
        return IntervalQueue._around(lambda: self._live()[key])

    def close(self, *, drain: bool = True) -> None:
        """See `intervalq.IntervalQueue.close`."""
        BACKGROUND.call(partial(self._live().close, drain=drain))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        return f"sync.{self._queue!r}"

    def __reduce__(self) -> tuple[Callable[..., IntervalQueue], tuple[asynchronous.IntervalQueue]]:
        return IntervalQueue.of, (self._queue,)

    def _plan(
        self,
        *,
        priority: int = 0,
        cost: int = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
    ) -> Plan:
        return self._queue.plan(priority, cost, timeout, retries)

    def _cool_down_quietly(self, seconds: float) -> None:
        try:
            self.cool_down(seconds)
        except StoreError:
            # The caller must see the job's own error; the next start will raise the store's.
            return

    def _live(self) -> asynchronous.IntervalQueue:
        """The async handle behind this one; a new one after a fork."""
        if self._process != os.getpid():
            if self._queue.has_own_store:
                raise ForkedError(self.name)
            self._queue = self._queue.twin()  # with its current settings
            self._process = os.getpid()
        return self._queue


asynchronous.blocking_by(IntervalQueue.of)
