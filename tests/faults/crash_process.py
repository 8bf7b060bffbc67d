"""Worker processes that end by SIGKILL after a number of tasks, as if the system killed them for a leak.

    python tests/faults/crash_process.py URL QUEUE LEDGER EACH EXPIRY ATTEMPTS

A process begins when the previous one is dead, until one finds the queue empty; then the number of killed
processes is printed. They are forked, so that modules are imported only once.

Each appends a line to the file LEDGER when it begins a task, with its attempt, and one when the task has
ended. It kills itself after EACH tasks (0: never), and at once at a task whose value is -1. EXPIRY and
ATTEMPTS may be `-`, for the defaults.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio

from intervalq.tasks import Claim, Tasks

POISON = -1
_LIVES = 200
"""After this many processes, the queue is believed never to become empty."""


async def main(url: str, queue: str, ledger: int, each: int, *settings: str) -> None:
    expiry, most = settings
    handle: dict[str, Any] = {} if expiry == "-" else {"expiry": float(expiry)}
    worker: dict[str, Any] = {} if most == "-" else {"max_attempts": int(most)}
    tasks = Tasks(url, **handle)
    done = 0

    @tasks.worker(queue, **worker)
    async def work(claim: Claim) -> None:
        nonlocal done
        _note(ledger, "begin", claim)
        if claim.value == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        _note(ledger, "end", claim)
        done += 1
        if done == each:
            os.kill(os.getpid(), signal.SIGKILL)

    async with tasks:
        await tasks.run(until_empty=True)


def _note(ledger: int, what: str, claim: Claim) -> None:
    os.write(ledger, b"%s %d %d %d\n" % (what.encode(), claim.value, claim.attempt, os.getpid()))


def lives(work: Callable[[], None]) -> int:
    """Run the work in one process after another until one ends by itself; returns how many were killed."""
    for kills in range(_LIVES):
        child = os.fork()
        if not child:
            work()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return kills
        if code != -signal.SIGKILL:
            raise RuntimeError(f"a worker ended with {code}")
    return _LIVES


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    store, name, path, *settings = sys.argv[1:]
    book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    print(lives(lambda: anyio.run(main, store, name, book, int(settings[0]), *settings[1:])))
