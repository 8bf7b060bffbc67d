"""Faults of other limiters with timers that fire early and with jobs that are woken; this one has none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from functools import partial
from itertools import pairwise
from typing import Any, TypeVarTuple

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._timing import clock, timers
from intervalq.testing import virtual, virtual_time
from intervalq.testing.virtual import VirtualLoop, virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, FarStore, gather, queue_on

Ts = TypeVarTuple("Ts")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def nothing() -> None:
    """A job that does nothing."""


# --- early wake-ups (uvloop fires timers up to 1.2 ms before their time) ------------------------------


class EarlyLoop(VirtualLoop):
    """A clock whose timers fire up to 1.2 ms early, although time advances by at least ten microseconds."""

    def __init__(self, horizon: float = 1e7) -> None:
        super().__init__(horizon)
        self._early = random.Random(1)
        self.fired_early = 0

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        early = max(self.time() + 1e-5, when - self._early.uniform(0, 0.0012))
        self.fired_early += early < when
        return super().call_at(min(when, early), callback, *args, context=context)


def too_early(started: list[tuple[int, int]], interval: int) -> list[int]:
    """By how much starts were too early; each is given as its time and its slot.

    A slot that is granted late may be used before it comes, but not before the slot before it is over.
    """
    margins = [at - min(due, before + interval) for (_, before), (at, due) in pairwise(started)]
    return [margin for margin in margins if margin < 0]


@pytest.mark.parametrize("interval", [0.01, 0.001])
def test_timers_that_fire_early_start_no_job_before_its_slot(
    interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "VirtualLoop", EarlyLoop)
    started: list[tuple[int, int]] = []

    async def scenario() -> int:
        store = FarStore()
        queues = [queue_on(FarStore(store.behind, delay=0.0001), interval=interval) for _ in range(2)]

        async def job(queue: IntervalQueue) -> None:
            async with queue.slot() as slot:
                started.append((virtual_micros(), round(slot.due * 1e6)))

        await gather(*(partial(job, queue) for _ in range(100) for queue in queues))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EarlyLoop)
        return loop.fired_early

    assert virtual_time(scenario) > 100
    assert too_early(started, round(interval * 1e6)) == []
    assert [at - due for at, due in started if at > due + interval * 1e5] == []
    assert started[-1][0] - started[0][0] < 1.02 * 199 * interval * 1e6, "nor are slots lost by it"


@pytest.mark.parametrize("timerfd", [True, False], ids=["with timerfd", "without"])
@pytest.mark.parametrize("jobs", ["async", "in threads"])
def test_no_job_starts_before_its_slot_on_uvloop(
    timerfd: bool, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvloop = pytest.importorskip("uvloop")
    if not timerfd:
        monkeypatch.setattr(timers, "timer_at", lambda _: None)
        monkeypatch.setattr(clock, "timer_at", lambda _: None)
    now = clock.SystemClock().now
    started: list[tuple[int, int]] = []

    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        store = MemoryStore(clock=now)  # so that the test reads the store's own clock, which is never set
        async with IntervalQueue("uvloop", interval="3ms", store=store) as queue:

            async def caller() -> None:
                for _ in range(10):
                    async with queue.slot() as slot:
                        started.append((now(), round(slot.due * 1e6)))

            if jobs == "async":
                await gather(*[caller] * 10)
            else:
                added = []
                for _ in range(100):
                    at: list[int] = []
                    added.append((await queue.add(lambda at=at: at.append(now())), at))
                for job, at in added:
                    await job
                    assert job.due is not None
                    started.append((at[0], round(job.due * 1e6)))

    anyio.run(main, backend="asyncio", backend_options={"loop_factory": uvloop.new_event_loop})
    assert len(started) == 100
    assert too_early(started, 3_000) == []


# --- all waiters woken at each tick (aiolimiter #73) --------------------------------------------------


class Counted:
    """Awaits something, and counts how often the awaiting task was suspended, and thus woken."""

    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self.woken = 0
        self._function = function

    def __await__(self) -> Generator[Any, Any, object]:
        inner = self._function().__await__()
        sent = None
        while True:
            try:
                waits_for = inner.send(sent)
            except StopIteration as end:
                return end.value
            sent = yield waits_for
            self.woken += 1


async def awaits(counted: Counted) -> None:
    await counted


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 16, None])
@pytest.mark.parametrize("interval", [1, 0.003])  # one slot per answer, or several
def test_a_job_that_waits_is_woken_once(backend: str, interval: float, lookahead: int | None) -> None:
    async def scenario() -> list[int]:
        store = FarStore()
        settings = {"interval": interval, "lookahead": lookahead}
        queues = [queue_on(FarStore(store.behind), **settings) for _ in range(2)]
        waiting = [Counted(partial(queue.run, nothing)) for queue in queues for _ in range(500)]
        await gather(*(partial(awaits, each) for each in waiting))
        return [each.woken for each in waiting]

    assert virtual_time(scenario, backend=backend) == [1] * 1_000
