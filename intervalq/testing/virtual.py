"""Runs async code on a clock that jumps to the next event instead of waiting for it."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import selectors
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar

import anyio
from anyio import from_thread, to_thread

from intervalq._backends import backend
from intervalq._timing.backends import current_loop, running_loop
from intervalq._timing.clock import CLOCK

R = TypeVar("R")

_PATIENCE: Final = 30.0
"""Real seconds that a function in a thread may take, as virtual time waits for it."""

_BLOCKING: Final = "virtual_time has no time for blocking queues: use virtual_clock() instead"

EPOCH: Final = 1_000_000_000_000_000
"""When virtual time begins for stores, in microseconds since 1970: in September 2001."""


def virtual_time(
    function: Callable[..., Awaitable[R]], *args: object, backend: str = "asyncio", horizon: float = 1e7
) -> R:
    """Run an async function to its end in virtual time and return its result.

    Queues, tasks and schedules in it use the loop's clock, and keep their records in memory, whatever the URL
    of their store; give a store object the same clock: `MemoryStore(clock=virtual_micros)`. Plain functions
    that run in threads (of queues, workers, schedules, `anyio.to_thread`) take no virtual time: it stands
    still until they end. Nothing in it may wait for anything else outside (threads of its own, sockets,
    blocking queues): see `virtual_clock` for those.

    Args:
        function: what to run.
        args: for the function.
        backend: `asyncio` or `trio`.
        horizon: virtual seconds after which the run is assumed never to end.

    Raises:
        Stuck: everything waits for something that will never happen, the horizon is passed, a function in a
            thread doesn't end for half a minute, or another thread called the event loop.
        TypeError: a coroutine was given instead of its function.
    """
    given: object = function
    if inspect.iscoroutine(given):
        given.close()
        name = given.__name__
        raise TypeError(f"virtual_time runs a function: give it {name} instead of {name}()")

    async def main() -> R:
        at_work.loop = current_loop()
        token = CLOCK.set(LoopClock(at_work.loop))
        try:
            return await function(*args)
        finally:
            CLOCK.reset(token)

    options: dict[str, Any]
    if backend == "trio":
        from trio.testing import MockClock  # noqa: PLC0415 - only when asked for

        mock = MockClock(autojump_threshold=0)

        def hold(holds: bool) -> None:
            mock.autojump_threshold = math.inf if holds else 0

        at_work, options = _AtWork(hold), {"clock": mock}
    else:
        loop = VirtualLoop(horizon)
        at_work, options = loop.at_work, {"loop_factory": lambda: loop}
    with _counted(at_work):
        return anyio.run(main, backend=backend, backend_options=options)


class _AtWork:
    """The functions that work in threads while a task awaits them: virtual time stands still meanwhile.

    It is changed in the event loop only: a thread that waits for that one is known by a context variable.
    """

    _call: ContextVar[object] = ContextVar("virtual_call", default=None)

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self.loop: object = None
        """The event loop whose time it is."""
        self.working: set[object] = set()
        self._resting: set[object] = set()
        self.abandoned = 0
        """How many may go on although nothing awaits them any more."""

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A context in which a function in a thread is awaited."""
        call, abandoned = object(), False
        token = self._call.set(call)
        self.move(call, to=self.working)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            abandoned = True
            raise
        finally:
            self._call.reset(token)
            self.ended(call, abandoned=abandoned)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """A context in which the function waits for the event loop."""
        call = self._call.get()
        if call in self.working:
            self.move(call, to=self._resting)
        try:
            yield
        finally:
            if call in self._resting:
                self.move(call, to=self.working)

    def ended(self, call: object, *, abandoned: bool) -> None:
        """Note that nothing awaits a function any more."""
        self.abandoned += abandoned
        self.move(call, to=set())

    def move(self, call: object, *, to: set[object]) -> None:
        """Let a function be in one of the sets only."""
        self.working.discard(call)
        self._resting.discard(call)
        to.add(call)
        self._hold(bool(self.working))


