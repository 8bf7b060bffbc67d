"""A shard process: a steady backlog of calls through one queue, each of which calls the service once.

It prints nothing and dies quietly. After `end` on its standard input, it makes no more calls, waits for the
open ones, and reports how all of them ended. It ends when its input or its parent does.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.called import Call
from faults.verdict import Report
from intervalq import IntervalQueue
from intervalq._timing import timers
from intervalq._timing.clock import CLOCK, SystemClock
from intervalq.errors import IntervalqError
from intervalq.store import Store, open_store

_PR_SET_PDEATHSIG: Final = 1
_PAUSE: Final = 0.05
"""Seconds before a failed call is repeated, as any sensible caller would."""


class Turns(selectors.DefaultSelector):
    """Counts the turns of the event loop."""

    made = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors`."""
        self.made += 1
        return super().select(timeout)


class WatchedClock(SystemClock):
    """Records the latest readings, and in which turn of the event loop each was made."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._readings: deque[tuple[int, int]] = deque(maxlen=32)

    def now(self) -> int:
        """See `Clock.now`."""
        reading = super().now()
        self._readings.append((reading, self._turns.made))
        return reading

    def check_before(self, begun_at: int) -> tuple[int, bool]:
        """The reading of the last check, which is `begun_at`; and whether it is still the same turn."""
        reading, turn = next(reading for reading in reversed(self._readings) if reading[0] == begun_at)
        return reading, turn == self._turns.made


class Caller:
    """The calls of this process."""

    def __init__(self, options: argparse.Namespace, turns: Turns) -> None:
        self.clock = WatchedClock(turns)
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.open: set[int] = set()
        self.begun = 0
        self.is_ending = self.stops_at_start = False
        self._options = options
        self._numbers = count(1)
        self._service = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._service.connect(options.service)
        CLOCK.set(self.clock)
        self.store = open_store(options.url)
        self._heard = 0
        self._listen()
        self.queue = IntervalQueue(
            options.queue, interval=options.interval, store=self.store, lookahead=options.lookahead
        )

    def _listen(self) -> None:
        """Record when the last answered question was sent."""
        inner = self.store.apply

        async def apply(*arguments: Any, **more: Any) -> Any:
            sent = self.clock.now()
            answer = await inner(*arguments, **more)
            self._heard = max(self._heard, sent)
            return answer

        self.store.apply = apply  # type: ignore[method-assign]

    async def keep_calling(self) -> None:
        """Call again as soon as a call has ended."""
        while not self.is_ending:
            number = next(self._numbers)
            self.open.add(number)
            try:
                async with self.queue.slot() as slot:
                    self._call(number, slot.ticket)
                self.ended["returned"] += 1
            except IntervalqError as error:
                self.ended[type(error).__name__] += 1
                await anyio.sleep(_PAUSE)
            except Exception as error:  # noqa: BLE001 - a queue may raise nothing else
                self.wrong.append(f"call {number} raised {error!r}")
                await anyio.sleep(_PAUSE)
            self.open.discard(number)

    def _call(self, number: int, ticket: int) -> None:
        """The job: calls the service as its first instruction."""
        shard = self.queue._shard()
        check, straight = self.clock.check_before(shard.dispatcher.last.at or 0)
        assert shard.state is not None
        call = Call(
            shard=self._options.name,
            number=number,
            generation=shard.state.generation,
            ticket=ticket,
            check=check - self._options.base,
            tolerance=shard.state.tolerance + 2 * shard.time.error(shard.state, check),
            heard=self._heard - self._options.base,
            straight=straight,
        )
        if self.stops_at_start:  # no queue can prevent this: the job was checked and hasn't begun
            self.stops_at_start = False
            os.kill(os.getpid(), signal.SIGSTOP)
        self._service.send(call.to_bytes())
        self.begun += 1

    def report(self) -> Report:
        """The report at the end."""
        given_up = self.queue._shard().given_up
        return Report(
            self._options.name,
            self.begun,
            dict(self.ended),
            tuple(self.open),
            tuple(self.wrong[:20]),
            given_up,
        )


async def live(options: argparse.Namespace, turns: Turns) -> Report:
    """Make calls until the end is requested."""
    caller = Caller(options, turns)
    async with anyio.create_task_group() as group:
        group.start_soon(_obey, caller)
        with anyio.CancelScope() as calls:
            async with anyio.create_task_group() as callers:
                for _ in range(options.callers):
                    callers.start_soon(caller.keep_calling)
                callers.start_soon(_until_late, caller, calls, options.patience)
        report = caller.report()
        await caller.queue.close(drain=False)
        group.cancel_scope.cancel()
    return report


async def _obey(caller: Caller) -> None:
    """Obey the lines on standard input."""
    heard = b""
    while True:
        await anyio.wait_readable(0)
        output = os.read(0, 4096)
        if not output:
            os._exit(1)
        *words, heard = (heard + output).split(b"\n")
        for word in words:
            what, _, seconds = word.partition(b" ")
            if what == b"end":
                caller.is_ending = True
            elif what == b"stop-at-start":
                caller.stops_at_start = True
            elif what == b"stop-in-step":
                _in_step(caller.store, lambda *_: os.kill(os.getpid(), signal.SIGSTOP), float(seconds))
            else:  # die-in-step: in the middle of anything, without a word
                _in_step(caller.store, signal.SIG_DFL, float(seconds))


async def _until_late(caller: Caller, calls: anyio.CancelScope, patience: float) -> None:
    """After the end is requested, calls have some time; those still open after it are lost."""
    while not caller.is_ending:
        await anyio.sleep(_PAUSE)
    with anyio.move_on_after(patience):
        while caller.open:
            await anyio.sleep(_PAUSE)
    calls.cancel()


def _in_step(store: Store, what: Callable[..., object] | signal.Handlers, seconds: float) -> None:
    """Call a function this many seconds after the next step at the store began."""
    inner = store.apply

    async def apply(*arguments: Any, **more: Any) -> Any:
        store.apply = inner  # type: ignore[method-assign]
        signal.signal(signal.SIGALRM, what)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return await inner(*arguments, **more)

    store.apply = apply  # type: ignore[method-assign]


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends, even while stopped (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def keep_timers() -> None:
    """Keep libfaketime from moving timers on the time since boot together with the wall clock."""
    if "faketime" in os.environ.get("LD_PRELOAD", ""):
        timers._libc = ctypes.CDLL("libc.so.6", use_errno=True)


def main() -> None:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="of this process, in the log")
    parser.add_argument("--url", required=True, help="of the store")
    parser.add_argument("--service", required=True, help="the socket to call")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--lookahead", type=int, default=16)
    parser.add_argument("--patience", type=float, default=90, help="seconds that calls under way get to end")
    parser.add_argument("--base", type=int, default=0, help="this process's time since boot is so far ahead")
    options = parser.parse_args()
    die_with_parent()
    keep_timers()
    turns = Turns()
    try:
        report = anyio.run(
            live, options, turns, backend_options={"loop_factory": lambda: asyncio.SelectorEventLoop(turns)}
        )
    except Exception:  # noqa: BLE001 - the driver must be told, whatever it is
        report = Report(options.name, 0, {}, wrong=(traceback.format_exc(),))
    print(json.dumps(asdict(report)), flush=True)


if __name__ == "__main__":
    main()
