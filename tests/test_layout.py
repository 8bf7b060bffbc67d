"""Enforces the architecture: layers, sizes, public names, documentation of errors."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from functools import cache
from pathlib import Path

import intervalq
import intervalq_stores
from intervalq import IntervalQueue, Job, Slot, errors
from intervalq.tasks import Claim, Task, Tasks

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "intervalq").rglob("*.py"))
STORES = sorted((ROOT / "stores" / "intervalq_stores").rglob("*.py"))


@cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def test_the_core_imports_no_store() -> None:
    for path in CORE:
        assert not [name for name in imports(path) if name.startswith("intervalq_stores")], path


def test_a_store_imports_only_what_a_store_may() -> None:
    allowed = {"intervalq.store", "intervalq.rules", "intervalq.keyed", "intervalq.errors"}
    allowed |= {"intervalq_stores"}
    allowed |= {"intervalq.tasks.store", "intervalq.tasks.rules"}
    allowed |= {"intervalq.ledger.store", "intervalq.ledger.rules"}
    allowed |= {"intervalq._wire"}  # what a service and its stores say to each other
    for path in STORES:
        ours = {name for name in imports(path) if name.split(".")[0] in ("intervalq", "intervalq_stores")}
        ours -= {"intervalq", "intervalq.tasks", "intervalq.ledger"}  # only their modules are imported
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
        "tasks/_spec/row.py",
        "tasks/_spec/commands.py",
        "tasks/_spec/table.py",
        "tasks/_spec/transitions.py",
    )
    ledger = ("ledger/rules.py", "ledger/_commands.py")
    for name in ("rules.py", "_spec/record.py", "_spec/commands.py", *tasks, *ledger):
        assert {module.split(".")[0] for module in imports(ROOT / "intervalq" / name)} <= allowed


def test_each_layer_knows_only_those_below() -> None:
    """These are parts of the core, lowest first; the parts that any layer may import are left out."""
    layers = ("_spec", "_timing", "_hours", "_keys", "_shard", "_observe", "_queue", "sync", "cli")
    for place, layer in enumerate(layers):
        above = set(layers[place + 1 :])
        for path in sorted((ROOT / "intervalq" / layer).rglob("*.py")):
            found = {name.split(".")[1] for name in imports(path) if name.startswith("intervalq.")}
            assert not found & above - {"sync"}, path


def modules() -> dict[str, Path]:
    """All modules of the core and of the stores, by name."""
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for base in (ROOT, ROOT / "stores")
        for package in ("intervalq", "intervalq_stores")
        for path in sorted((base / package).rglob("*.py"))
    }


def graph() -> dict[str, set[str]]:
    """The modules of ours that each module imports, including imports for types only."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        ours = imports(path) & {*known}
        # `from package import module` needs that module, and not what else the package imports.
        found[name] = {each for each in ours if not any(other.startswith(f"{each}.") for other in ours)} - {
            name
        }
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle, if there is one."""
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


def test_there_is_no_circle_of_imports_not_even_of_types() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    ours = graph()
    assert len(ours) > 250
    assert not circle(ours)


def test_no_part_imports_one_that_stands_on_it() -> None:
    """The parts are the folders and files of the first level; their order follows from the imports."""

    def part(name: str) -> str:
        return ".".join(name.split(".")[:2])

    parts: dict[str, set[str]] = {}
    for name, others in graph().items():
        if name.startswith("intervalq."):
            parts.setdefault(part(name), set()).update(map(part, others))
    for name, others in parts.items():
        others.discard(name)
        parts[name] = others & {*parts}
    assert not circle(parts)


def test_no_backend_imports_another() -> None:
    for name, others in graph().items():
        if name.count(".") > 1 and name.startswith("intervalq_stores.") and "._files" not in name:
            mine = name.split(".")[1]
            theirs = {other.split(".")[1] for other in others if other.startswith("intervalq_stores.")}
            assert theirs <= {mine, "_files", "_transport", "_waiters"}, name


def test_a_layer_of_pacing_imports_only_lower_ones_and_the_public_doors() -> None:
    layers = ("_spec", "_timing", "_hours", "_keys", "_shard", "_observe", "_queue")
    doors = {"rules", "keyed", "errors", "store"}
    for name, path in modules().items():
        layer = [*name.split("."), ""][1]
        if layer in layers:
            below = {*layers[: layers.index(layer) + 1]} | doors
            found = {each.split(".")[1] for each in imports(path) if each.startswith("intervalq.")}
            assert found <= below | {"_lazy"}, path


def test_folders_and_functions_are_small() -> None:
    folders = Counter(path.parent for path in modules().values() if path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(text.splitlines())
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


def sql_functions(text: str) -> dict[str, int]:
    """The functions in a file of SQL, and how many lines of each are neither empty nor comments."""
    found: dict[str, int] = {}
    for part in re.split(r"^create or replace function ", text, flags=re.MULTILINE)[1:]:
        first, _, _ = part.partition(";\n")
        whole = part.partition("\n$$;\n")[0] + "\n$$;" if "\nas $$\n" in first else first
        lines = [line for line in map(str.strip, whole.splitlines()) if line and not line.startswith("--")]
        found[part.partition("(")[0].removeprefix("intervalq.")] = len(lines)
    return found


def test_functions_in_sql_are_small() -> None:
    made = "create or replace function intervalq.f()\nas $$\n\n  -- why\nbegin\nend\n$$;\n"
    assert sql_functions(made) == {"f": 5}
    short = "create or replace function g() returns integer\nlanguage sql\nreturn 1\n  -- why\n  + 2;\n"
    assert sql_functions(f"{short}{made}") == {"f": 5, "g": 4}
    found = {path: sql_functions(path.read_text()) for path in files_of("sql")}
    assert sum(map(len, found.values())) > 100
    for path, functions in found.items():
        for name, lines in functions.items():
            assert lines <= 70, f"{path}: {name} has {lines} lines"


def lua_functions(text: str) -> dict[str, int]:
    """The same for a file of Lua: a function and its `end` begin in the same column, the first or the third.

    A function in the third column is inside another one, and doesn't count as lines of it.
    """
    found = {}
    for indent in ("  ", ""):
        pattern = rf"^{indent}(?:local )?function ([\w.]+)\(.*?^{indent}end$"
        for function in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
            lines = map(str.strip, function[0].splitlines())
            found[function[1]] = len([line for line in lines if line and not line.startswith("--")])
        text = re.sub(pattern, "", text, flags=re.MULTILINE | re.DOTALL)
    return found


def test_functions_in_lua_are_small() -> None:
    made = "local function f(a)\n  -- why\n  if a then\n    b()\n  end\nend\nf(1)\nfunction g()\n\nend\n"
    made += "function h()\n  function a.b()\n    c()\n  end\n  d()\nend\n"
    assert lua_functions(made) == {"f": 5, "g": 2, "h": 3, "a.b": 3}
    found = {path: lua_functions(path.read_text()) for path in files_of("lua")}
    assert sum(map(len, found.values())) > 100
    for path, functions in found.items():
        for name, lines in functions.items():
            assert lines <= 70, f"{path}: {name} has {lines} lines"


def files_of(kind: str) -> list[Path]:
    return sorted((ROOT / "stores" / "intervalq_stores").rglob(f"*.{kind}"))


def test_files_of_sql_and_lua_are_small() -> None:
    for path in (*files_of("sql"), *files_of("lua")):
        lines = len(path.read_text().splitlines())
        assert lines <= 600, f"{path} has {lines} lines"


def test_modules_are_small_and_say_their_duty_first() -> None:
    for path in (
        *CORE,
        *STORES,
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "benchmarks").glob("*.py")),
    ):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, f"{path} is over 400 lines: it has more than one duty"
        if "tests" not in path.relative_to(ROOT).parts:
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


def test_classes_for_users_show_only_what_users_need() -> None:
    """What other parts of the library use of them begins with an underscore."""
    handle = (
        "add blocking close configure cool_down drop inspect key keys map map_all name pause quote reclaim"
    )
    handle += " resume run slot start try_slot"
    tasks = "aclose batch cancel claim commit insert lock modify new outcomes pull put queues result run"
    tasks += " schedule schedules sessions stop tasks transaction try_claim wait wait_empty worker"
    task = "at attempt change checkpoint claimant claims created delete depend error id key modified note"
    task += " priority progress queue value version"
    claim = f"{task} ack commit in_progress nak open release slot snooze term"
    job, slot = "attempt cancel done due ticket", "due settle ticket"
    kinds = ((IntervalQueue, handle), (Job, job), (Slot, slot), (Tasks, tasks), (Task, task), (Claim, claim))
    for kind, names in kinds:
        assert {name for name in dir(kind) if not name.startswith("_")} == {*names.split()}, kind


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
