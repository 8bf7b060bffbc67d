"""The event loop of a simulated world: virtual time, and processes that stop between any two steps."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

from anyio._backends._asyncio import CancelScope

from intervalq._timing.clock import CLOCK
from intervalq.testing.virtual import LoopClock, Stuck, VirtualLoop

OWNER: Final[ContextVar[Process]] = ContextVar("simulated_process")
"""The process that the current step belongs to; steps of the world itself have none."""


_READING: Final = 3e-6
"""The seconds that a reading of a running clock takes."""


class Process:
    """One simulated process: its steps run one after the other, or not at all while it is stopped.

    Every callback of an event loop carries the context in which it was created, which identifies its process.
    Callbacks of a stopped process are kept, in order, while time and the other processes go on, as with
    SIGSTOP. Those of a dead process are kept forever: it releases nothing and notifies nobody.
    """

    def __init__(self, name: str, clock: ProcessClock) -> None:
        self.name = name
        self.clock = clock
        self.dead = False
        self.stops = 0
        self.steps = 0
        self.traps: dict[int, Callable[[], None]] = {}
        """Actions by step number; each runs just before that step of the process."""
        self.tasks: list[SimulatedTask] = []
        self.kept: deque[asyncio.Handle] = deque()
        self.context: Context = copy_context()
        self.context.run(OWNER.set, self)
        self.context.run(CLOCK.set, clock)

    @property
    def stopped(self) -> bool:
        """Whether its steps are kept aside."""
        return self.dead or self.stops > 0

    def revive(self) -> None:
        """Let the process run again, whatever stopped it."""
        self.dead, self.stops, self.traps = False, 0, {}

    def trap(self, steps: int, action: Callable[[], None]) -> None:
        """Run an action just before the process's n-th step from now."""
        self.traps[self.steps + steps] = action

    def keeps(self, handle: asyncio.Handle) -> bool:
        """Whether a step must wait. Counts it."""
        if not self.stopped:
            self.steps += 1
            if self.traps and (action := self.traps.pop(self.steps, None)) is not None:
                action()
        if self.stopped:
            self.kept.append(handle)
            return True
        return False


class ProcessClock(LoopClock):
    """A process's own clock: it starts anywhere, runs a little fast or slow, and has slightly late timers.

    Args:
        base: its reading at the start of the run, in microseconds.
        ppm: how fast it runs, in parts per million; negative: slow.
        lateness: returns how late the next timer is, in seconds.
    """

    goes_on = False

    def __init__(self, base: int, ppm: float, lateness: Callable[[], float]) -> None:
        super().__init__()
        self._base = base
        self._rate = 1 + ppm / 1e6
        self._lateness = lateness
        self.spent = 0.0
        """The time that the process took in its present step, in seconds."""

    def now(self) -> int:
        """See `intervalq._timing.clock.Clock`."""
        return self._base + int(asyncio.get_running_loop().time() * 1e6 * self._rate)

    def timers(self) -> None:
        """See `intervalq._timing.clock.Clock`."""

    def _late(self, left: int) -> float:
        return max(0.0, left / 1e6 / self._rate) + 1e-7 + self._lateness()

    def until(self, instant: int) -> float:
        """The seconds until a timer for an instant ends."""
        return self._late(instant - ProcessClock.now(self))

    async def sleep_until(self, instant: int) -> None:
        """See `intervalq._timing.clock.Clock`."""
        loop = asyncio.get_running_loop()
        while (left := instant - self.now()) > 0:
            ended = loop.create_future()
            timer = loop.call_later(self._late(left), _end, ended)
            try:
                await ended
            finally:
                timer.cancel()


