"""Which schedules execute which lines, so that a mutant meets only those that can notice it.

A schedule that does not execute a line behaves as before, however that line is changed.
"""

from __future__ import annotations

import ast
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, TypeAlias

from mutant_processes import Tell, forked

Schedule: TypeAlias = tuple[str, int]
"""A mix, and a seed."""

_PROBE: Final = "_probe_of_lines"


@dataclass(slots=True)
class Reach:
    """The results of the unchanged code by schedule, in the order in which mutants meet them."""

    runs: dict[Schedule, bytes] = field(default_factory=dict)
    """Pickled, because their classes may be in a module that is changed."""
    lines: dict[Schedule, dict[str, set[int]]] = field(default_factory=dict)
    """The first lines of executed statements, by module."""
    keyed: list[tuple[int, int, int]] = field(default_factory=list)
    """See `mutant_judges.keyed_figures`."""

    def of(self, module: str, line: int) -> list[Schedule]:
        """The schedules that execute a line."""
        return [schedule for schedule, lines in self.lines.items() if line in lines[module]]


def reach(
    schedules: Sequence[Schedule], modules: Sequence[str], simulator: Callable[[], Any], processes: int
) -> Reach:
    """Run all schedules with probes in these modules; leave out schedules that fail unchanged.

    Args:
        schedules: in the order in which mutants are to meet them.
        modules: those that mutants are made of.
        simulator: imports what runs a schedule, and returns it; called in another process.
        processes: how many may run at a time.
    """

    def some(tell: Tell, part: Sequence[Schedule]) -> None:
        probes = {module: _Probed.of(module) for module in modules}
        sys.meta_path.insert(0, _Finder(probes))
        simulate = simulator()
        for mix, seed in part:
            for probed in probes.values():
                probed.reached.clear()
            run = simulate(mix, seed)
            if run.violations:
                sys.stderr.write(f"{mix} {seed} fails without a mutant: {run.violations[0]}\n")
                tell(((mix, seed), None, {}))
                continue
            run.lines.clear()  # they are long
            reached = {module: set(probed.reached) for module, probed in probes.items()}
            tell(((mix, seed), pickle.dumps(run), reached))

    parts = [schedules[place::processes] for place in range(processes)]
    calls = [(place, lambda tell, part=part: some(tell, part)) for place, part in enumerate(parts)]
    told = {each[0]: each[1:] for _, given, _ in forked(calls, processes) for each in given}
    missing = [schedule for schedule in schedules if schedule not in told]
    assert not missing, f"these end their process without a mutant: {missing[:processes]}"
    good = [schedule for schedule in schedules if told[schedule][0] is not None]
    return Reach({each: told[each][0] for each in good}, {each: told[each][1] for each in good})


def probe_of(tree: ast.Module, line: int) -> int:
    """The first line of the statement whose probe shows whether a line is executed."""
    statements, headers = [], []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        headers.append((function.lineno, function.body[0].lineno))
        statements += [each for each in ast.walk(function) if isinstance(each, ast.stmt) and each != function]
    around = [each.lineno for each in statements if each.lineno <= line <= (each.end_lineno or 0)]
    if around:
        return max(around)
    # The default of an argument makes no difference until the function is called.
    return max(body for header, body in headers if header <= line <= body)


class _Probed(SourceFileLoader):
    """Loads a module with a probe before each statement of its functions."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.reached: set[int] = set()

    @classmethod
    def of(cls, module: str) -> _Probed:
        root = Path(__file__).parents[1]
        return cls(module, str(root / f"{module.replace('.', '/')}.py"))

    def get_code(self, fullname: str) -> CodeType | None:
        tree = ast.parse(Path(self.path).read_text())
        for function in [*ast.walk(tree)]:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                _add_probes(function)
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _PROBE, self.reached.add)
        super().exec_module(module)


def _add_probes(node: ast.AST) -> None:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):  # they are handled separately
            _add_probes(child)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        probed: list[ast.stmt] = []
        for statement in block:
            probe = ast.Call(ast.Name(_PROBE, ast.Load()), [ast.Constant(statement.lineno)], [])
            probed += [ast.copy_location(ast.Expr(probe), statement), statement]
        block[:] = probed


class _Finder(MetaPathFinder):
    def __init__(self, probes: dict[str, _Probed]) -> None:
        self._probes = probes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in self._probes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        spec.loader = self._probes[fullname]
        return spec
