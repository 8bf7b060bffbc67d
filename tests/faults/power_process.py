"""A client of a store whose power will be cut: it prints a line for each answer that it gets.

    python tests/faults/power_process.py NAME PLANT tasks=URL slots=URL rows=URL

PLANT is a bug for stores that sync files themselves, see `plant`, or `-`. Lines are short, and written at
once, so that several processes can share a pipe.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import stat
import sys
from itertools import count
from typing import Any

import anyio

from intervalq import IntervalQueue
from intervalq.ledger.rules import Claim, Ended, Record, Start
from intervalq.ledger.store import open_ledger_store
from intervalq.store import open_store
from intervalq.tasks import Tasks

QUEUE = "cars"
LEDGER = "calls"
FAST = 0.002
SLOW = 3600.0


def say(*what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


# --- tasks ------------------------------------------------------------------------------------------


async def tasks(url: str, who: str) -> None:
    """Insert tasks, and end about as many as are waiting."""
    numbers = count()
    async with Tasks(url) as store, anyio.create_task_group() as group:

        async def insert() -> None:
            while True:
                value = f"{who}-{next(numbers)}"
                await store.insert(QUEUE, value)
                say("inserted", value)

        async def end() -> None:
            while True:
                claim = await store.claim(QUEUE)
                say("ending", claim.value)
                await claim.ack()
                say("ended", claim.value)

        for _ in range(4):
            group.start_soon(insert)
        for _ in range(2):
            group.start_soon(end)


# --- slots ------------------------------------------------------------------------------------------


async def slots(url: str, who: str) -> None:
    """Start jobs in one queue that all share, and one in each of many queues; inspect the first."""
    numbers = count()
    store = open_store(url)
    async with IntervalQueue(QUEUE, interval=FAST, store=store) as queue, anyio.create_task_group() as group:

        async def share() -> None:
            while True:
                async with queue.slot() as slot:
                    say("began", QUEUE, slot.ticket, slot.due)
                state = await queue.inspect()
                say("saw", QUEUE, state.ticket, state.current)

        async def start() -> None:
            while True:
                name = f"{who}-{next(numbers)}"
                slow = IntervalQueue(name, interval=SLOW, store=store)  # closing it would close the store
                async with slow.slot() as slot:
                    say("began", name, slot.ticket, slot.due)

        for work in (share, share, start, start):
            group.start_soon(work)


# --- rows -------------------------------------------------------------------------------------------


async def rows(url: str, who: str) -> None:
    """Claim rows of a ledger, start them, and record how they ended."""
    numbers = count()
    store = open_ledger_store(url)

    async def call(session: str) -> None:
        while True:
            keys = tuple(f"{who}-{next(numbers)}" for _ in range(2))
            await store.apply(LEDGER, Claim(session, _LONG, keys))
            await store.apply(LEDGER, Start(session, _LONG, keys))
            for key in keys:
                say("started", key)
            await store.apply(
                LEDGER, Record(session, _LONG, tuple(Ended(key, json.dumps(key)) for key in keys))
            )
            for key in keys:
                say("recorded", key)

    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(call, f"{who}-{number}")


_LONG = 3_600_000_000
"""Microseconds: no session expires."""


def plant(bug: str) -> None:
    """Skip the sync of the `contents` of replaced files, of their `folder`, or of the `log`."""
    from intervalq_stores.sqlite._file import SQLiteFile

    sync, rows = os.fsync, SQLiteFile._rows

    def sync_some(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode) == (bug == "contents"):
            sync(file)

    def leave_the_log(self: SQLiteFile, statement: str, *values: object) -> list[Any]:
        return rows(self, statement.replace("synchronous = FULL", "synchronous = NORMAL"), *values)

    if bug in ("contents", "folder"):
        os.fsync = sync_some  # type: ignore[assignment]
    elif bug == "log":
        SQLiteFile._rows = leave_the_log  # type: ignore[method-assign]


async def main(who: str, urls: list[str]) -> None:
    async with anyio.create_task_group() as group:
        for part in urls:
            kind, _, url = part.partition("=")
            group.start_soon({"tasks": tasks, "slots": slots, "rows": rows}[kind], url, who)


_PR_SET_PDEATHSIG = 1


if __name__ == "__main__":
    # It ends with the process that watches it: later it would create a new database in place of the disk.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.disable(logging.CRITICAL)
    name, bug, *parts = sys.argv[1:]
    plant(bug)
    anyio.run(main, name, parts)
