"""Changes one place of the shard, the rules or the worker at a time, and looks who notices; keeps a log.

    python tests/simulation_mutants.py --minutes 2.5             # goes on where the log ends
    python tests/simulation_mutants.py --survivors --rounds 60   # tries those again, for longer
    python tests/simulation_mutants.py --report                  # scores by module, and who survived

A mutant meets the simulation first; a round is one schedule of each mix. Then the model, which runs the rules
and nothing else; then the tests of its module that run in virtual time. The log says which of them found it.
It is found, too, if it makes jobs or tasks dearer or later where nothing goes wrong, or if clearly more slots
are granted late or given up in all mixes together.
A mutant that never ends, by the processor time that it takes, is found. Those that change nothing anybody
could see, or only what something costs, are listed with the reason in `simulation_mutants.txt`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

from mutant_judges import ROOT, TESTS, TYPICAL, Figures, digest_of, judges_of, measured, one, path_of
from mutations import mutations

LOG: Final = Path(__file__).with_suffix(".jsonl")
SAME: Final = Path(__file__).with_suffix(".txt")
RULES: Final = ("rules",)
SHARD: Final = (
    "_timing.estimates", "_shard.leases", "_shard.grants", "_shard.store_time", "_shard.planner",
    "_shard.dispatcher", "_shard.answers", "_shard.connection", "_shard.conversation",
    "_shard.wait_queue", "_shard.listener", "_shard.shard", "_shard.settlements", "_shard.deadlines",
    "_shard.last_start", "_shard.warnings",
)  # fmt: skip
WORKER: Final = (
    "tasks._worker.pool",
    "tasks._session.session",
    "tasks._session.begun",
    "tasks._session.alone",
)
MODULES: Final = tuple(f"intervalq.{name}" for name in (*RULES, *SHARD, *WORKER))


def lines(log: Path) -> list[dict[str, Any]]:
    """The log, the last word on each mutant of today's source."""
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    digests = {module: digest_of(path_of(module)) for module in MODULES}
    for text in log.read_text().splitlines() if log.exists() else []:
        line = json.loads(text)
        if digests.get(line["module"]) == line["digest"]:
            kept[line["module"], line["number"]] = {"by": "simulation" if line["found"] else ""} | line
    return list(kept.values())


@cache
def same() -> dict[tuple[str, ...], str]:
    """Mutants that break no promise: module, function, line of the source and change, with the reason."""
    listed = SAME.read_text().splitlines() if SAME.exists() else []
    parts = [line.split(" | ") for line in listed if line and not line.startswith("#")]
    return {(f"intervalq.{module}", *place): reason for module, *place, reason in parts}


@cache
def made_of(module: str) -> list[tuple[str, str]]:
    """All mutants of a module: where in it, and what; the number is the place in the list."""
    return [(f"{each.line}", each.what) for each in mutations(ast.parse(path_of(module).read_text()))]


def place_of(module: str, number: int) -> tuple[str, str, str]:
    """A mutant's function, line of the source and change: the same wherever these come to stand."""
    line, what = made_of(module)[number]
    source = path_of(module).read_text()
    functions = [
        (each.lineno, each.name)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.lineno <= int(line)
    ]
    return max(functions, default=(0, ""))[1], source.splitlines()[int(line) - 1].strip(), what


def is_same(module: str, number: int) -> bool:
    """Whether a mutant is listed as one that breaks no promise."""
    return (module, *place_of(module, number)) in same()


def todo(log: Path, rounds: int, *, survivors: bool, modules: list[str]) -> Iterator[tuple[str, int, str]]:
    """The mutants that nobody tried; or those that simulation and model let pass: fewer rounds, or others.

    They come in an order that has nothing to do with their places, so that those tried are a fair sample.
    """
    known = {(line["module"], line["number"]): line for line in lines(log)}
    judges = {module: judges_of(module) for module in modules}
    made = [(module, number) for module in modules for number in range(len(made_of(module)))]
    for module, number in sorted(made, key=_shuffled):
        line = known.get((module, number))
        again = line is not None and line["by"] in {"", "tests"}
        if again and line is not None:
            again = line["rounds"] < rounds or line.get("judges") != judges[module]
        if (again if survivors else line is None) and not is_same(module, number):
            yield module, number, ": ".join(made_of(module)[number])


