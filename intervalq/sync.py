"""Queues and schedules for blocking code: async handles, run by one event loop per process in a thread."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload

from intervalq._queue import queue as asynchronous
from intervalq._queue.attempts import late, settle_by, start
from intervalq._queue.decorate import decorate
from intervalq._queue.held import Held, held_here, hold, let_go, waiting
from intervalq._queue.keywords import JobOptions, MapOptions, QueueOptions, Settings, SlotOptions, TryOptions
from intervalq._queue.map import Mapped
from intervalq._queue.options import Cost, Duration, Settle
from intervalq._queue.plan import Plan
from intervalq._queue.slot import Slot
from intervalq._queue.threads import opens_here
from intervalq._spec.limits import Limit
from intervalq._timing.background_loop import BACKGROUND
from intervalq._timing.backoff import backoff
from intervalq._timing.clock import CLOCK
from intervalq._timing.retry_after import wait_after_error, wait_after_result
from intervalq.errors import ForkedError, StoreError

if TYPE_CHECKING:
    from intervalq._queue.inspect import QueueState
    from intervalq._shard.grants import Grant
    from intervalq._shard.shard import Shard
    from intervalq._shard.wait_queue import Waiter
    from intervalq.schedules.sync import Schedules as Schedules  # noqa: PLC0414 - exported
else:  # for type checkers, any other name is a mistake

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
        if name != "Schedules":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from intervalq.schedules.sync import Schedules  # noqa: PLC0415 - few programs have both

        return Schedules


F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


async def _late(shard: Shard, slot: Grant, waiter: Waiter) -> Waiter:
    return late(shard, slot, waiter)


async def _acquire(
    queue: asynchronous.IntervalQueue, held: Held, waiter: Waiter, timeout: float | None
) -> tuple[Shard, Grant]:
    if not held:
        return await queue._acquire(waiter, timeout)
    async with waiting(queue._shard(), held, ends=timeout is not None):
        return await queue._acquire(waiter, timeout)


def _iterate(begin: Callable[[], AsyncGenerator[R, None]]) -> Iterator[R]:
    """Go through an iteration of the background's event loop in this thread."""

    async def begun() -> AsyncGenerator[R, None]:
        return begin()

    results, end = BACKGROUND.call(begun), object()
    try:
        while (result := BACKGROUND.call(partial(anext, results, end))) is not end:
            yield cast("R", result)
    finally:
        BACKGROUND.call(results.aclose)


