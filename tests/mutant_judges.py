"""Who may notice a mutant: simulations of shards, workers and keys, the model, and tests in virtual time."""

from __future__ import annotations

import ast
import hashlib
import io
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from mutant_processes import Tell, limit
from mutant_reach import Reach, Schedule
from mutations import plant

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = Path(__file__).parent
REGRESSIONS: Final = TESTS / "simulation_regressions.txt"
FIGURES: Final = 8
"""The number of schedules of a mix from which its figures are computed."""
FIGURES_OF_ALL: Final = 100
"""The same for the figures of all mixes."""
KEYED: Final = 32
"""How many schedules of keys under one rate a mutant meets, without and with common limits."""
MAX_SECONDS: Final = 10
"""Seconds of processor time for a schedule; the longest takes one."""
MODEL: Final = 240
"""The same for all scopes of the model."""
PATIENCE: Final = 60
"""Seconds of processor time for one test; the longest takes fewer than five."""

CALM: Final = ("calm", "callers", "swift", "threads", "crowd", "withdrawn", "backlog", "deadlines", "budgets")
CALM_WORKERS: Final = (
    "calm", "stops", "hands", "chunks", "operators", "chunks-cancelled", "users", "pulls", "guards",
)  # fmt: skip
"""Mixes with few faults, in which only the code can make jobs costly or late."""
ALL: Final = "all mixes"
EFFECT: Final = "effect"
"""The name of a report that doesn't judge."""
WORSE: Final = 1.05
"""The growth of a figure that is noticed: without a change, schedules and figures are the same."""
WORSE_OF_ALL: Final = 1.15
"""The same for the figures of all mixes: with many faults, they differ more by chance."""
HALF: Final = 0.5
"""If fewer slots are used, jobs wait for round trips rather than for slots, and the rate says little."""
Figures: TypeAlias = dict[str, dict[str, float]]
"""By mix, and by name; less is better."""

TYPICAL: Final = ("intervalq.rules", "intervalq.tasks._worker.one_by_one")
"""A module that the simulation of shards runs, and one that the simulation of workers runs."""

OF_RULES: Final = ("rules", "rules_laws", "rules_late", "rules_limits")
OF_SHARD: Final = (
    "planner", "planner_properties", "wait_queue", "slots", "store_time", "shard", "shard_parts",
    "shard_questions", "shard_trouble", "shard_alone", "shard_accounts", "shard_costs", "shard_memory",
    "waiting_jobs", "wasted_slots",
    "late_threads", "lost_slots", "trips", "near_and_far", "unaware", "ready", "handle", "late_in_a_run",
    "configure_limits", "unused_slots", "edges", "standing", "quotes", "quotes_limits", "settled",
)  # fmt: skip
OF_WORKER: Final = (
    "tasks/test_workers", "tasks/test_worker_failures", "tasks/test_worker_changes", "tasks/test_worker_ends",
    "tasks/test_worker_pace", "tasks/test_alone", "tasks/test_sessions",
    "tasks/test_sessions_away", "tasks/test_claims",
    "tasks/test_claim_waits", "tasks/test_claim_leases", "tasks/test_doubt", "tasks/test_handed",
    "tasks/test_pull", "tasks/test_turns", "tasks/test_server_pull", "tasks/test_cancel",
    "tasks/test_chunks", "tasks/test_chunk_outcomes", "tasks/test_chunk_changes",
    "tasks/test_progress", "tasks/test_pace_by_task",
)  # fmt: skip
"""Tests that need no server, no thread and only a virtual clock, so that their result is always the same."""


def path_of(module: str) -> Path:
    """The path of its source."""
    return ROOT / f"{module.replace('.', '/')}.py"


def digest_of(*paths: Path) -> str:
    """The digest of a source without comments: mutants of changed code are made anew."""
    return _digest("".join(_code(ast.parse(path.read_text())) for path in paths))


def digest_of_code(tree: ast.AST) -> str:
    """The same for a part of a source, which loses its docstrings."""
    return _digest(_code(tree))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _code(tree: ast.AST) -> str:
    """A source without its comments and docstrings, which are removed from the tree."""
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
    """The tests for mutants that neither the simulation nor the model noticed."""
    if ".tasks." in module:
        return [TESTS / f"{name}.py" for name in OF_WORKER]
    names = OF_RULES if module == "intervalq.rules" else OF_SHARD
    return [TESTS / f"test_{name}.py" for name in names]


def judges_of(module: str) -> str:
    """The digest of everything that may notice a mutant: survivors of other versions meet it, too."""
    simulation = sorted((ROOT / "tests/simulation").rglob("*.py"))
    if ".tasks." in module:
        simulation = sorted((TESTS / "tasks").glob("[fs]*.py"))
    model = sorted((TESTS / "model").glob("*.py")) if module == "intervalq.rules" else []
    keys = [] if ".tasks." in module else [TESTS / "keyed_schedules.py"]
    return digest_of(*simulation, *keys, *model, *tests_of(module))


