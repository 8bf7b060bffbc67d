"""One worker process: callers of one adapter, from the common beginning to the common end; see `_fleet`.

Figures are read by a signal's handler, which comes in time whatever the event loop does: a thread may wait for
the interpreter for seconds while the event loop turns fast.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from peers.base import Adapter, Recorder, Tally, Work


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _sleep_until(instant: int) -> None:
    while (left := instant - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def _say(what: str) -> None:
    os.write(1, what.encode() + b"\n")


def _adapter(place: str, work: Work) -> Adapter:
    module, name = place.split(":")
    kind: type[Adapter] = getattr(importlib.import_module(f"peers.{module}"), name)
    return kind(work)


async def _ready() -> int:
    """Report that everything is connected, and wait for the common beginning."""
    _say("ready")
    begin = int(await asyncio.to_thread(sys.stdin.readline))

    def watch() -> None:
        sys.stdin.read()  # until the process that started this one ends
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return begin


class _Watch(threading.Thread):
    """Reads the figures at both ends of the window, prints them, and ends the process."""

    def __init__(self, begin: int, work: Work, adapter: Adapter, recorder: Recorder, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._from = begin + int(work.settle * 1e9)
        self._to = self._from + int(work.seconds * 1e9)
        self._loop = asyncio.get_running_loop()
        self._parts = adapter, recorder, tally
        self._read: list[tuple[int, int, float]] = []
        signal.signal(signal.SIGALRM, self._look)
        self._alarm(self._from)

    def _alarm(self, instant: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, (instant - time.monotonic_ns()) / 1e9))

    def _look(self, *_: object) -> None:
        """Handle the beginning or the end of the window."""
        _, _, tally = self._parts
        self._read.append((time.monotonic_ns(), tally.jobs, _cpu()))
        if len(self._read) == 1:
            self._alarm(self._to)
        else:
            tally.going = False

    def run(self) -> None:
        adapter, recorder, _ = self._parts
        while len(self._read) < 2:
            time.sleep(0.02)
        before, after = self._read
        starts = list(recorder.starts)
        time.sleep(0.05)  # what the figures ask of the store is not part of the run
        seen = asyncio.run_coroutine_threadsafe(adapter.figures(), self._loop)
        try:
            figures = seen.result(timeout=5)
        except Exception as error:  # noqa: BLE001 - a contender that hangs has still done what it did
            figures = {"trouble": repr(error)}
        seconds = (after[0] - before[0]) / 1e9
        result: dict[str, Any] = {
            "starts": starts, "jobs": after[1] - before[1], "seconds": seconds, "cpu": after[2] - before[2],
            **figures,
        }  # fmt: skip
        _finish(result)


def _finish(result: dict[str, Any]) -> None:
    text = json.dumps(result).encode() + b"\n"
    while text:
        text = text[os.write(1, text) :]
    os._exit(0)  # whatever a contender still waits for


async def _pace(adapter: Adapter, work: Work, recorder: Recorder, begin: int) -> None:
    async def caller() -> None:
        while True:
            await adapter.call(recorder.job(time.monotonic_ns()))

    if not work.arrivals:
        await asyncio.gather(*(caller() for _ in range(work.callers)))
    waiting: set[asyncio.Task[None]] = set()
    for after in work.arrivals:
        await asyncio.sleep(max(0.0, begin / 1e9 + after - time.monotonic()))  # noqa: TID251
        task = asyncio.create_task(adapter.call(recorder.job(time.monotonic_ns())))
        waiting.add(task)
        task.add_done_callback(_done(waiting))


def _done(waiting: set[asyncio.Task[None]]) -> Any:  # noqa: ANN401 - a callback
    def done(task: asyncio.Task[None]) -> None:
        waiting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)

    return done


async def _latency(adapter: Adapter, work: Work) -> None:
    """One call at a time on an idle queue, each right after a bare step of the same store."""
    bare = _adapter(work.floor, Work(**{**vars(work), "url": work.floor_url, "callers": 1}))
    await bare.open()
    await _ready()
    waits: list[float] = []
    trips: list[float] = []
    steps: list[float] = []
    at = 0.0

    def job(*_: object) -> None:
        nonlocal at
        at = time.perf_counter()

    for _ in range(work.calls + 10):
        await asyncio.sleep(work.interval * 1.5)  # noqa: TID251
        begin = time.perf_counter()
        if await adapter.step():
            steps.append((time.perf_counter() - begin) * 1e6)
            await asyncio.sleep(work.interval * 1.5)  # noqa: TID251 - each comes after a pause
        begin = time.perf_counter()
        await bare.call(job)
        asked = time.perf_counter()
        await adapter.call(job)
        trips.append((asked - begin) * 1e6)
        waits.append((at - asked) * 1e6)
    _finish({"waits": waits[10:], "trips": trips[10:], "steps": steps[10:]})


async def _watched(adapter: Adapter, work: Work) -> None:
    """Calls that are measured one by one."""
    calls = importlib.import_module("peers.watched")
    begin = await _ready()
    await asyncio.sleep(max(0.0, (begin - time.monotonic_ns()) / 1e9))  # noqa: TID251
    _finish(await getattr(calls, work.task)(adapter, work))


async def main() -> None:
    """Do the work that the one argument describes."""
    work = Work(**json.loads(sys.argv[1]))
    adapter = _adapter(work.place, work)
    recorder, tally = Recorder(), Tally()
    await adapter.open()
    if work.task in ("lone", "keyed"):
        await _watched(adapter, work)
        return
    if work.task == "latency":
        await _latency(adapter, work)
        return
    begin = await _ready()
    await asyncio.sleep(max(0.0, (begin - time.monotonic_ns()) / 1e9))  # noqa: TID251
    _Watch(begin, work, adapter, recorder, tally).start()
    if work.task == "pace":
        await _pace(adapter, work, recorder, begin)
    else:
        floods = 1 if adapter.in_batches else work.callers
        await asyncio.gather(*(adapter.flood(tally) for _ in range(floods)))
    await asyncio.sleep(60)  # noqa: TID251 - the thread writes, and ends the process


if __name__ == "__main__":
    asyncio.run(main())
