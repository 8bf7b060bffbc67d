"""The processes of a storm over schedules."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import anyio

from intervalq.errors import StoreUnavailable
from intervalq.schedules import Occurrence, Schedules
from intervalq.tasks import Tasks


def durable(url: str) -> None:
    """Run a worker of another queue, and with it the durable schedules, until killed."""
    tasks = Tasks(url)
    tasks.worker("idle")(print)
    while True:
        with suppress(StoreUnavailable):  # as its supervisor would
            anyio.run(tasks.run)


def functions(url: str, count: int, every: float, overlap: str, log: str, bell: int) -> None:
    """Run schedules until killed. A line of the log is one write, so no kill can leave half of one.

    After each of them, a byte is written to `bell`.
    """
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    schedules = Schedules(url)

    async def note(occurrence: Occurrence) -> None:
        missed = [
            round(time.timestamp() * 1e3) for time in (*occurrence.missed, occurrence.abandoned) if time
        ]
        line = [occurrence.name, round(occurrence.scheduled.timestamp() * 1e3), occurrence.fence, missed]
        os.write(written, f"{json.dumps(line)}\n".encode())
        os.write(bell, b".")

    for number in range(count):
        schedules.every(every, name=f"s{number}", misfire="once", overlap=overlap)(note)  # type: ignore[arg-type] # text
    anyio.run(schedules.run)


if __name__ == "__main__":
    if sys.argv[1] == "durable":
        durable(sys.argv[2])
    else:
        url, count, every, overlap, log, bell = sys.argv[2:]
        functions(url, int(count), float(every), overlap, log, int(bell))
