"""The architecture, held: layers, sizes, public names, documentation of errors."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import intervalq
import intervalq_stores
from intervalq import errors

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "intervalq").rglob("*.py"))
STORES = sorted((ROOT / "stores" / "intervalq_stores").rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_the_core_imports_no_store() -> None:
    for path in CORE:
        assert not [name for name in imports(path) if name.startswith("intervalq_stores")], path


def test_a_store_imports_only_what_a_store_may() -> None:
    allowed = {"intervalq.store", "intervalq.rules", "intervalq.errors", "intervalq_stores"}
    allowed |= {"intervalq.tasks.store", "intervalq.tasks.rules"}
    allowed |= {"intervalq.ledger.store", "intervalq.ledger.rules"}
    for path in STORES:
        ours = {name for name in imports(path) if name.split(".")[0] in ("intervalq", "intervalq_stores")}
        ours -= {"intervalq", "intervalq.tasks", "intervalq.ledger"}  # of which the modules are imported
        outside = {name for name in ours if not any(f"{name}.".startswith(f"{known}.") for known in allowed)}
        assert not outside, path


def test_the_rules_know_nothing_of_the_outside() -> None:
    allowed = {
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "hashlib",
        "itertools",
        "random",
        "typing",
    }
    allowed |= {"intervalq"}
    tasks = (
        "tasks/rules.py",
        "tasks/_row.py",
        "tasks/_commands.py",
        "tasks/_table.py",
        "tasks/_transitions.py",
    )
    ledger = ("ledger/rules.py", "ledger/_commands.py")
    for name in ("rules.py", "_spec/record.py", "_spec/commands.py", *tasks, *ledger):
        assert {module.split(".")[0] for module in imports(ROOT / "intervalq" / name)} <= allowed


def test_each_layer_knows_only_those_below() -> None:
    """Parts of the core, lowest first; what anybody may import of the others is left out."""
    layers = ("_spec", "_timing", "_shard", "_queue", "sync", "cli")
    for place, layer in enumerate(layers):
        above = set(layers[place + 1 :])
        for path in sorted((ROOT / "intervalq" / layer).rglob("*.py")):
            found = {name.split(".")[1] for name in imports(path) if name.startswith("intervalq.")}
            assert not found & above - {"sync"}, path


PACING = ("_spec", "_timing", "_shard", "_queue")
"""The layers of pacing, lowest first."""


def pacing_modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for layer in PACING
        for path in sorted((ROOT / "intervalq" / layer).glob("*.py"))
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle, if there is any."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node not in done:
            for other in sorted(graph[node]):
                if found := visit(other, [*path, node]):
                    return found
            done.add(node)
        return []

    return next((found for node in graph if (found := visit(node, []))), [])


def test_there_is_no_circle_of_imports_in_pacing_not_even_of_types() -> None:
    modules = pacing_modules()
    assert len(modules) > 25
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert not circle({name: imports(path) & {*modules} - {name} for name, path in modules.items()})


def test_a_layer_of_pacing_imports_only_lower_ones_and_the_public_doors() -> None:
    doors = {"rules", "errors", "store"}
    for name, path in pacing_modules().items():
        layer = name.split(".")[1]
        below = {*PACING[: PACING.index(layer) + 1]} | doors
        found = {each.split(".")[1] for each in imports(path) if each.startswith("intervalq.")}
        assert found <= below | ({"sync"} if layer == "_queue" else set()), path


def test_modules_are_small_and_say_their_duty_first() -> None:
    for path in (
        *CORE,
        *STORES,
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "benchmarks").glob("*.py")),
    ):
        text = path.read_text()
        if "tests" not in path.relative_to(ROOT).parts:
            assert len(text.splitlines()) <= 400, f"{path} is over 400 lines: it has more than one duty"
            assert ast.get_docstring(ast.parse(text)), f"{path} doesn't say its duty"


def test_public_names_are_those_that_are_listed() -> None:
    for module in (
        intervalq,
        importlib.import_module("intervalq.testing"),
        importlib.import_module("intervalq.rules"),
    ):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert hasattr(module, name)
    assert len(intervalq.__all__) < 20


def test_every_error_has_the_one_root_and_says_what_it_is() -> None:
    classes = [
        thing
        for thing in vars(errors).values()
        if isinstance(thing, type) and thing.__module__ == errors.__name__
    ]
    assert len(classes) > 15
    for kind in classes:
        assert issubclass(kind, errors.IntervalqError)
        assert kind.__doc__


def test_every_module_can_be_imported_by_itself() -> None:
    for package in (intervalq, intervalq_stores):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