def _shuffled(made: tuple[str, int]) -> bytes:
    return hashlib.blake2b(f"{made[0]} {made[1]}".encode()).digest()


def report(log: Path) -> None:
    """Scores and survivors."""
    tried_of, found, simulated = Counter[str](), Counter[str](), Counter[str]()
    for line in lines(log):
        module = line["module"]
        if not line["found"] and is_same(module, line["number"]):
            continue
        tried_of[module] += 1
        found[module] += bool(line["found"])
        simulated[module] += line["by"] in {"simulation", "model"}
        if not line["found"]:
            sys.stdout.write(f"{module}:{line['what']} ({line['rounds']} rounds)\n")
    head = "simulation and model", "with tests"
    sys.stdout.write(f"{'module':32} {'tried':>6} {'of':>6}  {head[0]:>22}  {head[1]:>16}\n")
    for module in (*MODULES, "all"):
        tried, by_two, by_all = (
            each.total() if module == "all" else each[module] for each in (tried_of, simulated, found)
        )
        mutants = sum(len(made_of(each)) for each in (MODULES if module == "all" else (module,)))
        if tried:
            shares = f"{by_two:14} {by_two / tried:7.1%}  {by_all:8} {by_all / tried:7.1%}"
            sys.stdout.write(f"{module:32} {tried:6} {mutants:6}  {shares}\n")


def tried(module: str, number: int, rounds: int, figures: dict[str, Figures]) -> tuple[str, str]:
    """What `one` says, from processes of its own: who found it, and what; both empty: nobody.

    Tests have another process than simulation and model: pytest wants to be there first.
    """
    command = [sys.executable, __file__, "--one", module, str(number), "--rounds", str(rounds)]
    own = figures[TYPICAL[".tasks." in module]]
    command += ["--figures", json.dumps(own)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(TESTS)))}
    for more in ([], ["--tests"]):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
        )
        if done.returncode != 0:
            begun = [name for name in done.stderr.split() if name in {"simulation", "model", "tests"}]
            by = begun[-1] if begun else "simulation"
            return by, "never ends" if done.returncode < 0 else f"fails: {done.stderr[-100:]}"
        if done.stdout:
            by, _, what = done.stdout.partition(" ")
            return by, what
    return "", ""


def main() -> int:
    """Try mutants until the time is over."""
    parser = argparse.ArgumentParser(
        description="Mutants of the shard, the rules and the worker against simulation, model and tests."
    )
    parser.add_argument("--minutes", type=float, default=2.5, help="how long, at most")
    parser.add_argument("--rounds", type=int, default=12, help="schedules of each mix, at most")
    parser.add_argument("--survivors", action="store_true", help="try those again that survived fewer rounds")
    parser.add_argument("--modules", nargs="*", default=MODULES, help="without: all")
    parser.add_argument("--report", action="store_true", help="only show scores and survivors")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--tests", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--figures", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        sys.stdout.write(
            " ".join(
                one(
                    wanted.one[0],
                    int(wanted.one[1]),
                    wanted.rounds,
                    json.loads(wanted.figures),
                    tests=wanted.tests,
                )
                or ()
            )
        )
        return 0
    over = time.monotonic() + wanted.minutes * 60
    figures = {} if wanted.report else measured(wanted.modules, wanted.rounds)
    some = todo(wanted.log, wanted.rounds, survivors=wanted.survivors, modules=list(wanted.modules))
    while not wanted.report and time.monotonic() < over and (mutant := next(some, None)):
        module, number, what = mutant
        by, found = tried(module, number, wanted.rounds, figures)
        line = {
            "module": module, "digest": digest_of(path_of(module)), "number": number, "what": what,
            "found": found, "by": by, "rounds": wanted.rounds, "judges": judges_of(module),
        }  # fmt: skip
        with wanted.log.open("a") as log:
            log.write(json.dumps(line) + "\n")
    report(wanted.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
