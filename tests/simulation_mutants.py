"""Changes one place of the shard or the worker at a time, and simulates until something fails; keeps a log.

    python tests/simulation_mutants.py --minutes 2.5             # goes on where the log ends
    python tests/simulation_mutants.py --survivors --rounds 60   # tries those again, for longer
    python tests/simulation_mutants.py --report                  # scores by module, and who survived

A round is one schedule of each mix. A mutant that never ends, by the processor time that it takes, is found.
Mutants that change nothing anybody could see are listed with the reason in `simulation_mutants.txt`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutations, plant

ROOT: Final = Path(__file__).parents[1]
LOG: Final = Path(__file__).with_suffix(".jsonl")
SAME: Final = Path(__file__).with_suffix(".txt")
LEAST: Final = 12
"""Seconds of processor time for a mutant, beside what its rounds take."""

SHARD: Final = (
    "_timing.estimates", "_shard.leases", "_shard.grants", "_shard.store_time", "_shard.planner",
    "_shard.dispatcher", "_shard.answers", "_shard.connection", "_shard.conversation", "_shard.returning",
    "_shard.wait_queue", "_shard.listener", "_shard.shard",
)  # fmt: skip
WORKER: Final = ("tasks._crew", "tasks._session", "tasks._worker_session", "tasks._begun", "tasks._gate")
MODULES: Final = tuple(f"intervalq.{name}" for name in (*SHARD, *WORKER))


def path_of(module: str) -> Path:
    """Where its source is."""
    return ROOT / f"{module.replace('.', '/')}.py"


def digest_of(module: str) -> str:
    """Tells versions of the source apart: mutants of another one are made anew."""
    return hashlib.blake2b(path_of(module).read_bytes(), digest_size=6).hexdigest()


def simulators(module: str) -> tuple[list[str], Callable[[str, int], Any]]:
    """The mixes that reach a module, and what runs one schedule."""
    if ".tasks." in module:
        from tasks.simulated_workers import MIXES as mixes  # noqa: N811
        from tasks.simulated_workers import simulate as work

        return list(mixes), work
    from intervalq.testing.simulation import MIXES, simulate

    return list(MIXES), simulate


def one(module: str, number: int, rounds: int) -> str | None:
    """What gave a mutant away; None: nothing did."""
    seconds = LEAST + 2 * rounds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    plant(module, number)
    try:
        mixes, simulate = simulators(module)
        for seed in range(rounds):
            for mix in mixes:
                run = simulate(mix, seed)
                if run.violations:
                    return f"{mix} {seed}: {str(run.violations[0]).strip()[:100]}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it was seen
        return f"{type(error).__name__}: {error}"[:100]
    return None


def lines(log: Path) -> list[dict[str, Any]]:
    """The log, the last word on each mutant of today's source."""
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    digests = {module: digest_of(module) for module in MODULES}
    for text in log.read_text().splitlines() if log.exists() else []:
        line = json.loads(text)
        if digests.get(line["module"]) == line["digest"]:
            kept[line["module"], line["number"]] = line
    return list(kept.values())


def same() -> set[tuple[str, str]]:
    """Mutants that change nothing: module and change."""
    listed = SAME.read_text().splitlines() if SAME.exists() else []
    parts = [line.split(" | ") for line in listed if line and not line.startswith("#")]
    return {(f"intervalq.{part[0]}", part[1]) for part in parts}


def todo(log: Path, rounds: int, *, survivors: bool, modules: list[str]) -> Iterator[tuple[str, int, str]]:
    """The mutants that nobody tried, or those that survived fewer rounds."""
    known, passed = {(line["module"], line["number"]): line for line in lines(log)}, same()
    for module in modules:
        for number, mutation in enumerate(mutations(ast.parse(path_of(module).read_text()))):
            line = known.get((module, number))
            wanted = (
                line is None
                if not survivors
                else bool(line and not line["found"] and line["rounds"] < rounds)
            )
            if wanted and (module, mutation.what) not in passed:
                yield module, number, f"{mutation.line}: {mutation.what}"


def report(log: Path) -> None:
    """Scores and survivors."""
    passed, made, found = same(), Counter[str](), Counter[str]()
    for line in lines(log):
        if line["found"] or (line["module"], line["what"].partition(": ")[2]) not in passed:
            made[line["module"]] += 1
            found[line["module"]] += bool(line["found"])
            if not line["found"]:
                sys.stdout.write(f"{line['module']}:{line['what']} ({line['rounds']} rounds)\n")
    for module, count in made.items():
        sys.stdout.write(f"{module:32} {found[module]:4} of {count:4}  {found[module] / count:.1%}\n")
    if made:
        sys.stdout.write(
            f"{'all':32} {found.total():4} of {made.total():4}  {found.total() / made.total():.1%}\n"
        )


def tried(module: str, number: int, rounds: int) -> str:
    """The same as `one`, in a process of its own."""
    command = [sys.executable, __file__, "--one", module, str(number), "--rounds", str(rounds)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode not in {0, 1}:
        return "never ends" if done.returncode < 0 else f"fails: {done.stderr[-100:]}"
    return done.stdout.strip()


def main() -> int:
    """Try mutants until the time is over."""
    parser = argparse.ArgumentParser(description="Mutants of the shard and the worker against simulation.")
    parser.add_argument("--minutes", type=float, default=2.5, help="how long, at most")
    parser.add_argument("--rounds", type=int, default=12, help="schedules of each mix, at most")
    parser.add_argument("--survivors", action="store_true", help="try those again that survived fewer rounds")
    parser.add_argument("--modules", nargs="*", default=MODULES, help="without: all")
    parser.add_argument("--report", action="store_true", help="only show scores and survivors")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        sys.stdout.write(one(wanted.one[0], int(wanted.one[1]), wanted.rounds) or "")
        return 0
    over = time.monotonic() + wanted.minutes * 60
    some = todo(wanted.log, wanted.rounds, survivors=wanted.survivors, modules=wanted.modules)
    while not wanted.report and time.monotonic() < over and (mutant := next(some, None)):
        module, number, what = mutant
        line = {
            "module": module, "digest": digest_of(module), "number": number, "what": what,
            "found": tried(module, number, wanted.rounds), "rounds": wanted.rounds,
        }  # fmt: skip
        with wanted.log.open("a") as log:
            log.write(json.dumps(line) + "\n")
    report(wanted.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
