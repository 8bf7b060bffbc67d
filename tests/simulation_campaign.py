"""Runs very many schedules of the simulation in pieces, and keeps a log of them in the repository.

    python tests/simulation_campaign.py --minutes 2.5          # goes on where the log ends
    python tests/simulation_campaign.py --until 1000000        # until so many schedules are in the log

Each piece is one line of `simulation_campaign.jsonl`: date, commit, and of each mix the seeds, schedules,
starts and those seeds that broke a promise. Seeds go on from the last line, so nothing is run twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT
from typing import Any

from intervalq.testing.simulation import MIXES
from intervalq.testing.simulation.many import Tally, several

LOG = Path(__file__).with_suffix(".jsonl")

FIRST = 10_000_000
"""Where seeds begin: those of the tests are far below."""

CHUNK = 25
"""The number of consecutive schedules of a mix in one task of a process."""


def pieces(log: Path) -> list[dict[str, Any]]:
    """All lines of the log."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def next_seeds(done: list[dict[str, Any]]) -> dict[str, int]:
    """With which seed each mix goes on."""
    ends = dict.fromkeys(MIXES, FIRST)
    for piece in done:
        for mix, part in piece["mixes"].items():
            ends[mix] = max(ends.get(mix, FIRST), part["last"] + 1)
    return ends


def run(minutes: float, until: int, log: Path, processes: int) -> dict[str, Any]:
    """Run one piece, and add it to the log, also after Ctrl-C."""
    done = pieces(log)
    seeds, total = next_seeds(done), sum(piece["schedules"] for piece in done)
    over = time.monotonic() + minutes * 60
    parts: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(
        processes, get_context("spawn"), partial(signal.signal, SIGINT, SIG_IGN)
    ) as pool:
        running: set[Future[Tally]] = set()
        try:
            while total < until and time.monotonic() < over:
                mix = min(MIXES, key=lambda name: seeds[name])
                first = seeds[mix]
                seeds[mix] = last = first + CHUNK
                part = parts.setdefault(mix, {"first": first, "schedules": 0, "starts": 0, "violations": []})
                part["last"] = last - 1
                total += CHUNK
                running.add(pool.submit(several, mix, range(first, last)))
                if len(running) > processes:
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    _count(ended, parts)
        except KeyboardInterrupt:
            sys.stdout.write("stopped: what runs is waited for, and logged\n")
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


def _count(ended: Iterable[Future[Tally]], parts: dict[str, dict[str, Any]]) -> None:
    for future in ended:
        tally = future.result()
        part = parts[tally.mix]
        part["schedules"] += tally.schedules
        part["starts"] += tally.starts
        part["violations"] = sorted(part["violations"] + [run.seed for run in tally.broken])


def _commit() -> str:
    output = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return output.stdout.strip()


def main() -> int:
    """Run a piece; 1: a promise was broken in it."""
    parser = argparse.ArgumentParser(description="Run many simulated schedules, and log them.")
    parser.add_argument("--minutes", type=float, default=2.5, help="how long, at most")
    parser.add_argument("--until", type=int, default=1_000_000, help="end with so many schedules in the log")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many work at once")
    parser.add_argument("--log", type=Path, default=LOG, help="where pieces are read and added")
    wanted = parser.parse_args()
    piece = run(wanted.minutes, wanted.until, wanted.log, wanted.processes)
    total = sum(each["schedules"] for each in pieces(wanted.log))
    sys.stdout.write(
        f"{piece['schedules']} schedules, {piece['violations']} violations; {total} in the log\n"
    )
    for mix, part in piece["mixes"].items():
        for seed in part["violations"]:
            sys.stdout.write(f"python -m intervalq.testing.simulation --mix {mix} --seed {seed} --trace\n")
    return int(piece["violations"] > 0)


if __name__ == "__main__":
    sys.exit(main())
