"""Clocks for tests of code that waits: one for queues alone, and one for all event loops of the process.

Time goes on by jumps: to the next instant for which anything waits, as soon as nothing else is to be done.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from intervalq._queue.options import Duration
from intervalq._shard.shard import REPLACED, SHARDS
from intervalq._spec import parse
from intervalq._timing.backends import asyncio_loop
from intervalq._timing.background_loop import BACKGROUND
from intervalq._timing.clock import CLOCK
from intervalq.store import wall_clock
from intervalq.testing.virtual import EPOCH, memory_store

_PATIENCE: Final = 0.02
"""Seconds for which a jump waits for what doesn't depend on time: working threads, sockets, other loops."""

_LOOK: Final = 0.001
"""Seconds between two checks of whether time may jump."""

_ROUNDS: Final = 5
"""How many rounds of the event loop pass before a wait of a queue is skipped. A job begins within them."""

_FAR: Final = 400 * 86_400
"""Seconds after which a wait counts as one without an end: time doesn't jump so far."""


class VirtualClock:
    """The clock of `virtual_clock` and `no_waiting`, for any thread."""

    def __init__(self, *, leads_loops: bool) -> None:
        self.goes_on = not leads_loops
        """See `Clock.goes_on`: without leading the event loops, real time passes, too."""
        self._leads_loops = leads_loops
        self._wall = EPOCH if leads_loops else wall_clock()
        self._began = time.monotonic()
        self._skipped = 0
        self._waits: dict[object, float] = {}
        """Until when each event loop or thread waits that has nothing else to do."""
        self._home = threading.get_ident()
        self._working: set[object] = {self._home}
        """The thread of the test, those of event loops, and those that these started, unless they wait."""
        self._loops: dict[Any, int] = {}
        """The event loops that were seen running, and their threads."""
        self._idle: set[Any] = set()
        """Those that wait."""
        self._here = threading.local()
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, str], Any] = {}

    # --- for tests ----------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """The seconds that have passed since the test began."""
        return self.now() / 1e6

    def advance(self, duration: Duration) -> None:
        """Let time pass, as if this thread waited: seconds, a timedelta, or text like `1h`."""
        self.block_until(self.now() + parse.duration(duration))

    # --- `Clock` ------------------------------------------------------------------------------------

    def now(self) -> int:
        """See `Clock.now`."""
        return self._skipped + (round((time.monotonic() - self._began) * 1e6) if self.goes_on else 0)

    async def sleep_until(self, instant: int) -> None:
        """See `Clock.sleep_until`."""
        if self._leads_loops and isinstance(asyncio_loop(), asyncio.SelectorEventLoop):
            while (left := instant - self.now()) > 0:  # noqa: ASYNC110 - it is rounded
                await anyio.sleep(left / 1e6)
            return
        if instant - self.now() > _FAR * 1e6:
            await anyio.sleep_forever()
        began = time.monotonic()
        with self._waiting_until(instant) as is_first:
            while self.now() < instant:
                for _ in range(_ROUNDS):
                    await checkpoint()
                if is_first() or time.monotonic() - began > _PATIENCE:
                    self._skip_to(instant)
                else:
                    await anyio.sleep(_LOOK)

    def block_until(self, instant: int) -> None:
        """See `Clock.block_until`."""
        began = time.monotonic()
        with self._waiting_until(instant) as is_first, self._at_rest():
            while self.now() < instant:
                if is_first() or time.monotonic() - began > 10 * _PATIENCE:
                    self._skip_to(instant)
                else:
                    time.sleep(_LOOK)

    def timers(self) -> None:
        """See `Clock.timers`: there are none."""

    def store(self, group: str, url: str) -> Any:  # noqa: ANN401 - of any kind
        """See `Clock.store`."""
        with self._lock:
            return memory_store(self._stores, group, url, lambda: self._wall + self.now())

    # --- event loops --------------------------------------------------------------------------------

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Let all of asyncio's event loops in this process have this time, and wait by jumps."""
        loops, run_once, real_time = asyncio.BaseEventLoop, asyncio.BaseEventLoop._run_once, self._began  # type: ignore[attr-defined]
        in_thread, in_executor, result = to_thread.run_sync, loops.run_in_executor, Future.result

        def virtual_time(_: object) -> float:
            return real_time + self.now() / 1e6

        def virtual_run_once(loop: Any) -> None:  # noqa: ANN401 - with attributes that have no types
            if type(loop).time is virtual_time and isinstance(loop, asyncio.SelectorEventLoop):
                if loop not in self._loops:
                    self._loops[loop] = threading.get_ident()
                    self._working.add(self._loops[loop])
                self._idle.add(loop)
                try:
                    self._wait_in(loop)
                finally:
                    self._idle.discard(loop)
                # As in `VirtualLoop`: after half a year, a nanosecond more is the same number.
                least = math.ulp(loop.time())
                loop._clock_resolution = max(loop._clock_resolution, least)  # type: ignore[attr-defined]
            run_once(loop)

        async def run_sync(function: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
            token = object()
            self._working.add(token)
            try:
                return await in_thread(self._work(function, token), *args, **options)
            finally:
                self._working.discard(token)

        def run_in_executor(loop: Any, executor: Any, function: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
            token = object()
            self._working.add(token)
            future = in_executor(loop, executor, self._work(function, token), *args)
            future.add_done_callback(lambda _: self._working.discard(token))
            return future

        def resting_result(future: Future[Any], timeout: float | None = None) -> Any:  # noqa: ANN401
            with self._at_rest() as woken:
                # The thread that sets the result counts as working, so that at any time one does.
                future.add_done_callback(lambda _: woken())
                return result(future, timeout)

        with ExitStack() as stack:
            for owner, name, instead in (
                (loops, "time", virtual_time),
                (loops, "_run_once", virtual_run_once),
                (loops, "run_in_executor", run_in_executor),
                (to_thread, "run_sync", run_sync),
                (Future, "result", resting_result),
            ):
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, instead)
            yield

    def _wait_in(self, loop: Any) -> None:  # noqa: ANN401 - as above
        """Wait until an event loop has something to do; if that is a timer, time jumps to it."""
        idle_since = time.monotonic()
        while not (loop._ready or loop._stopping):
            when = _next_timer(loop)
            instant = math.inf if when is None or when - loop.time() > _FAR else self._instant(when)
            if instant <= self.now():
                return
            # It says for what it waits before it rests: in between, others would jump too far.
            with self._waiting_until(instant) as is_first, self._at_rest():
                loop._process_events(loop._selector.select(None if instant == math.inf else 0))
                if loop._ready or instant == math.inf:
                    continue
                is_alone = not self._is_busy() and len(loop._selector.get_map()) == 1  # its own wake-ups
                patient = not is_alone and time.monotonic() - idle_since < _PATIENCE
                if is_first() and not patient:
                    self._skip_to(int(instant))
                    return
                loop._process_events(loop._selector.select(_LOOK))

    def _instant(self, when: float) -> int:
        """The first instant at which an event loop's timer is due."""
        instant = math.ceil((when - self._began) * 1e6)
        return instant if self._began + instant / 1e6 >= when else instant + 1

    # --- who waits ----------------------------------------------------------------------------------

    def _is_busy(self) -> bool:
        """Whether something is being done, or about to be done, in any thread that is known."""
        for loop, thread in list(self._loops.items()):
            if not loop.is_running():
                del self._loops[loop]
                if thread != self._home:
                    self._working.discard(thread)
        return bool(self._working) or any(loop._ready for loop in list(self._idle))

    def _skip_to(self, instant: int) -> None:
        with self._lock:
            self._skipped += max(0, instant - self.now())

    @contextmanager
    def _waiting_until(self, instant: float) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether nothing waits for an earlier instant."""
        token = object()

        def is_first() -> bool:
            with self._lock:
                return instant <= min(self._waits.values())

        with self._lock:
            self._waits[token] = instant
        try:
            yield is_first
        finally:
            with self._lock:
                del self._waits[token]

    @contextmanager
    def _at_rest(self) -> Iterator[Callable[[], None]]:
        """A context in which this thread waits. Yields a function to call, in any thread, when that ends."""
        token = getattr(self._here, "token", None) or threading.get_ident()
        waits = token in self._working

        def woken() -> None:
            if waits:
                self._working.add(token)

        self._working.discard(token)
        try:
            yield woken
        finally:
            woken()
            waits = False

    def _work(self, function: Callable[..., Any], token: object) -> Callable[..., Any]:
        """The function, to be called in a thread that is known by a token."""

        def work(*args: Any) -> Any:  # noqa: ANN401 - as the function has it
            self._here.token = token
            try:
                return function(*args)
            finally:
                self._here.token = None

        return work


@contextmanager
def virtual_clock() -> Iterator[VirtualClock]:
    """Let time pass by jumps in the whole process: an hour takes milliseconds, and comes out exactly.

    In the context, queues (blocking ones, too), tasks, ledgers and schedules keep their records in memory,
    whatever the URL of their store, also if they were made before. Its clock begins in September 2001, in
    every test alike. All waits of asyncio's event loops are virtual: sleeps, timeouts, schedules. While a
    thread works, or a socket is open, each jump waits 20 ms for news from it. Time doesn't pass for
    `time.sleep`, nor for stores that were given as objects. On uvloop and trio, it jumps for queues only.
    """
    clock = VirtualClock(leads_loops=True)
    with clock.leading(), _in_place(clock):
        yield clock


@contextmanager
def no_waiting() -> Iterator[VirtualClock]:
    """Let no job wait for its slot: every wait of a queue, and every pause before a retry, is skipped.

    Stores are in memory as in `virtual_clock`. All else goes on in real time, on any event loop and in any
    thread, with real files and sockets. Limits, `max_running`, timeouts and the order of jobs hold as usual,
    by the queue's own clock, which jumps.
    """
    clock = VirtualClock(leads_loops=False)
    with _in_place(clock):
        yield clock


@contextmanager
def _in_place(clock: VirtualClock) -> Iterator[None]:
    """Use a clock in the whole process; stores that were opened with another one are opened again."""
    before = CLOCK.of_process
    _begin_anew()
    CLOCK.of_process = clock
    BACKGROUND.call(checkpoint)  # nobody seems to be at work while an event loop starts
    try:
        yield
    finally:
        _begin_anew()
        CLOCK.of_process = before


def _begin_anew() -> None:
    BACKGROUND.end()
    for shard in list(SHARDS):
        shard.loop = REPLACED


def _next_timer(loop: Any) -> float | None:  # noqa: ANN401 - as above
    """When an event loop's next timer is due; None: it has none."""
    scheduled = loop._scheduled
    while scheduled and scheduled[0].cancelled():
        heapq.heappop(scheduled)._scheduled = False
        loop._timer_cancelled_count = max(0, loop._timer_cancelled_count - 1)
    when: float | None = scheduled[0].when() if scheduled else None
    return when
