"""Who may notice a mutant: the simulation, the model, and the tests that run in virtual time."""

from __future__ import annotations

import ast
import hashlib
import io
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final, TypeAlias

from mutations import plant

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = Path(__file__).parent
REGRESSIONS: Final = TESTS / "simulation_regressions.txt"
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

TYPICAL: Final = ("intervalq.rules", "intervalq.tasks._worker.pool")
"""One that the simulation of shards meets, and one that the simulation of workers does."""

OF_RULES: Final = ("rules", "rules_laws", "rules_late", "rules_limits")
OF_SHARD: Final = (
    "planner", "planner_properties", "line", "slots", "store_time", "shard", "shard_parts",
    "shard_questions", "shard_trouble", "shard_alone", "shard_accounts", "shard_costs", "shard_memory",
    "waiting_jobs", "wasted_slots",
    "lost_slots", "trips", "near_and_far", "unaware", "ready", "handle", "late_in_a_run",
)  # fmt: skip
OF_WORKER: Final = (
    "tasks/test_workers", "tasks/test_worker_failures", "tasks/test_worker_changes", "tasks/test_worker_ends",
    "tasks/test_worker_pace", "tasks/test_alone", "tasks/test_sessions",
    "tasks/test_sessions_away", "tasks/test_claims",
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
    """The first promise that is broken in so many schedules of each mix, or in a sharp one; None: none is.

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
    for mix, seed in sharp() if ".tasks." not in module else ():
        if (run := simulate(mix, seed)).violations:
            return f"{mix} {seed}: {str(run.violations[0]).strip()}"
    now = figures_of(module, runs) if figures else {}
    for mix, before in (figures or {}).items():
        for what, figure in before.items():
            if now[mix][what] > figure * (WORSE_OF_ALL if mix == ALL else WORSE):
                return f"{mix}: {now[mix][what]:.3g} {what}, not {figure:.3g}"
    return None


def sharp() -> list[tuple[str, int]]:
    """Schedules that found a bug once: those of the regressions, and of the bugs that are planted."""
    from planted.bugs import BUGS

    listed = (line.split() for line in REGRESSIONS.read_text().splitlines() if line and line[0] != "#")
    found = [(mix, int(seed)) for mix, seed, *_ in listed]
    return list(dict.fromkeys([*found, *((bug.mix, bug.seed) for bug in BUGS.values())]))


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