class _Slot(Slot):
    """The slot of a job in a thread."""

    __slots__ = ("_failure", "_queue", "_shard")

    def __init__(self, queue: asynchronous.IntervalQueue, shard: Shard, grant: Grant) -> None:
        self._queue, self._shard = queue, shard
        self._grant = grant
        self._failure: Exception | None = None

    def _settle(self, took: Mapping[str, int]) -> None:
        async def settle() -> None:
            self._queue._settle(self._shard, self._grant, took)

        BACKGROUND.call(settle)


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
        return cls._around(queue._twin)

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

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, /, *, cost: Cost = 1, settle: Settle[Any] | None = None) -> Callable[[F], F]: ...

    def __call__(
        self, function: F | None = None, /, *, cost: Cost = 1, settle: Settle[Any] | None = None
    ) -> F | Callable[[F], F]:
        """Decorate a plain function or generator: see `intervalq.IntervalQueue.__call__`."""
        self._queue._plan(cost=cost, settle=settle)
        made = partial(decorate, owner=self, queue=None, blocking=lambda: self, cost=cost, settle=settle)
        return cast("F | Callable[[F], F]", made if function is None else made(function))

    def run(
        self,
        function: Callable[[*Ts], R],
        *args: *Ts,
        settle: Settle[R] | None = None,
        **options: Unpack[JobOptions],
    ) -> R:
        """Wait for a slot, call the function in this thread, and return its result. Options as for `add`."""
        plan = self._plan(settle=settle, **options)
        attempt = 1
        while True:
            with self._slot(plan) as slot:
                try:
                    result = function(*args)
                except Exception as error:
                    slot._failure = error
                    asked = wait_after_error(plan.retry_after, error, bare=plan.adapts)
                    if asked is not None:
                        self._heed(slot._grant, asked)
                    if attempt > plan.retries:
                        raise
                else:
                    settle_by(plan.settle, result, slot._settle, self.name)
                    if plan.retry_after:
                        asked = wait_after_result(plan.retry_after, result, bare=plan.adapts)
                        if asked is not None:
                            self._heed(slot._grant, asked)
                    return result
            if not asked:  # a cool-down is enough of a pause
                clock = CLOCK.get()
                clock.block_until(clock.now() + round(backoff(attempt, plan.backoff) * 1e6))
            attempt += 1

    def add(
        self,
        function: Callable[..., R],
        *args: Any,
        settle: Settle[R] | None = None,
        **options: Unpack[JobOptions],
    ) -> Future[R]:
        """Queue a call in the background: it runs in a worker thread. The future can be cancelled.

        Options: `priority`, `cost`, `timeout`, `retries`, `settle`, as for `intervalq.IntervalQueue.add`.
        """
        queue, plan, future = self._live(), self._plan(settle=settle, **options), Future[R]()

        async def begin() -> None:
            job = start(queue, function, args, plan)
            future.add_done_callback(lambda _: BACKGROUND.tell(job.cancel))
            job.when_done(lambda: job.pass_on(future))

        BACKGROUND.call(begin)
        return future

    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        ordered: bool = False,
        window: int = 64,
        cost: Cost = 1,
        settle: Settle[R] | None = None,
    ) -> Iterator[R]:
        """See `intervalq.IntervalQueue.map`; the function runs in worker threads."""
        options = MapOptions(ordered=ordered, window=window, cost=cost)
        return _iterate(partial(self._live().map, function, items, settle=settle, **options))

    def map_all(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        ordered: bool = False,
        window: int = 64,
        cost: Cost = 1,
        settle: Settle[R] | None = None,
    ) -> Iterator[Mapped[T, R]]:
        """See `intervalq.IntervalQueue.map_all`; the function runs in worker threads."""
        options = MapOptions(ordered=ordered, window=window, cost=cost)
        return _iterate(partial(self._live().map_all, function, items, settle=settle, **options))

    def slot(self, **options: Unpack[SlotOptions]) -> AbstractContextManager[Slot]:
        """`with queue.slot() as slot:` - the body begins at the slot. Options as for `add`."""
        return self._context(self._plan(**options))

    def try_slot(self, **options: Unpack[TryOptions]) -> AbstractContextManager[Slot]:
        """See `intervalq.IntervalQueue.try_slot`."""
        return self._context(self._queue._plan_to_try(**options))

    def _context(self, plan: Plan) -> AbstractContextManager[Slot]:
        return self._heeded(plan) if plan.retry_after else self._slot(plan)

    @contextmanager
    def _heeded(self, plan: Plan) -> Iterator[Slot]:
        """A slot whose body may raise an error with a Retry-After."""
        with self._slot(plan) as slot:
            try:
                yield slot
            except Exception as error:
                if (asked := wait_after_error(plan.retry_after, error, bare=plan.adapts)) is not None:
                    self._heed(slot._grant, asked)
                raise

    @contextmanager
    def _slot(self, plan: Plan) -> Iterator[_Slot]:
        queue = self._live()
        held = held_here()
        waiter = plan.waiter(in_thread=True)
        with queue._callers.waiting(BACKGROUND.tell):
            while True:
                shard, slot = BACKGROUND.call(_acquire, queue, held, waiter, plan.timeout)
                try:
                    if opens_here(shard, slot):
                        break
                except BaseException:
                    BACKGROUND.tell(shard.undo, slot)
                    raise
                waiter = BACKGROUND.call(_late, shard, slot, waiter)
        mine, made = hold(shard), _Slot(queue, shard, slot)
        try:
            yield made
        except Exception as error:
            made._failure = error
            raise
        finally:
            let_go(mine)
            if shard.process == os.getpid():  # a child that was forked in the body doesn't end the slot
                BACKGROUND.tell(shard.ended, slot, made._failure)

    def start(self) -> None:
        """See `intervalq.IntervalQueue.start`."""
        BACKGROUND.call(self._live().start)

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

    def _known_limits(self) -> tuple[Limit, ...]:
        """See `intervalq.IntervalQueue._known_limits`."""
        return BACKGROUND.call(self._live()._known_limits)

    def quote(self, cost: Cost = 1) -> float | None:
        """See `intervalq.IntervalQueue.quote`."""
        return BACKGROUND.call(self._live().quote, cost)

    def reclaim(self) -> int:
        """See `intervalq.IntervalQueue.reclaim`."""
        return BACKGROUND.call(self._live().reclaim)

    def drop(self, *, keys: bool = False) -> None:
        """See `intervalq.IntervalQueue.drop`."""
        BACKGROUND.call(partial(self._live().drop, keys=keys))

    def keys(self) -> list[QueueState]:
        """See `intervalq.IntervalQueue.keys`."""
        return BACKGROUND.call(self._live().keys)

    def inspect(self) -> QueueState:
        """See `intervalq.IntervalQueue.inspect`."""
        return BACKGROUND.call(self._live().inspect)

    def __getitem__(self, key: str) -> IntervalQueue:
        """See `intervalq.IntervalQueue.__getitem__`."""
        return IntervalQueue._around(lambda: self._live()[key])

    def key(self, key: str, *, weight: int = 1) -> IntervalQueue:
        """See `intervalq.IntervalQueue.key`."""
        return IntervalQueue._around(lambda: self._live().key(key, weight=weight))

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
        cost: Cost = 1,
        timeout: Duration | None = None,
        retries: int | None = None,
        settle: Settle[Any] | None = None,
    ) -> Plan:
        return self._queue._plan(priority, cost, timeout, retries, settle)

    def _refused(self, grant: Grant, seconds: float) -> None:
        """The same as `_refused` of `intervalq.IntervalQueue`."""
        BACKGROUND.call(self._live()._refused, grant, seconds)

    def _heed(self, grant: Grant, seconds: float) -> None:
        try:
            self._refused(grant, seconds)
        except StoreError:
            # The caller must see the job's own error; the next start will raise the store's.
            return

    def _live(self) -> asynchronous.IntervalQueue:
        """The async handle behind this one; a new one after a fork."""
        if self._process != os.getpid():
            if self._queue._has_own_store:
                raise ForkedError(self.name)
            self._queue = self._queue._twin()  # with its current settings
            self._process = os.getpid()
        return self._queue
