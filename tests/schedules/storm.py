"""A storm of kill -9 over processes that run the same schedules, judged by what their functions wrote.

By hand: python tests/schedules/storm.py URL PROCESSES SCHEDULES KILLS
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import anyio

from intervalq.schedules import Occurrence, Schedules

EVERY = 0.2
"""Seconds between two occurrences of each schedule."""


def process(url: str, prefix: str, count: int, log: str, bell: int) -> None:
    """Run schedules until killed. A line of the log is one write, so no kill can leave half of one.

    After each of them, a byte is written to `bell`.
    """
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    schedules = Schedules(url)

    async def note(occurrence: Occurrence) -> None:
        missed = [time.timestamp() for time in occurrence.missed]
        if occurrence.abandoned is not None:
            missed.append(occurrence.abandoned.timestamp())
        line = [occurrence.name, occurrence.scheduled.timestamp(), occurrence.fence, missed]
        os.write(written, f"{json.dumps(line)}\n".encode())
        os.write(bell, b".")

    for number in range(count):
        schedules.every(EVERY, name=f"{prefix}{number}", misfire="once", overlap="allow")(note)
    anyio.run(schedules.run)


def storm(url: str, prefix: str, log: Path, *, processes: int, schedules: int, kills: int) -> dict[str, int]:
    """Kill and restart processes, one after the other, each once the log has grown; return the verdict.

    Returns:
        How many occurrences fired, fired twice, were reported as missed or abandoned, or are lost: none of
        these. `taken` is how many were taken by a process that was killed before it began, which leaves gaps
        in the fencing numbers; the next one reports these.
    """
    chance = random.Random(prefix)
    heard, bell = os.pipe()

    def start() -> subprocess.Popen[bytes]:
        arguments = ["process", url, prefix, str(schedules), str(log), str(bell)]
        return subprocess.Popen([sys.executable, __file__, *arguments], pass_fds=[bell])

    def fires(times: int) -> None:
        while times > 0:
            assert select.select([heard], [], [], 60)[0], "nothing fires any more"
            times -= len(os.read(heard, times))

    running = [start() for _ in range(processes)]
    try:
        fires(1)
        for _ in range(kills):
            place = chance.randrange(processes)
            running[place].kill()
            running[place].wait()
            fires(schedules)
            running[place] = start()
        fires(2 * schedules)
    finally:
        for each in running:
            each.kill()
            each.wait()
        os.close(heard)
        os.close(bell)
    return verdict(log)


def verdict(log: Path) -> dict[str, int]:
    """See `storm`."""
    fired: Counter[tuple[str, float]] = Counter()
    missed: set[tuple[str, float]] = set()
    fences: dict[str, set[int]] = {}
    for line in log.read_text().splitlines():
        name, scheduled, fence, more = json.loads(line)
        fired[name, round(scheduled, 3)] += 1
        missed |= {(name, round(time, 3)) for time in more}
        assert fence not in fences.setdefault(name, set()), "a fencing number came twice"
        fences[name].add(fence)
    lost = taken = 0
    for name, numbers in fences.items():
        times = sorted(scheduled for which, scheduled in fired if which == name)
        expected = [
            round(times[0] + EVERY * number, 3) for number in range(round((times[-1] - times[0]) / EVERY))
        ]
        lost += sum((name, at) not in fired and (name, at) not in missed for at in expected)
        taken += max(numbers) - min(numbers) + 1 - len(numbers)
    doubled = sum(count - 1 for count in fired.values())
    return {
        "fired": len(fired),
        "doubled": doubled,
        "missed": len(missed - {*fired}),
        "lost": lost,
        "taken": taken,
    }


def main() -> None:
    if sys.argv[1] == "process":
        process(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
        return
    with tempfile.TemporaryDirectory() as folder:
        processes, schedules, kills = map(int, sys.argv[2:5])
        prefix, log = f"storm-{os.getpid()}-", Path(folder) / "log"
        print(storm(sys.argv[1], prefix, log, processes=processes, schedules=schedules, kills=kills))


if __name__ == "__main__":
    main()