def kind_of(module: str) -> str:
    """The name in `TYPICAL` that stands for the simulation which the mutant meets."""
    return TYPICAL[".tasks." in module]


def simulator(module: str) -> Callable[[str, int], Any]:
    """The function that runs one schedule."""
    if ".tasks." in module:
        from tasks.simulated_workers import simulate as work

        return work
    from simulation import simulate

    return simulate


def schedules_of(module: str, rounds: int) -> list[Schedule]:
    """All schedules that a mutant may meet: those for figures, which are quick, and sharp ones first.

    This imports the modules to be changed.
    """
    if ".tasks." in module:
        from tasks.simulated_mixes import MIXES as mixes  # noqa: N811

        names = [*mixes]
        first = [(mix, 0) for mix in names]
    else:
        from simulation import MIXES

        first, names = sharp(), [*MIXES]
    calm = [mix for mix in (CALM_WORKERS if ".tasks." in module else CALM) if mix in names]
    figures: list[Schedule] = [(mix, seed) for mix in calm for seed in range(FIGURES)]
    seeds = [(mix, seed) for seed in range(rounds) for mix in names]
    return list(dict.fromkeys([*figures, *first, *seeds]))


def one(module: str, number: int, schedules: Sequence[Schedule], reach: Reach, tell: Tell) -> None:
    """Report who examines a mutant, and then what noticed it, if anything did."""
    plant(module, number)
    logging.getLogger("intervalq").disabled = True
    runs: dict[Schedule, Any] = {}
    judges: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("simulation", lambda: by_simulation(module, schedules, reach, runs)),
        ("keys", lambda: by_keys(module, reach)),
        ("model", lambda: by_model(module)),
    )
    for name, judge in judges:
        tell((name, None))
        if (what := _noticed(judge)) is not None:
            tell((name, what))
            return
    tell((EFFECT, effect_of(runs, reach)))


def one_by_tests(module: str, number: int, tell: Tell) -> None:
    """The same for the tests, which need a process of their own, because pytest must be imported first."""
    plant(module, number)
    tell(("tests", None))
    if (what := _noticed(lambda: by_tests(module))) is not None:
        tell(("tests", what))


def _noticed(judge: Callable[[], str | None]) -> str | None:
    try:
        what = judge()
    except Exception as error:  # noqa: BLE001 - whatever it is, it was noticed
        what = f"{type(error).__name__}: {error}"
    return None if what is None else what[:100]


def by_simulation(
    module: str, schedules: Sequence[Schedule], reach: Reach, runs: dict[Schedule, Any]
) -> str | None:
    """The first promise that is broken in these schedules, or the figure that gets worse; None: none.

    Args:
        module: decides which simulation.
        schedules: in this order.
        reach: the results of the unchanged code.
        runs: receives the results of the mutant.
    """
    simulate, counted = simulator(module), Counter[str]()
    for mix, seed in schedules:
        limit(MAX_SECONDS)
        run = runs[mix, seed] = simulate(mix, seed)
        if run.violations:
            return f"{mix} {seed}: {str(run.violations[0]).strip()}"
        counted[mix] += 1
        if counted[mix] == FIGURES:
            some = {each: run for each, run in runs.items() if each[0] == mix}
            if (what := _worse(module, some, reach)) is not None:
                return what
    return _worse(module, runs, reach)


def _worse(module: str, runs: dict[Schedule, Any], reach: Reach) -> str | None:
    """The first figure that got worse; None: none."""
    now = figures_of(module, runs)
    before = figures_of(module, {each: pickle.loads(reach.runs[each]) for each in runs})
    for mix, figures in before.items():
        for what, figure in figures.items():
            if now[mix][what] > figure * (WORSE_OF_ALL if mix == ALL else WORSE):
                return f"{mix}: {now[mix][what]:.3g} {what}, not {figure:.3g}"
    return None


def effect_of(runs: dict[Schedule, Any], reach: Reach) -> str:
    """What a mutant that nobody noticed changes: in how many schedules, and by how much the figures."""
    before = {each: pickle.loads(reach.runs[each]) for each in runs}
    pairs = [(_numbers(before[each]), _numbers(run)) for each, run in runs.items()]
    other = sum(old != new for old, new in pairs)
    if not other:
        return "changes nothing"
    changes = []
    for name in pairs[0][0]:
        old, new = (sum(pair[place][name] for pair in pairs) for place in (0, 1))
        if old != new:
            changes.append(f"{name} {(new - old) / old:+.2%}" if old else f"{name} 0 -> {new}")
    return f"changes {other} schedules: {', '.join(changes)}"


