"""The times of a round trip that stores report, and what a shard makes of them."""

from __future__ import annotations

import threading
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._shard.shard import Shard
from intervalq._timing.clock import CLOCK
from intervalq.rules import Advance, Answer, Command, Inspect, Settings
from intervalq.store import open_store, stopwatch
from intervalq.testing import virtual_time
from intervalq_stores._files.worker_thread import Job, WorkerThread
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import FarStore, in_virtual_time


class Timed(FarStore):
    """A store that reports when the command left and the answer came: `off` from the middle of the call."""

    off = 0

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        clock = CLOCK.get()
        await anyio.sleep(0.01)
        at = clock.now() + self.off
        answer = await super().apply(queue, command, now)
        await anyio.sleep(0.01)
        return replace(answer, trip=(at - 5, at + 5))


@pytest.mark.parametrize(("off", "error"), [(0, 13), (9_000, 13), (10_000, 20_012), (-10_000, 20_012)])
def test_a_trip_within_its_call_narrows_what_is_known_of_the_stores_clock(off: int, error: int) -> None:
    async def scenario() -> int:
        store = Timed()
        store.off = off
        shard = Shard("q", store, Settings(1_000_000), lookahead=16)
        await shard.command(Inspect())
        error = shard.time.clock.error(shard.time.clock._at)
        assert shard.time.trips.slow() != 20_000 or abs(off) > 9_000, "the first one connected, too"
        await shard.command(Inspect())
        assert shard.time.trips.slow() == 20_000, "notices go by the whole call, and so do leads, up to 0.1 s"
        return error

    assert virtual_time(scenario) == error


async def test_records_of_idle_keyed_queues_do_not_stay() -> None:
    clock = 1_000_000_000_000_000
    store = MemoryStore(clock=lambda: clock)
    keyed = Settings(1_000, ephemeral=True)
    await store.apply("lasting", Advance(settings=Settings(1_000), nonce="g", take=1))
    most = 0
    for n in range(10_000):
        clock += 10_000_000
        await store.apply(f"q:{n}", Advance(settings=keyed, nonce="g", take=1))
        most = max(most, len(store._records.states))
    assert most <= 64
    names = await store.names()
    assert "lasting" in names
    assert 1 < len(names) < 10
    clock += 1_000_000_000
    assert await store.names() == ["lasting"]


@in_virtual_time
async def test_what_connecting_took_moves_no_slot() -> None:
    """The first command connects, and may import a driver; slots must not be taken that far ahead."""

    class Connecting(FarStore):
        async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
            if not self.calls:
                await anyio.sleep(0.4)
            return await super().apply(queue, command, now)

    queue = IntervalQueue("q", interval=0.01, store=Connecting(delay=0.001))
    starts: list[float] = []
    for _ in range(4):
        async with queue.slot():
            starts.append(anyio.current_time())
    assert max([later - earlier for earlier, later in pairwise(starts)]) < 0.03


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_file_tells_when_its_step_was_done_however_late_that_is_heard(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop stalls until the step is done, and for as long as the clock needs to advance."""
    done, finish, put, late = threading.Event(), Job.finish, WorkerThread.put, 0

    def finished(job: Job, error: BaseException | None) -> None:
        finish(job, error)
        done.set()

    def waits(thread: WorkerThread, job: Job) -> None:
        nonlocal late
        put(thread, job)
        done.wait()
        late = stopwatch()
        while stopwatch() == late:
            pass

    monkeypatch.setattr(Job, "finish", finished)
    monkeypatch.setattr(WorkerThread, "put", waits)
    async with aclosing(open_store(f"{kind}://{tmp_path}/state")) as store:
        asked = stopwatch()
        trip = (await store.apply("q", Inspect())).trip
    assert trip is not None
    assert asked <= trip[0] <= trip[1] <= late
