"""Runs very many simulated schedules, or random runs of limits, in pieces, and keeps logs in the repository.

    python tests/simulation_campaign.py --minutes 2.5          # continues where the log ends
    python tests/simulation_campaign.py --until 1000000        # until the log has so many schedules
    python tests/simulation_campaign.py --of windows           # runs of `window_oracle` instead
    python tests/simulation_campaign.py --of backlogs          # those of `window_backlogs`, which are shorter

Each piece is one line of the log of its kind, such as `simulation_campaign.jsonl`: the date, the commit, and
for each mix the range of seeds, the number of schedules and of starts, and the seeds that broke a promise.
For backlogs, it also has the sum of the shares of the oracle, the lowest one, and how many were too low.
Seeds continue from the last line, so nothing is run twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT
from typing import Any, Final, NamedTuple

import window_backlogs
import window_oracle
from simulation import MIXES
from simulation.many import several

FIRST: Final = 10_000_000
"""The first seed of each mix: far above the seeds of the tests."""

CHUNK: Final = 25
"""How many schedules of a mix a process runs in a row."""


class Outcome(NamedTuple):
    """The results of a chunk of one mix."""

    mix: str
    schedules: int
    starts: int
    broken: list[int]
    """Seeds that broke a promise."""
    shares: tuple[float, ...] = ()
    """The part of the oracle's speed in each backlog."""


def simulated(mix: str, seeds: range) -> Outcome:
    """Run schedules of the simulation."""
    tally = several(mix, seeds)
    return Outcome(mix, tally.schedules, tally.starts, [run.seed for run in tally.broken])


def limited(mix: str, seeds: range) -> Outcome:
    """Run random shards with limits; some of the runs have fixed windows, or a full queue."""
    runs = [window_oracle.run(seed, fixed=mix == "fixed", full=mix == "full") for seed in seeds]
    return Outcome(
        mix, len(runs), sum(len(run.starts) for run in runs), [run.seed for run in runs if run.over()]
    )


def backlogs(mix: str, seeds: range) -> Outcome:
    """Run random backlogs of one record with limits; half of the runs have fixed windows."""
    runs = [window_backlogs.Backlog(seed, fixed=mix == "fixed").run() for seed in seeds]
    broken = [run.seed for run in runs if run.over()]
    return Outcome(
        mix, len(runs), sum(len(run.starts) for run in runs), broken, tuple(run.share() for run in runs)
    )


class Kind(NamedTuple):
    """What a campaign runs."""

    run: Callable[[str, range], Outcome]
    mixes: tuple[str, ...]
    log: str
    again: str
    """The command that shows one schedule."""


KINDS: Final = {
    "simulation": Kind(
        simulated,
        tuple(MIXES),
        "simulation_campaign.jsonl",
        "python tests/simulation --mix {mix} --seed {seed} --trace",
    ),
    "windows": Kind(
        limited,
        ("sliding", "fixed", "full"),
        "window_campaign.jsonl",
        "window_oracle.run({seed}, fixed={mix!r} == 'fixed', full={mix!r} == 'full')",
    ),
    "backlogs": Kind(
        backlogs,
        ("sliding", "fixed"),
        "window_backlog_campaign.jsonl",
        "window_backlogs.Backlog({seed}, fixed={mix!r} == 'fixed')",
    ),
}


def pieces(log: Path) -> list[dict[str, Any]]:
    """All lines of the log."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def next_seeds(done: list[dict[str, Any]], mixes: Iterable[str]) -> dict[str, int]:
    """The seed with which each mix continues."""
    ends = dict.fromkeys(mixes, FIRST)
    for piece in done:
        for mix, part in piece["mixes"].items():
            ends[mix] = max(ends.get(mix, FIRST), part["last"] + 1)
    return ends


def run(kind: Kind, minutes: float, until: int, log: Path, processes: int) -> dict[str, Any]:
    """Run one piece, and add it to the log, also after Ctrl-C."""
    done = pieces(log)
    seeds, total = next_seeds(done, kind.mixes), sum(piece["schedules"] for piece in done)
    over = time.monotonic() + minutes * 60
    parts: dict[str, dict[str, Any]] = {}
    ignore = partial(signal.signal, SIGINT, SIG_IGN)  # Ctrl-C is handled by the process that keeps the log
    with ProcessPoolExecutor(processes, get_context("spawn"), ignore) as pool:
        running: set[Future[Outcome]] = set()
        try:
            while total < until and time.monotonic() < over:
                mix = min(kind.mixes, key=lambda name: seeds[name])
                first = seeds[mix]
                seeds[mix] = last = first + CHUNK
                part = parts.setdefault(mix, {"first": first, "schedules": 0, "starts": 0, "violations": []})
                part["last"] = last - 1
                total += CHUNK
                running.add(pool.submit(kind.run, mix, range(first, last)))
                if len(running) > processes:
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    _count(ended, parts)
        except KeyboardInterrupt:
            sys.stdout.write("stopping: chunks that are running are finished and logged\n")
        _count(running, parts)
    piece = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "schedules": sum(part["schedules"] for part in parts.values()),
        "violations": sum(len(part["violations"]) for part in parts.values()),
        "mixes": parts,
    }
    if parts:
        with log.open("a") as lines:
            lines.write(json.dumps(piece) + "\n")
    return piece


def _count(ended: Iterable[Future[Outcome]], parts: dict[str, dict[str, Any]]) -> None:
    for future in ended:
        outcome = future.result()
        part = parts[outcome.mix]
        part["schedules"] += outcome.schedules
        part["starts"] += outcome.starts
        part["violations"] = sorted([*part["violations"], *outcome.broken])
        if outcome.shares:
            part["shares"] = round(part.get("shares", 0) + sum(outcome.shares), 6)
            part["least"] = round(min(part.get("least", 1), *outcome.shares), 6)
            too_low = sum(share < window_backlogs.LEAST for share in outcome.shares)
            part["too_low"] = part.get("too_low", 0) + too_low


def _commit() -> str:
    output = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return output.stdout.strip()


def main() -> int:
    """Run a piece; the exit code is 1 if it broke a promise."""
    parser = argparse.ArgumentParser(description="Run many simulated schedules, and log them.")
    parser.add_argument("--of", choices=KINDS, default="simulation", help="what is run")
    parser.add_argument("--minutes", type=float, default=2.5, help="end after so many minutes")
    parser.add_argument("--until", type=int, default=1_000_000, help="end when the log has so many schedules")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="run so many at once")
    parser.add_argument("--log", type=Path, help="read and continue this file instead of the kind's own")
    wanted = parser.parse_args()
    kind = KINDS[wanted.of]
    log = wanted.log or Path(__file__).with_name(kind.log)
    piece = run(kind, wanted.minutes, wanted.until, log, wanted.processes)
    total = sum(each["schedules"] for each in pieces(log))
    sys.stdout.write(
        f"{piece['schedules']} schedules, {piece['violations']} violations; {total} in the log\n"
    )
    for mix, part in piece["mixes"].items():
        for seed in part["violations"]:
            sys.stdout.write(kind.again.format(mix=mix, seed=seed) + "\n")
    return int(piece["violations"] > 0)


if __name__ == "__main__":
    sys.exit(main())