def _numbers(run: Any) -> dict[str, float]:
    return {
        each.name: value for each in fields(run) if isinstance(value := getattr(run, each.name), int | float)
    }


def sharp() -> list[Schedule]:
    """Schedules that once found a bug: those of the regressions, and of the planted bugs."""
    from planted.bugs import BUGS

    listed = (line.split() for line in REGRESSIONS.read_text().splitlines() if line and line[0] != "#")
    return [
        *((mix, int(seed)) for mix, seed, *_ in listed),
        *((bug.mix, bug.seed) for bug in BUGS.values()),
    ]


def figures_of(module: str, runs: dict[Schedule, Any]) -> Figures:
    """The cost of jobs and of tasks."""
    by_mix: dict[str, list[Any]] = {}
    for (mix, _), run in runs.items():
        by_mix.setdefault(mix, []).append(run)
    enough = {mix for mix, some in by_mix.items() if len(some) >= FIGURES}
    if ".tasks." in module:
        return {mix: _of_tasks(by_mix[mix]) for mix in CALM_WORKERS if mix in enough}
    from simulation.many import Tally

    figures: Figures = {}
    together = Tally(ALL)
    for mix, some in by_mix.items():
        tally = Tally(mix)
        for run in some:
            tally.add(run)
        together.merge(tally)
        if mix in CALM and mix in enough:
            slots = 1 / tally.rate if tally.rate > HALF else 0.0
            figures[mix] = {
                "questions a job": tally.calls_a_job,
                "steps of event loops a job": tally.steps_a_job,
                "slots for one that is used": slots,
                "seconds until a job begins": tally.wait,
            }
    if together.schedules < FIGURES_OF_ALL:
        return figures
    figures[ALL] = {
        "late grants a start": together.late / together.starts,
        "slots given up a start": together.given_up / together.starts,
    }
    return figures


def _of_tasks(runs: list[Any]) -> dict[str, float]:
    tasks = sum(run.tasks for run in runs)
    return {
        "calls a task": sum(run.calls for run in runs) / tasks,
        "steps of event loops a task": sum(run.steps for run in runs) / tasks,
        "runs a task": sum(run.runs for run in runs) / tasks,
        "seconds until a task begins": sum(run.waited for run in runs) / tasks,
    }


def by_keys(module: str, reach: Reach) -> str | None:
    """The first promise that schedules of keys under one rate break, or what they use less of; None: nothing.

    The simulation of workers has no keys.
    """
    if kind_of(module) != TYPICAL[0]:
        return None
    from keyed_schedules import verdict

    for seed in range(KEYED):
        for limited in (False, True):
            limit(MAX_SECONDS)
            if broken := verdict(seed, limited=limited):
                return f"{seed}{' limited' * limited}: {broken[0]}"
    for now, before in zip(keyed_figures(), reach.keyed, strict=True):
        names = "starts of keys", "us between two", "starts in 1,000 requests"
        for what, is_now, was in zip(names, now, before, strict=True):
            if is_now * WORSE < was:
                return f"{is_now} {what}, not {was}"
    return None


def keyed_figures() -> list[tuple[int, int, int]]:
    """How many jobs of keys begin where timers wake late, how near to each other, and with how few requests.

    The distance is in microseconds.
    """
    from test_keyed_late import starts

    limit(4 * MAX_SECONDS)
    runs = (
        partial(starts, 300, 40, 4),
        partial(starts, 300, 300, 1, polls=True),
        partial(starts, 300, 300, 1, polls=True, delay=0.002, each=1),
        partial(starts, 1_000, 60, 4, polls=True, delay=0.0002),
        partial(starts, 1_000, 700, 4, polls=True, delay=0.002, each=1),
    )
    logs = [run() for run in runs]
    return [(len(log.starts), log.spacing(), 1_000 * len(log.starts) // log.calls) for log in logs]


def by_model(module: str) -> str | None:
    """The first promise that is broken in any interleaving; None: none, or the model lacks the module."""
    if module != "intervalq.rules":
        return None
    from model.scope import SCOPES
    from model.search import search

    limit(MODEL)
    for name, scope in SCOPES.items():
        if broken := search(scope).broken:
            return f"{name}: {broken}"
    return None


def by_tests(module: str) -> str | None:
    """The first test that fails; None: none."""
    import pytest

    class First:
        name: str | None = None

        def pytest_runtest_logstart(self) -> None:
            limit(PATIENCE)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and self.name is None:
                self.name = report.nodeid.partition("/")[2]

    first = First()
    options = ["-x", "-q", "-n", "0", "-k", "not trio", "-p", "no:cacheprovider", "--timeout=0"]
    with redirect_stdout(io.StringIO()):
        code = pytest.main([*options, *map(str, tests_of(module))], plugins=[first])
    return first.name or (None if code == pytest.ExitCode.OK else f"pytest: {code!r}")
