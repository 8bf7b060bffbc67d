"""The places of a module at which one small thing can be wrong, and the module with one of them changed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

_OPERATORS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In,  # codespell:ignore
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SMALL: Final = 20
"""Larger numbers are settings: a slightly different value breaks no promise."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one place."""

    line: int
    what: str
    apply: Callable[[], None]


def mutations(tree: ast.Module) -> list[Mutation]:
    """All mutations, in the order of the source; each changes the tree when it is applied."""
    found: list[Mutation] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _visit(statement, found)
    return sorted(found, key=lambda one: (one.line, one.what))


def _visit(node: ast.AST, found: list[Mutation]) -> None:
    if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
        return
    found.extend(_of(node))
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases", "type_params"}:
            continue
        if isinstance(node, ast.ClassDef) and name == "body":
            value = [one for one in value if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]  # noqa: PLW2901
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_talk(child):
                _visit(child, found)


def _is_talk(node: ast.AST) -> bool:
    """Whether it is a docstring, a message or a log call."""
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return True
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or ast.unparse(node.value).startswith("log.")


def _of(node: ast.AST) -> Iterator[Mutation]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _OPERATORS:
            yield _changed(node, "ops", [_OPERATORS[type(operator)]()])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            yield _changed(node, "op", _OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield _changed(node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else _Truth(), operand)
        case ast.Constant(value=bool() as value):
            yield _changed(node, "value", not value)
        case ast.Constant(value=int() as value) if value < _SMALL:
            yield _changed(node, "value", value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield _changed(node, "func", ast.copy_location(ast.Name(_NAMES[name], ast.Load()), node))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                yield _changed(node, "test", negated)
        case _:
            pass
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield from _left_out(block)


class _Truth(ast.Not):
    """Stands for `not not`: the operand as it is."""


def _changed(node: Any, field: str, value: Any, operand: ast.expr | None = None) -> Mutation:
    before = ast.unparse(node).splitlines()[0]
    old = getattr(node, field)
    if isinstance(value, _Truth):
        node.op = ast.Not()
        after = ast.unparse(operand) if operand is not None else ""
    else:
        setattr(node, field, value)
        after = ast.unparse(node).splitlines()[0]
        setattr(node, field, old)

    def apply() -> None:
        if isinstance(value, _Truth) and operand is not None:
            node.op = ast.Not()
            node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), operand), operand)
        else:
            setattr(node, field, value)

    return Mutation(node.lineno, f"{before} -> {after}", apply)


def _left_out(block: list[ast.stmt]) -> Iterator[Mutation]:
    for place, statement in enumerate(block):
        is_set = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute)
        if not (is_set or isinstance(statement, ast.Expr | ast.AugAssign)) or _is_talk(statement):
            continue
        what = ast.unparse(statement).splitlines()[0]

        def apply(place: int = place, statement: ast.stmt = statement) -> None:
            block[place] = ast.copy_location(ast.Pass(), statement)

        yield Mutation(statement.lineno, f"without {what}", apply)


class _Mutated(SourceFileLoader):
    number = 0

    def get_code(self, fullname: str) -> CodeType | None:
        tree = ast.parse(Path(self.path).read_text())
        mutations(tree)[self.number].apply()
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, module: str, number: int) -> None:
        self._module, self._number = module, number

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = loader = _Mutated(fullname, spec.origin)
        loader.number = self._number
        return spec


def plant(module: str, number: int) -> None:
    """Give the module, which must not be imported yet, this mutation."""
    assert module not in sys.modules
    sys.meta_path.insert(0, _Finder(module, number))