class RunningClock(ProcessClock):
    """A clock whose time passes while a process reads it, with exact timers.

    Each reading takes some microseconds of its process's time, for which the process is stopped at the end
    of its step.
    """

    goes_on = True

    def __init__(self, base: int, ppm: float, lateness: Callable[[], float]) -> None:
        super().__init__(base, ppm, lateness)
        self._timers = SimulatedTimers(self)

    def now(self) -> int:
        """See `intervalq._timing.clock.Clock`."""
        self.spent += _READING
        return super().now() + int(self.spent * 1e6)

    def timers(self) -> Any:
        """See `intervalq._timing.clock.Clock`."""
        return self._timers


class SimulatedTimers:
    """Takes the place of `intervalq._timing.timers.Timers`."""

    def __init__(self, clock: RunningClock) -> None:
        self._clock = clock
        self._set: list[asyncio.Future[None]] = []
        self.is_open = False
        """Whether it has a descriptor, which is left open until `tidy`."""

    async def wait(self, waker: asyncio.Future[None], instant: int) -> None:
        """See `Timers.wait`."""
        self.is_open = True
        self._set.append(waker)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._clock.until(instant), _end, waker)
        try:
            await waker
        finally:
            timer.cancel()
            self._set.remove(waker)

    def tidy(self) -> None:
        """See `Timers.tidy`."""
        self.is_open = any(not waker.done() for waker in self._set)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SimulatedTask(asyncio.Task[Any]):
    """A task that sorts and hashes by its number, so that sets of tasks have the same order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:  # anyio's cancel scopes call repr() on tasks; the default one is slow
        return f"<task {self._number}>"


class SimulatedScope(CancelScope):
    """A cancel scope that hashes by its number: anyio keeps scopes in sets, and cancels in their order."""

    made = itertools.count()

    def __init__(self, deadline: float = math.inf, shield: bool = False) -> None:
        super().__init__(deadline, shield)
        self._number = next(self.made)

    def __hash__(self) -> int:
        return self._number


class WorldLoop(VirtualLoop):
    """A `VirtualLoop` that runs a step only if its process isn't stopped."""

    def __init__(self, horizon: float) -> None:
        super().__init__(horizon)
        self._made = 0
        self._over = horizon
        self._timers: list[tuple[float, int, Any]] = []
        self._set = 0
        self.set_task_factory(self._task)

    def _task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Future[Any]:
        self._made += 1
        assert isinstance(coro, Coroutine)
        task = SimulatedTask(self._made, coro, loop=loop, **options)
        context: Context | None = options.get("context")
        owner = OWNER.get(None) if context is None else context.get(OWNER)
        if owner is not None:
            owner.tasks.append(task)
        return task

    def stop_process(self, process: Process, seconds: float) -> None:
        """Stop a process for a time in seconds."""
        process.stops += 1
        self.call_later(seconds, self._go_on, process, context=Context())

    def _go_on(self, process: Process) -> None:
        process.stops -= 1
        self.release(process)

    def release(self, process: Process) -> None:
        """Run the kept steps, unless the process is stopped for another reason."""
        if not process.stopped:
            ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
            ready.extendleft(reversed(process.kept))
            process.kept.clear()

    def timers(self, process: Process) -> int:
        """How many timers of a process are running."""
        return sum(
            not timer.cancelled() and timer._context.get(OWNER) is process for _, _, timer in self._timers
        )

    def call_at(  # type: ignore[override] # the base class has a more precise type for `args`
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in any loop, but faster; timers of the same instant run in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def _run_once(self) -> None:
        # As in the base class, without I/O, and with a check whether the step's process may run.
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Stuck("every task waits, and nothing will ever happen")
            self._virtual = max(self._virtual, timers[0][0])
            if self._virtual > self._over:
                raise Stuck(f"not ended after {self._over:g} virtual seconds")
        while timers and timers[0][0] <= self._virtual:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                owner = handle._context.get(OWNER)
                if owner is None or not owner.keeps(handle):
                    handle._run()
                    if owner is not None and owner.clock.spent:
                        spent, owner.clock.spent = owner.clock.spent, 0.0
                        self.stop_process(owner, spent)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the base class counts these to remove them, but runs are too short to need it."""
