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
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutations, plant

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = Path(__file__).parent
LOG: Final = Path(__file__).with_suffix(".jsonl")
SAME: Final = Path(__file__).with_suffix(".txt")
LEAST: Final = 12
"""Seconds of processor time for a mutant, beside what its rounds take."""
MODEL: Final = 240
"""The same for all scopes of the model."""
PATIENCE: Final = 60
"""Seconds for one test."""

CALM: Final = ("calm", "callers", "swift", "threads", "crowd", "withdrawn", "backlog")
CALM_WORKERS: Final = ("calm", "stops", "hands")
"""Mixes in which little goes wrong, so that it is the code that makes jobs dear or late."""
ALL: Final = "all mixes"
WORSE: Final = 1.05
"""A figure that grows by more than that is noticed: without a change, schedules and figures are the same."""
WORSE_OF_ALL: Final = 1.15
"""The same for those of all mixes: where much goes wrong, they differ more by chance."""
HALF: Final = 0.5
"""Where fewer slots are used, jobs wait for round trips rather than for slots: the rate says little."""
Figures: TypeAlias = dict[str, dict[str, float]]
"""By mix, and by name; less is better."""

RULES: Final = ("rules",)
SHARD: Final = (
    "_timing.estimates", "_shard.leases", "_shard.grants", "_shard.store_time", "_shard.planner",
    "_shard.dispatcher", "_shard.answers", "_shard.connection", "_shard.conversation", "_shard.returning",
    "_shard.wait_queue", "_shard.listener", "_shard.shard",
)  # fmt: skip
WORKER: Final = (
    "tasks._worker.pool",
    "tasks._session.session",
    "tasks._session.begun",
    "tasks._session.alone",
)
MODULES: Final = tuple(f"intervalq.{name}" for name in (*RULES, *SHARD, *WORKER))

TYPICAL: Final = ("intervalq.rules", "intervalq.tasks._worker.pool")
"""One that the simulation of shards meets, and one that the simulation of workers does."""

OF_RULES: Final = ("rules", "rules_late", "rules_limits")
OF_SHARD: Final = (
    "planner", "line", "slots", "store_time", "shard", "shard_parts", "shard_questions", "shard_trouble",
    "shard_alone", "shard_accounts", "shard_costs", "shard_memory", "waiting_jobs", "wasted_slots",
    "lost_slots", "trips", "near_and_far", "unaware", "ready", "handle", "late_in_a_run",
)  # fmt: skip
OF_WORKER: Final = (
    "tasks/test_workers", "tasks/test_worker_failures", "tasks/test_worker_changes", "tasks/test_worker_ends",
    "tasks/test_worker_pace", "tasks/test_alone", "tasks/test_sessions", "tasks/test_claims",
    "tasks/test_claim_waits", "tasks/test_claim_leases", "tasks/test_doubt", "tasks/test_handed",
    "tasks/test_pull", "tasks/test_turns",
)  # fmt: skip
"""Tests that need no server, no thread and no clock but a virtual one: what they say is always the same."""


def path_of(module: str) -> Path:
    """Where its source is."""
    return ROOT / f"{module.replace('.', '/')}.py"


def digest_of(*paths: Path) -> str:
    """Tells versions of sources apart by what they do: mutants of another one are made anew."""
    return hashlib.blake2b("".join(map(_code, paths)).encode(), digest_size=6).hexdigest()


def _code(path: Path) -> str:
    """A module without its comments and documentation."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(part: ast.AST) -> bool:
    return (
        isinstance(part, ast.Expr)
        and isinstance(part.value, ast.Constant)
        and isinstance(part.value.value, str)
    )


def tests_of(module: str) -> list[Path]:
    """The tests that run where the simulation and the model saw nothing."""
    if ".tasks." in module:
        return [TESTS / f"{name}.py" for name in OF_WORKER]
    names = OF_RULES if module == "intervalq.rules" else OF_SHARD
    return [TESTS / f"test_{name}.py" for name in names]


def judges_of(module: str) -> str:
    """Tells versions of all that a mutant meets apart: who survived others meets them, too."""
    simulation = sorted((ROOT / "intervalq/testing/simulation").rglob("*.py"))
    if ".tasks." in module:
        simulation = sorted((TESTS / "tasks").glob("[fs]*.py"))
    model = sorted((TESTS / "model").glob("*.py")) if module == "intervalq.rules" else []
    return digest_of(*simulation, *model, *tests_of(module))


def simulators(module: str) -> tuple[list[str], Callable[[str, int], Any]]:
    """The mixes that reach a module, and what runs one schedule."""
    if ".tasks." in module:
        from tasks.simulated_workers import MIXES as mixes  # noqa: N811
        from tasks.simulated_workers import simulate as work

        return list(mixes), work
    from intervalq.testing.simulation import MIXES, simulate

    return list(MIXES), simulate


def one(module: str, number: int, rounds: int, figures: Figures, *, tests: bool) -> tuple[str, str] | None:
    """Who noticed a mutant, and by what; None: nobody. A negative number changes nothing."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    if number >= 0:
        plant(module, number)
    judges: tuple[tuple[str, Callable[[], str | None], int], ...] = (
        ("simulation", lambda: by_simulation(module, rounds, figures), LEAST + 2 * rounds),
        ("model", lambda: by_model(module), MODEL),
        ("tests", lambda: by_tests(module), 2 * PATIENCE),
    )
    for name, judge, seconds in judges[2:] if tests else judges[:2]:
        sys.stderr.write(f"{name}\n")
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            what = judge()
        except Exception as error:  # noqa: BLE001 - whatever it is, it was seen
            what = f"{type(error).__name__}: {error}"
        if what is not None:
            return name, what[:100]
    return None


