"""Runs async code on a clock that jumps to the next event instead of waiting for it."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio

from intervalq._backends import backend
from intervalq._timing.clock import CLOCK

R = TypeVar("R")

EPOCH: Final = 1_000_000_000_000_000
"""When virtual time begins for stores, in microseconds since 1970: in September 2001."""


def virtual_time(
    function: Callable[..., Awaitable[R]], *args: object, backend: str = "asyncio", horizon: float = 1e7
) -> R:
    """Run an async function to its end in virtual time and return its result.

    Queues, tasks and schedules in it use the loop's clock, and keep their records in memory, whatever the URL
    of their store; give a store object the same clock: `MemoryStore(clock=virtual_micros)`. Nothing in it may
    wait for the outside world (threads, sockets): see `virtual_clock` for those.

    Args:
        function: what to run.
        args: for the function.
        backend: `asyncio` or `trio`.
        horizon: virtual seconds after which the run is assumed never to end.

    Raises:
        Stuck: everything waits for something that will never happen, or the horizon is passed.
        TypeError: a coroutine was given instead of its function.
    """
    given: object = function
    if inspect.iscoroutine(given):
        given.close()
        name = given.__name__
        raise TypeError(f"virtual_time runs a function: give it {name} instead of {name}()")

    async def main() -> R:
        token = CLOCK.set(LoopClock())
        try:
            return await function(*args)
        finally:
            CLOCK.reset(token)

    options: dict[str, Any]
    if backend == "trio":
        from trio.testing import MockClock  # noqa: PLC0415 - only when asked for

        options = {"clock": MockClock(autojump_threshold=0)}
    else:
        options = {"loop_factory": lambda: VirtualLoop(horizon)}
    return anyio.run(main, backend=backend, backend_options=options)


def virtual_micros() -> int:
    """The running event loop's time as a store's clock: microseconds, as if it began in 2001."""
    return EPOCH + round(anyio.current_time() * 1e6)


class LoopClock:
    """The running event loop's own time, and stores in memory that have the same clock."""

    goes_on = False

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], Any] = {}

    def now(self) -> int:
        """See `Clock.now`."""
        return round(anyio.current_time() * 1e6)

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        while (left := instant - self.now()) > 0:  # noqa: ASYNC110 - virtual time may be rounded
            await anyio.sleep(left / 1e6)

    def block_until(self, instant: int) -> None:
        """Refuse to block: the event loop has no time for other threads.

        Raises:
            Stuck: always.
        """
        del instant
        raise Stuck("virtual_time has no time for threads and blocking queues: use virtual_clock() instead")

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
    """A selector that never waits, as nothing comes from outside in virtual time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        del timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time jumps to the next timer as soon as nothing is ready to run."""

    def __init__(self, horizon: float = 1e7) -> None:
        self._virtual = 0.0
        self._horizon = horizon
        super().__init__(_NoInput())
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._virtual

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing else runs, as a blocking call or a stopped process would."""
        self._virtual += seconds

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not ready:
            while scheduled and scheduled[0].cancelled():
                handle = heapq.heappop(scheduled)
                handle._scheduled = False  # type: ignore[attr-defined] # noqa: SLF001 - as the loop itself does
                count: int = self._timer_cancelled_count  # type: ignore[has-type]
                self._timer_cancelled_count = max(0, count - 1)
            if not scheduled:
                raise Stuck("every task waits, and nothing will ever happen")
            self._virtual = max(self._virtual, scheduled[0].when())
            if self._virtual > self._horizon:
                raise Stuck(
                    f"not ended after {self._horizon:g} virtual seconds: do its stores have the same clock, "
                    "as MemoryStore(clock=virtual_micros) has?"
                )
            # A timer must come before the present plus the resolution. After half a year of virtual time, a
            # nanosecond more is the same number.
            self._clock_resolution = max(self._clock_resolution, math.ulp(self._virtual))
        super()._run_once()  # type: ignore[misc]
