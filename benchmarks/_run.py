"""One run of one contender: its processes, from their start to their results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import _node
from _fleet import Fleet, WorkerError
from _judge import Window
from _store import Meter
from peers import Peer
from peers.base import Work

HERE = Path(__file__).parent

_LEAD = 0.1
"""Seconds from announcing the start of a run to that start."""


Around = Callable[[Sequence[int]], AbstractContextManager[object]]
"""What is done to the processes from the time they are ready until they have given results. Takes their ids."""


def undisturbed(_: Sequence[int]) -> AbstractContextManager[object]:
    """The condition that does nothing."""
    return nullcontext()


class MissingError(Exception):
    """A contender can't run here; the message says why."""


@dataclass
class Found:
    """The results of all processes, and the requests that the store got."""

    results: list[dict[str, Any]]
    window: Window
    store: dict[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """Prints progress on standard error."""

    total: int
    done: int = 0

    def step(self, what: str) -> None:
        """Report that one more run begins."""
        self.done += 1
        sys.stderr.write(f"[{self.done}/{self.total}] {what}\n")
        sys.stderr.flush()


def run(
    peer: Peer, works: Sequence[Work], *, meter_url: str | None = None, around: Around = undisturbed
) -> Found:
    """Start the processes, let them begin together, and read their results; none is left running."""
    environment: dict[str, str] = {}
    if peer.node:
        modules = _node.modules()
        if isinstance(modules, str):
            raise MissingError(modules)
        command = ["node", str(_node.HERE / "worker.js")]
        environment["NODE_PATH"] = str(modules)
    else:
        command = [sys.executable, "-m", "peers.worker"]
    meter = Meter(meter_url) if meter_url else None
    try:
        given = [asdict(work) for work in works]
        with (
            Fleet(command, given, folder=HERE, environment=environment) as fleet,
            around(fleet.pids),
        ):
            begin = time.monotonic_ns() + int(_LEAD * 1e9)
            window_begin = begin + int(works[0].settle * 1e9)
            window = Window(window_begin, window_begin + int(works[0].seconds * 1e9))
            fleet.begin(begin)
            if meter is None:
                return Found(fleet.results(window.end), window)
            _sleep_until(window.begin)
            before = meter.read()
            _sleep_until(window.end)
            after = meter.read()
            results = fleet.results(window.end)
            return Found(results, window, {"meter": meter, "before": before, "after": after})
    finally:
        if meter is not None:
            meter.close()


def _sleep_until(instant: int) -> None:
    while (left := instant - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def failed(error: Exception) -> str:
    """Why a row is missing, in one line."""
    text = str(error).strip().splitlines()
    return text[-1][:160] if text and isinstance(error, WorkerError) else f"{error}"[:160]