def by_simulation(module: str, rounds: int, figures: Figures | None = None) -> str | None:
    """The first promise that is broken in so many schedules of each mix; None: none is.

    Args:
        module: says which simulation.
        rounds: so many seeds of each mix.
        figures: those of the code as it is; what is worse by more than `WORSE` is found.
    """
    mixes, simulate = simulators(module)
    runs: dict[str, list[Any]] = {mix: [] for mix in mixes}
    for seed in range(rounds):
        for mix in mixes:
            run = simulate(mix, seed)
            if run.violations:
                return f"{mix} {seed}: {str(run.violations[0]).strip()}"
            runs[mix].append(run)
    now = figures_of(module, runs) if figures else {}
    for mix, before in (figures or {}).items():
        for what, figure in before.items():
            if now[mix][what] > figure * (WORSE_OF_ALL if mix == ALL else WORSE):
                return f"{mix}: {now[mix][what]:.3g} {what}, not {figure:.3g}"
    return None


def figures_of(module: str, runs: dict[str, list[Any]]) -> Figures:
    """What jobs and tasks cost."""
    if ".tasks." in module:
        return {mix: _of_tasks(runs[mix]) for mix in CALM_WORKERS}
    from intervalq.testing.simulation.many import Tally

    figures: Figures = {}
    together = Tally(ALL)
    for mix, some in runs.items():
        tally = Tally(mix)
        for run in some:
            tally.add(run)
        together.merge(tally)
        if mix in CALM:
            slots = 1 / tally.rate if tally.rate > HALF else 0.0
            figures[mix] = {
                "questions a job": tally.calls_a_job,
                "slots for one that is used": slots,
                "seconds until a job begins": tally.wait,
            }
    figures[ALL] = {
        "late grants a start": together.late / together.starts,
        "slots given up a start": together.given_up / together.starts,
    }
    return figures


def _of_tasks(runs: list[Any]) -> dict[str, float]:
    tasks = sum(run.tasks for run in runs)
    return {
        "calls a task": sum(run.calls for run in runs) / tasks,
        "runs a task": sum(run.runs for run in runs) / tasks,
        "seconds until a task begins": sum(run.waited for run in runs) / tasks,
    }


def measured(modules: Sequence[str], rounds: int) -> dict[str, Figures]:
    """The figures of the code as it is: of shards, and of workers."""
    figures = {}
    for module in TYPICAL:
        if any((".tasks." in module) == (".tasks." in each) for each in modules):
            mixes, simulate = simulators(module)
            runs = {mix: [simulate(mix, seed) for seed in range(rounds)] for mix in mixes}
            figures[module] = figures_of(module, runs)
    return figures


def by_model(module: str) -> str | None:
    """The first promise that is broken in any interleaving; None: none is, or the model lacks the module."""
    if module != "intervalq.rules":
        return None
    from model.scope import SCOPES
    from model.search import search

    for name, scope in SCOPES.items():
        if broken := search(scope).broken:
            return f"{name}: {broken}"
    return None


def by_tests(module: str) -> str | None:
    """The first test that fails; None: none does."""
    import pytest

    class First:
        name: str | None = None

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and self.name is None:
                self.name = report.nodeid.partition("/")[2]

    first = First()
    options = ["-x", "-q", "-n", "0", "-k", "not trio", "-p", "no:cacheprovider", f"--timeout={PATIENCE}"]
    with redirect_stdout(io.StringIO()):
        code = pytest.main([*options, *map(str, tests_of(module))], plugins=[first])
    return first.name or (None if code == pytest.ExitCode.OK else f"pytest: {code!r}")


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