@contextmanager
def _counted(at_work: _AtWork) -> Iterator[None]:
    """Count the functions that anyio runs in threads, also for other libraries."""
    in_thread, in_loop = to_thread.run_sync, from_thread.run

    async def run_sync(function: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if current_loop() is not at_work.loop:
            return await in_thread(function, *args, **options)
        with at_work.awaited():
            return await in_thread(function, *args, **options)

    def run(function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        async def rest() -> Any:  # noqa: ANN401 - as the function has it
            with at_work.resting():
                return await function(*args)

        return in_loop(rest, **options)

    with ExitStack() as stack:
        for owner, name, instead in ((to_thread, "run_sync", run_sync), (from_thread, "run", run)):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, instead)
        yield


def virtual_micros() -> int:
    """The running event loop's time as a store's clock: microseconds, as if it began in 2001."""
    return EPOCH + round(anyio.current_time() * 1e6)


class LoopClock:
    """The running event loop's own time, and stores in memory that have the same clock."""

    goes_on = False

    def __init__(self, loop: object = None) -> None:
        """`loop`: the one whose time it is, as `current_loop` gives it; None: whichever runs."""
        self._loop = loop
        self._stores: dict[tuple[str, str], Any] = {}

    def now(self) -> int:
        """See `Clock.now`."""
        running = running_loop()
        if running is not None and self._loop not in (None, running):
            raise Stuck(_BLOCKING)  # a blocking queue's own event loop, in another thread
        try:
            return round(anyio.current_time() * 1e6)
        except RuntimeError:
            return from_thread.run_sync(self.now)  # a function in a thread

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        while (left := instant - self.now()) > 0:  # noqa: ASYNC110 - virtual time may be rounded
            await anyio.sleep(left / 1e6)

    def block_until(self, instant: int) -> None:
        """Wait in a thread that the event loop started; see `Clock.block_until`.

        Raises:
            Stuck: this is the thread of the event loop, or one that it doesn't know.
        """
        try:
            from_thread.run_sync(int)
        except RuntimeError:
            raise Stuck(_BLOCKING) from None
        from_thread.run(self.sleep_until, instant)

    def timers(self) -> None:
        """See `Clock.timers`: there are none."""

    def store(self, group: str, url: str) -> Any:  # noqa: ANN401 - of any kind
        """See `Clock.store`."""
        return memory_store(self._stores, group, url, virtual_micros)


def memory_store(stores: dict[tuple[str, str], Any], group: str, url: str, clock: Callable[[], int]) -> Any:  # noqa: ANN401 - of any kind
    """The store in memory that replaces the one at a URL; all handles with that URL share it."""
    if (group, url) not in stores:
        make: Any = backend(group, "memory")  # which also takes a clock
        stores[group, url] = make(url, clock=clock)
    return stores[group, url]


class Stuck(RuntimeError):
    """Everything in a virtual run waits for something that will never happen."""


class _NoInput(selectors.SelectSelector):
    """A selector that never waits, as only threads come from outside in virtual time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        del timeout
        return []

    def wait(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in real time until a thread wakes the event loop."""
        return super().select(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer as soon as nothing is ready to run.

    Time stands still while functions work in threads.
    """

    def __init__(self, horizon: float = 1e7) -> None:
        self._virtual = 0.0
        self._horizon = horizon
        self.at_work = _AtWork(lambda _: None)
        self._is_disturbed = False
        self._input = _NoInput()
        super().__init__(self._input)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._virtual

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing else runs, as a blocking call or a stopped process would."""
        self._virtual += seconds

    def run_in_executor(  # type: ignore[override] # the base class has more precise types for `func` and `args`
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As in any loop; time stands still until it has ended."""
        future = super().run_in_executor(executor, func, *args)
        call = object()
        self.at_work.move(call, to=self.at_work.working)
        future.add_done_callback(lambda done: self.at_work.ended(call, abandoned=done.cancelled()))
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """As in any loop: its threads are awaited in a thread."""
        with self.at_work.awaited():
            await super().shutdown_default_executor(*args, **options)

    def call_soon_threadsafe(  # type: ignore[override] # the base class has a more precise type for `args`
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As in any loop, but only for threads that time waits for: others come at any time."""
        if threading.get_ident() != self._thread_id and not self.at_work.working:  # type: ignore[attr-defined]
            self._is_disturbed = not self.at_work.abandoned
            self.at_work.abandoned = max(0, self.at_work.abandoned - 1)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if self._is_disturbed:
            self._is_disturbed = False  # the run is about to end, in this loop
            raise Stuck(
                "another thread called the event loop, which doesn't wait for it in virtual time: "
                "run functions in threads by anyio.to_thread, or use virtual_clock() instead"
            )
        if not ready:
            while scheduled and scheduled[0].cancelled():
                handle = heapq.heappop(scheduled)
                handle._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001 - as the loop itself does
                count: int = self._timer_cancelled_count  # type: ignore[has-type]
                self._timer_cancelled_count = max(0, count - 1)
            if self.at_work.working and not (scheduled and scheduled[0].when() <= self._virtual):
                news = self._input.wait(_PATIENCE)
                if not news:
                    raise Stuck(
                        f"a function has run in a thread for {_PATIENCE:g} s, and virtual time stood still: "
                        "if it waits for that time, use virtual_clock() instead"
                    )
                self._process_events(news)  # type: ignore[attr-defined]
            elif not scheduled:
                raise Stuck("every task waits, and nothing will ever happen")
            else:
                self._jump_to(scheduled[0].when())
        super()._run_once()  # type: ignore[misc]

    def _jump_to(self, when: float) -> None:
        self._virtual = max(self._virtual, when)
        if self._virtual > self._horizon:
            raise Stuck(
                f"not ended after {self._horizon:g} virtual seconds: do its stores have the same clock, "
                "as MemoryStore(clock=virtual_micros) has?"
            )
        # A timer must come before the present plus the resolution. After half a year of virtual time, a
        # nanosecond more is the same number.
        self._clock_resolution = max(self._clock_resolution, math.ulp(self._virtual))
