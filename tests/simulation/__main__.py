"""`python tests/simulation`: runs schedules, shows progress, and prints a summary."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # not its own folder, whose modules would hide others

from simulation.many import Planted, Tally, in_chunks
from simulation.mixes import MIXES
from simulation.run import Run, simulate

_TAIL: Final = 40
"""How many lines of the trace are shown for a schedule that broke a promise."""

_REPORTED: Final = 5
"""How many such schedules are shown with their traces."""


def main(arguments: list[str] | None = None, planted: Planted = nullcontext) -> int:
    """Run what the command line asks for, with a planted bug if given. Returns 1 if a promise was broken."""
    wanted = _parsed(arguments)
    if wanted.trace:
        with planted():
            run = simulate(wanted.mix or "all", wanted.seed or 0, trace=True)
        _say("\n".join([*run.lines, f"trace {run.digest}", *map(str, run.violations)]))
        return int(bool(run.violations))
    mixes = [wanted.mix] if wanted.mix else list(MIXES)
    first = wanted.seed or 0
    schedules = wanted.schedules or (1000 if wanted.seed is None else 1)
    tallies = {mix: Tally(mix) for mix in mixes}
    began = time.monotonic()
    shown = 0
    try:
        with _progress(len(mixes) * schedules) as advance:
            seeds = range(first, first + schedules)
            for part in in_chunks(mixes, seeds, planted=planted, processes=wanted.processes):
                tallies[part.mix].merge(part)
                advance(part.schedules)
                for run in part.broken:
                    shown += 1
                    if shown <= _REPORTED:
                        _report(run)
    except KeyboardInterrupt:
        _say("interrupted")
    _sum_up(list(tallies.values()), time.monotonic() - began)
    return int(any(tally.broken for tally in tallies.values()))


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tests/simulation",
        description="Run queues in simulated time under faults, and check every promise.",
    )
    parser.add_argument("--mix", choices=list(MIXES), help="the mix of faults (default: every mix)")
    parser.add_argument(
        "--schedules", type=int, help="schedules per mix, one per seed (default: 1000, or 1 with --seed)"
    )
    parser.add_argument("--seed", type=int, help="the seed of the first schedule")
    parser.add_argument("--trace", action="store_true", help="print every event of one schedule")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many processes run schedules"
    )
    return parser.parse_args(arguments)


def _report(run: Run) -> None:
    _say(
        "\n".join(
            [
                f"mix {run.mix}, seed {run.seed}: {len(run.violations)} broken promises",
                *run.lines[-_TAIL:],
                *(f"broken: {violation}" for violation in run.violations),
                f"again: the same command with --mix {run.mix} --seed {run.seed} --trace",
                "",
            ]
        )
    )


def _sum_up(tallies: list[Tally], seconds: float) -> None:
    head = ["mix", "schedules", "starts", "violations", "rate", "given up", "late", "store calls a job"]
    rows = [
        [
            tally.mix, f"{tally.schedules}", f"{tally.starts}", f"{len(tally.broken)}", f"{tally.rate:.3f}",
            f"{tally.given_up}", f"{tally.late}", f"{tally.calls_a_job:.2f}",
        ]
        for tally in tallies
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        _say("  ".join(cells))
    total = sum(tally.schedules for tally in tallies)
    virtual = sum(tally.seconds for tally in tallies)
    hours, speed = virtual / 3600, total / seconds
    _say(f"{total} schedules of {hours:.1f} virtual hours in {seconds:.1f} s, {speed:.0f} a second")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error: a bar if rich is installed, else a line every five seconds."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield _lines(total)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("schedules", total=total)
        yield lambda more: bar.update(task, advance=more)


def _lines(total: int) -> Callable[[int], None]:
    done, reported = 0, time.monotonic()

    def advance(more: int) -> None:
        nonlocal done, reported
        done += more
        if time.monotonic() - reported > 5:
            reported = time.monotonic()
            sys.stderr.write(f"{done} of {total} schedules\n")

    return advance


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
