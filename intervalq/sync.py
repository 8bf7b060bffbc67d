"""Queues for code that blocks: the same queue, run by one event loop in a thread of its own per process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from intervalq import _queue
from intervalq._decorate import decorate
from intervalq._inspect import QueueState
from intervalq._line import Waiter
from intervalq._retry import backoff, retry_after
from intervalq._run import Plan, late, start
from intervalq._settings import Duration
from intervalq._shard import Shard
from intervalq._slot import Slot
from intervalq._slots import Go
from intervalq._threads import EARLY, opens_here
from intervalq.errors import ForkedError, StoreError

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")


class _Background:
    """The event loop for blocking code: begun when first needed, ended with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[AbstractContextManager[BlockingPortal], BlockingPortal] | None = None
        self._thread = 0
        self._of_parents: list[object] = []

    def call(self, function: Callable[..., Awaitable[R]], *args: Any) -> R:
        """Run an async function there, and wait for it. An interrupted wait cancels it."""
        future = self.start(_kept, function, *args)
        try:
            result, fatal = future.result()
        except BaseException:
            future.cancel()
            raise
        if fatal is not None:
            raise fatal
        return cast("R", result)

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function there; its future can be cancelled."""
        with self._lock:
            if self._running is None:
                manager = start_blocking_portal(name="intervalq")
                self._running = (manager, manager.__enter__())
                self._thread = self._running[1].call(threading.get_ident)
            portal = self._running[1]
        return portal.start_task_soon(function, *args)

    def tell(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a plain function there, and don't wait for it."""
        if threading.get_ident() == self._thread:  # a generator that is collected in that very thread
            function(*args)
        else:
            self.start(function, *args)

    def forked(self) -> None:
        """In a forked child the thread is gone: begin another one when needed.

        The old one is kept: collecting it would join a thread that doesn't exist, for ever.
        """
        self._of_parents.append(self._running)
        self._running = None
        self._thread = 0
        self._lock = threading.Lock()


async def _kept(function: Callable[..., Awaitable[R]], *args: Any) -> tuple[R | None, BaseException | None]:
    """What a function gives, or what it raises that would end the event loop, such as SystemExit."""
    try:
        return await function(*args), None
    except (Exception, anyio.get_cancelled_exc_class()):
        raise
    except BaseException as fatal:  # noqa: BLE001 - for the thread that waits
        return None, fatal


async def _late(shard: Shard, slot: Go, waiter: Waiter) -> Waiter:
    return late(shard, slot, waiter)


_background: Final = _Background()
os.register_at_fork(after_in_child=_background.forked)


class IntervalQueue:
    """`intervalq.IntervalQueue` for code that blocks: the same arguments, the same queue, plain calls.

    Safe from any number of threads, and in child processes after a fork. As a decorator it paces plain
    functions and generators in the thread that calls them.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._queue = _queue.IntervalQueue(name, **options)
        self._process = os.getpid()

    @classmethod
    def of(cls, queue: _queue.IntervalQueue) -> IntervalQueue:
        """A blocking handle with the settings of an async one."""
        return cls._around(queue.twin)

    @classmethod
    def _around(cls, make: Callable[[], _queue.IntervalQueue]) -> IntervalQueue:
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

    def run(self, function: Callable[[], R], **options: Any) -> R:
        """Wait for a slot, call the function in this thread, and give what it gives. Options as for `add`."""
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

    def add(self, function: Callable[..., R], *args: Any, **options: Any) -> Future[R]:
        """Queue a call in the background: it runs in a worker thread. The future can be cancelled.

        Options: `priority`, `cost`, `timeout`, `retries`, as for `intervalq.IntervalQueue.add`.
        """
        queue, plan, future = self._live(), self._plan(**options), Future[R]()

        async def begin() -> None:
            job = start(queue, function, args, plan)
            future.add_done_callback(lambda _: _background.tell(job.cancel))
            job.when_done(lambda: job.pass_on(future))

        _background.call(begin)
        return future

    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, ordered: bool = False, window: int = 64
    ) -> Iterator[R]:
        """See `intervalq.IntervalQueue.map`; the function runs in worker threads."""
        queue = self._live()

        async def begin() -> AsyncGenerator[R, None]:
            return queue.map(function, items, ordered=ordered, window=window)

        results = _background.call(begin)
        end = object()
        try:
            while (result := _background.call(partial(anext, results, end))) is not end:
                yield cast("R", result)
        finally:
            _background.call(results.aclose)

    def slot(self, **options: Any) -> AbstractContextManager[Slot]:
        """`with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        return self._slot(self._plan(**options))

    @contextmanager
    def _slot(self, plan: Plan) -> Iterator[Slot]:
        queue = self._live()
        waiter = Waiter(priority=plan.priority, cost=plan.cost, early=EARLY)
        while True:
            shard, slot = _background.call(queue.acquire, waiter, plan.timeout)
            try:
                if opens_here(shard, slot):
                    break
            except BaseException:
                _background.tell(shard.give_up, slot)
                raise
            waiter = _background.call(_late, shard, slot, waiter)
        try:
            yield Slot.of(slot)
        finally:
            _background.tell(shard.leases.ended, slot.ticket)

    def pause(self) -> None:
        """See `intervalq.IntervalQueue.pause`."""
        _background.call(self._live().pause)

    def resume(self) -> None:
        """See `intervalq.IntervalQueue.resume`."""
        _background.call(self._live().resume)

    def cool_down(self, seconds: Duration) -> None:
        """See `intervalq.IntervalQueue.cool_down`."""
        _background.call(self._live().cool_down, seconds)

    def configure(self, **settings: Any) -> None:
        """See `intervalq.IntervalQueue.configure`."""
        _background.call(partial(self._live().configure, **settings))

    def reclaim(self) -> int:
        """See `intervalq.IntervalQueue.reclaim`."""
        return _background.call(self._live().reclaim)

    def drop(self) -> None:
        """See `intervalq.IntervalQueue.drop`."""
        _background.call(self._live().drop)

    def inspect(self) -> QueueState:
        """See `intervalq.IntervalQueue.inspect`."""
        return _background.call(self._live().inspect)

    def __getitem__(self, key: str) -> IntervalQueue:
        """See `intervalq.IntervalQueue.__getitem__`."""
        return IntervalQueue._around(lambda: self._live()[key])

    def close(self, *, drain: bool = True) -> None:
        """See `intervalq.IntervalQueue.close`."""
        _background.call(partial(self._live().close, drain=drain))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        return f"sync.{self._queue!r}"

    def __reduce__(self) -> tuple[Callable[..., IntervalQueue], tuple[_queue.IntervalQueue]]:
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
            # The caller must see the job's own error; the next start will meet the store's.
            return

    def _live(self) -> _queue.IntervalQueue:
        """The async handle behind this one; a new one after a fork."""
        if self._process != os.getpid():
            if self._queue.has_own_store:
                raise ForkedError(self.name)
            self._queue = self._queue.twin()  # with the settings that it has by now
            self._process = os.getpid()
        return self._queue
