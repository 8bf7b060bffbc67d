"""Changes one place of the shard, the rules or the worker at a time, checks who notices, and keeps a log.

    python tests/simulation_mutants.py --minutes 60              # continues where the log ends
    python tests/simulation_mutants.py --survivors --rounds 100  # tries the survivors again, for longer
    python tests/simulation_mutants.py --report                  # scores by module, and the survivors

First all schedules are run unchanged, with probes: those for the figures, sharp ones, which once found a
bug, and some rounds of each mix. A mutant then meets those that execute its line, in that order, until one
breaks a promise. It also counts as found if it makes jobs or tasks costlier or later in mixes with few
faults, or if clearly more slots are granted late or given up in all mixes together. Survivors meet schedules
of keys under one rate, those of the rules the model, and with `--tests` the tests of their module that run in
virtual time. The log says who found it, and what a survivor changes. A mutant that never ends, by its
processor time, counts as found. Those that change nothing visible, or only a cost, are listed with the reason
in `simulation_mutants.txt`.

The order in which mutants are tried depends only on their places.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from mutant_judges import (
    EFFECT,
    ROOT,
    TESTS,
    TYPICAL,
    digest_of,
    digest_of_code,
    judges_of,
    keyed_figures,
    kind_of,
    one,
    one_by_tests,
    path_of,
    schedules_of,
    simulator,
)
from mutant_processes import Tell, forked
from mutant_reach import Reach, Schedule, probe_of, reach
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
    "tasks._worker.intake",
    "tasks._worker.one_by_one",
    "tasks._worker.chunks",
    "tasks._worker.suspects",
    "tasks._session.session",
    "tasks._session.begun",
    "tasks._session.alone",
)
Verdict: TypeAlias = dict[str, str]
"""`by` and `found`, both empty if nobody noticed the mutant; `effect` then says what it changes."""
MODULES: Final = tuple(f"intervalq.{name}" for name in (*RULES, *SHARD, *WORKER))


@dataclass(frozen=True, slots=True)
class Place:
    """A mutant's function, with the digest of that, its number among the function's mutants, and its line.

    They stay the same wherever the function moves, and whatever else changes in the module.
    """

    function: str
    digest: str
    number: int
    source: str
    what: str


@cache
def places(module: str) -> tuple[Place, ...]:
    """Where the mutants of a module are; the number of a mutant is the index in this."""
    return places_in(path_of(module).read_text())


def places_in(source: str) -> tuple[Place, ...]:
    """The same for any source."""
    tree, text, counted = ast.parse(source), source.splitlines(), Counter[ast.AST]()
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    digests: dict[ast.AST, str] = {}
    found = []
    for each in mutations(tree):
        around = [one for one in functions if one.lineno <= each.line <= (one.end_lineno or 0)]
        function = max(around, key=lambda one: one.lineno)
        number, counted[function] = counted[function], counted[function] + 1
        if function not in digests:
            digests[function] = digest_of_code(function)
        found.append(Place(function.name, digests[function], number, text[each.line - 1].strip(), each.what))
    return tuple(found)


def lines(log: Path) -> list[dict[str, Any]]:
    """The log: the last entry on each mutant of the present source, with its present number in the module."""
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    numbers = {
        (module, each.function, each.digest, each.number): number
        for module in MODULES
        for number, each in enumerate(places(module))
    }
    for text in log.read_text().splitlines() if log.exists() else []:
        line = json.loads(text)
        number = numbers.get((line["module"], line["function"], line["digest"], line["number"]))
        if number is not None:
            key = line["module"], number
            kept[key] = {"by": "simulation" if line["found"] else ""} | line
            kept[key] |= {"number": number, "what": ": ".join(made_of(line["module"])[number])}
    return list(kept.values())


@cache
def same() -> dict[tuple[str, ...], str]:
    """Mutants that break no promise: module, function, line of the source and change, with the reason."""
    listed = SAME.read_text().splitlines() if SAME.exists() else []
    split = [line.split(" | ", 2) for line in listed if line and not line.startswith("#")]
    parts = [(module, function, *rest.rsplit(" | ", 2)) for module, function, rest in split]
    return {(f"intervalq.{module}", *place): reason for module, *place, reason in parts}


@cache
def made_of(module: str) -> list[tuple[str, str]]:
    """All mutants of a module, with their places; the number is the index in the list."""
    return [(f"{each.line}", each.what) for each in mutations(ast.parse(path_of(module).read_text()))]


def is_same(module: str, number: int) -> bool:
    """Whether a mutant is listed as one that breaks no promise."""
    place = places(module)[number]
    return (module, place.function, place.source, place.what) in same()


def todo(log: Path, most: int, *, survivors: bool, modules: list[str]) -> Iterator[tuple[str, int, str]]:
    """The untried mutants; or those that passed simulation and model, with fewer rounds or in other versions.

    Their order is independent of their places, so that those tried so far are a fair sample: of all modules
    together, or, if only some modules are listed, of each of them, which then take turns.
    """
    known = {(line["module"], line["number"]): line for line in lines(log)}
    judges = {module: judges_of(module) for module in modules}
    made = [(module, number) for module in modules for number in range(len(made_of(module)))]
    made.sort(key=_shuffled)
    left = []
    for module, number in made:
        line = known.get((module, number))
        again = line is not None and line["by"] in {"", "tests"}
        if again and line is not None:
            again = line["rounds"] < most or line.get("judges") != judges[module]
        if (again if survivors else line is None) and not is_same(module, number):
            left.append((module, number))
    if len(modules) < len(MODULES):
        turns: dict[str, Iterator[int]] = defaultdict(count)
        left.sort(key=lambda each: next(turns[each[0]]))
    for module, number in left:
        yield module, number, ": ".join(made_of(module)[number])


def _shuffled(made: tuple[str, int]) -> bytes:
    return hashlib.blake2b(f"{made[0]} {made[1]}".encode()).digest()


def report(log: Path) -> None:
    """Print scores and survivors."""
    tried_of, found, simulated = Counter[str](), Counter[str](), Counter[str]()
    for line in lines(log):
        module = line["module"]
        if line["by"] in {"", "tests"} and is_same(module, line["number"]):
            continue  # a test may notice what breaks no promise
        tried_of[module] += 1
        found[module] += bool(line["found"])
        simulated[module] += line["by"] in {"simulation", "keys", "model"}
        if not line["found"]:
            effect = f"; {line['effect']}" if line.get("effect") else ""
            sys.stdout.write(f"{module}:{line['what']} ({line.get('reach', '?')} schedules{effect})\n")
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


def begun(
    modules: Sequence[str], rounds: int, processes: int, mixes: Sequence[str], kept: Path | None
) -> dict[str, Reach]:
    """The results of the unchanged code, and the lines that it executes, for shards and for workers.

    Without `mixes`, all of them are run. With `kept`, this file has the results for the next call.
    """
    sources = [*(ROOT / "intervalq").rglob("*.py"), *(TESTS / "simulation").rglob("*.py")]
    code = digest_of(*sorted([*sources, *(TESTS / "tasks").glob("*.py")]))
    key = repr((code, sorted(modules), rounds, sorted(mixes)))
    if kept is not None and kept.exists():
        of, given = pickle.loads(kept.read_bytes())
        if of == key:
            return dict(given)
    given = _begun(modules, rounds, processes, mixes)
    if kept is not None:
        kept.write_bytes(pickle.dumps((key, given)))
    return given


def _begun(modules: Sequence[str], rounds: int, processes: int, mixes: Sequence[str]) -> dict[str, Reach]:
    given = {}
    for kind in TYPICAL:
        own = [module for module in modules if kind_of(module) == kind]
        if own:
            listed = [(kind, lambda tell, kind=kind: tell(schedules_of(kind, rounds)))]
            ((_, (schedules,), _),) = forked(listed, 1)
            schedules = [each for each in schedules if not mixes or each[0] in mixes]
            given[kind] = reach(schedules, own, partial(simulator, kind), processes)
    if TYPICAL[0] in given:
        ((_, (figures,), _),) = forked([("", lambda tell: tell(keyed_figures()))], 1)
        given[TYPICAL[0]].keyed = figures
    return given


@dataclass(frozen=True, slots=True)
class Try:
    """A mutant, and what it must meet."""

    module: str
    number: int
    what: str
    schedules: tuple[Schedule, ...]
    reach: Reach

    def judged(self, tell: Tell) -> None:
        """Judge by simulation and model."""
        one(self.module, self.number, self.schedules, self.reach, tell)

    def tested(self, tell: Tell) -> None:
        """Judge by the tests."""
        one_by_tests(self.module, self.number, tell)


def meetings(mutants: Iterable[tuple[str, int, str]], reaches: dict[str, Reach], most: int) -> Iterator[Try]:
    """The schedules that each mutant must meet, up to a limit."""
    trees = {module: ast.parse(path_of(module).read_text()) for module in MODULES}
    for module, number, what in mutants:
        own = reaches[kind_of(module)]
        line = probe_of(trees[module], int(made_of(module)[number][0]))
        yield Try(module, number, what, tuple(own.of(module, line)[:most]), own)


def tried(tries: Iterator[Try], processes: int, *, tests: bool) -> Iterator[tuple[Try, Verdict]]:
    """What became of each mutant."""
    for key, told, code in forked(((each, each.judged) for each in tries), processes):
        verdict = _verdict(told, code)
        yield key, verdict
        if tests and not verdict["found"]:
            for _, more, ended in forked([(key, key.tested)], 1):
                yield key, verdict | _verdict(more, ended)


def _verdict(told: list[tuple[str, str | None]], code: int) -> Verdict:
    by, found = told[-1] if told else ("simulation", None)
    if by == EFFECT:
        return {"by": "", "found": "", "effect": found or ""}
    if code and not found:
        found = "never ends" if code < 0 else f"ends its process: {code}"
    return {"by": by, "found": found} if found else {"by": "", "found": ""}


def main() -> int:
    """Try mutants until the time is over."""
    parser = argparse.ArgumentParser(
        description="Mutants of the shard, the rules and the worker against simulation, model and tests."
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long, at most")
    parser.add_argument("--rounds", type=int, default=20, help="schedules of each mix to choose from")
    parser.add_argument("--most", type=int, default=200, help="schedules that a mutant meets, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--survivors", action="store_true", help="try those again that survived fewer, or others"
    )
    parser.add_argument("--modules", nargs="*", default=MODULES, help="without: all")
    parser.add_argument("--mixes", nargs="*", default=(), help="without: all; for what few of them execute")
    parser.add_argument("--numbers", nargs="*", type=int, help="try these alone, whatever the log says")
    parser.add_argument("--tests", action="store_true", help="those that survive meet the tests, too")
    parser.add_argument("--kept", type=Path, help="keep what the unchanged code did in this file")
    parser.add_argument("--report", action="store_true", help="only show scores and survivors")
    parser.add_argument("--log", type=Path, default=LOG)
    wanted = parser.parse_args()
    if not wanted.report:
        over = time.monotonic() + wanted.minutes * 60
        modules = list(wanted.modules)
        reaches = begun(modules, wanted.rounds, wanted.processes, wanted.mixes, wanted.kept)
        some: Iterable[tuple[str, int, str]]
        if wanted.numbers:
            some = [
                (module, number, ": ".join(made_of(module)[number]))
                for module in modules
                for number in wanted.numbers
            ]
        else:
            some = todo(wanted.log, wanted.most, survivors=wanted.survivors, modules=modules)
        some = takewhile(lambda _: time.monotonic() < over, some)
        tries = meetings(some, reaches, wanted.most)
        for each, verdict in tried(tries, wanted.processes, tests=wanted.tests):
            place = places(each.module)[each.number]
            line = {
                "module": each.module, "function": place.function, "digest": place.digest,
                "number": place.number, "what": place.what, "rounds": wanted.most,
                "reach": len(each.schedules), "judges": judges_of(each.module),
            } | verdict  # fmt: skip
            with wanted.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
    report(wanted.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
