"""Stops and continues processes in turn until its standard input closes; then all of them run on.

A process of its own, so that no process is left stopped, however the process that started this one ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Sequence


def turns(count: int, share: float) -> list[tuple[float, int, bool]]:
    """The schedule of one period: when, as a share of it, which process, and whether it continues or stops.

    Each process runs for `share` of the period; their beginnings are spread evenly over it.
    """
    found = []
    for index in range(count):
        begin = index / count
        found += [(begin, index, True), ((begin + share) % 1.0, index, False)]
    return sorted(found)


def _until(instant: float) -> bool:
    """Wait until this instant, and return whether to go on."""
    readable, _, _ = select.select([sys.stdin], [], [], max(0.0, instant - time.monotonic()))
    return not readable


def _send(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def alternate(pids: Sequence[int], share: float, period: float) -> None:
    """Stop and continue them until the standard input is closed."""
    begun = time.monotonic()
    try:
        for number in itertools.count():
            for offset, index, go in turns(len(pids), share):
                if not _until(begun + (number + offset) * period):
                    return
                _send(pids[index], signal.SIGCONT if go else signal.SIGSTOP)
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # the turns are to be on time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    alternate([int(word) for word in sys.argv[3:]], float(sys.argv[1]), float(sys.argv[2]))
