"""Commands and answers as JSON: objects with the fields of their classes, checked against their types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from intervalq.errors import short
from intervalq.rules import FOREVER

T = TypeVar("T")

MAX_ITEMS: Final = 100_000
"""The maximum number of values in a list."""
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")
"""What some stores can't keep, or no message can carry: half a character."""


class MalformedValue(ValueError):
    """A message doesn't have the expected content; the text says what is wrong."""


class Coder(NamedTuple):
    """Converts values of a type to values that `json` takes, and back."""

    write: Callable[[Any], Any] | None
    """None: `json` takes them as they are."""
    read: Callable[[Any], Any]


def dumps(hint: Any, value: object) -> bytes:  # noqa: ANN401 - any type
    """A value of a type as JSON.

    Raises:
        UnicodeEncodeError: a text isn't Unicode.
    """
    write = coder(hint).write
    written = value if write is None else write(value)
    return json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode()


def loads(hint: type[T], data: bytes) -> T:
    """The value of a type that JSON holds.

    Raises:
        MalformedValue: the JSON has something else.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(f"a message is not JSON: {short(str(error))}") from None
    return cast("T", coder(cast("Any", hint)).read(found))


@cache
def coder(hint: Any) -> Coder:  # noqa: ANN401, PLR0911 - any type, one case each
    """How values of a type are written and read."""
    if hint is NoneType:
        return Coder(None, _nothing)
    if hint is int:
        return Coder(None, _whole)
    if hint is str:
        return Coder(None, _text)
    if hint is bool:
        return Coder(None, lambda value: value if type(value) is bool else _wrong("bool", value))
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        words = frozenset(parts)
        return Coder(
            None, lambda value: value if type(value) is str and value in words else _wrong("a word", value)
        )
    if origin is tuple:
        return _list(coder(parts[0])) if parts[1:] == (...,) else _row([coder(part) for part in parts])
    if origin in (Union, UnionType):
        kinds = [part for part in parts if part is not NoneType]
        one = coder(kinds[0]) if len(kinds) == 1 else _one_of(kinds)
        return _optional(one) if len(kinds) < len(parts) else one
    return _object(hint)


def _nothing(value: object) -> None:
    if value is not None:
        _wrong("null", value)


def _text(value: object) -> str:
    if type(value) is not str or _UNFIT.search(value) is not None:
        _wrong("text without U+0000 and halves of characters", value)
    return cast("str", value)


def _whole(value: object) -> int:
    if type(value) is not int or not -FOREVER <= value <= FOREVER:
        _wrong("a whole number below 2**53", value)
    return cast("int", value)


def _wrong(what: str, value: object) -> Any:  # noqa: ANN401 - it never returns
    raise MalformedValue(f"{short(value)} is not {what}")


def _optional(one: Coder) -> Coder:
    write, read = one
    return Coder(
        None if write is None else lambda value: None if value is None else write(value),
        lambda value: None if value is None else read(value),
    )


def _list(one: Coder) -> Coder:
    write, read = one

    def read_all(value: object) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > MAX_ITEMS:
            _wrong(f"a list of up to {MAX_ITEMS} values", value)
        return tuple([read(each) for each in cast("list[Any]", value)])

    return Coder(None if write is None else lambda value: [write(each) for each in value], read_all)


def _row(ones: list[Coder]) -> Coder:
    """A list in which each position has a type of its own."""
    is_plain = all(one.write is None for one in ones)

    def write(value: tuple[Any, ...]) -> list[Any]:
        return [each if one.write is None else one.write(each) for one, each in zip(ones, value, strict=True)]

    def read(value: object) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(ones):
            _wrong(f"a list of {len(ones)} values", value)
        return tuple([one.read(each) for one, each in zip(ones, cast("list[Any]", value), strict=True)])

    return Coder(None if is_plain else write, read)


def _one_of(kinds: list[type]) -> Coder:
    """Values of several classes, told apart by a field `op`."""
    by_name = {kind.__name__: coder(kind) for kind in kinds}

    def write(value: object) -> dict[str, Any]:
        name = type(value).__name__
        made = cast("Callable[[Any], dict[str, Any]]", by_name[name].write)
        return {"op": name, **made(value)}

    def read(value: object) -> object:
        if type(value) is not dict:
            _wrong("an object", value)
        given = dict(cast("dict[str, Any]", value))
        name = given.pop("op", None)
        if type(name) is not str or name not in by_name:
            raise MalformedValue(f"{short(name)} is none of {', '.join(by_name)}")
        return by_name[name].read(given)

    return Coder(write, read)


def _object(kind: type) -> Coder:
    """A dataclass or named tuple. Fields that have their defaults are left out."""
    hints, usual = get_type_hints(kind), defaults_of(kind)
    coders = {name: coder(hints[name]) for name in usual}
    parts = [(name, one.write, usual[name]) for name, one in coders.items()]

    def write(value: Any) -> dict[str, Any]:  # noqa: ANN401 - of the class
        written = {}
        for name, change, default in parts:
            each = getattr(value, name)
            if each != default:
                written[name] = each if change is None else change(each)
        return written

    def read(value: object) -> Any:  # noqa: ANN401 - of the class
        if type(value) is not dict:
            _wrong(f"an object of {kind.__name__}", value)
        given = {}
        for name, each in cast("dict[str, Any]", value).items():
            if name not in coders:
                raise MalformedValue(f"{kind.__name__} has no field {short(name)}")
            given[name] = coders[name].read(each)
        try:
            return kind(**given)
        except TypeError:
            missing = [name for name, default in usual.items() if default is MISSING and name not in given]
            raise MalformedValue(f"{kind.__name__} lacks {', '.join(missing)}") from None

    return Coder(write, read)


def defaults_of(kind: type) -> dict[str, Any]:
    """The fields of a class with their defaults; MISSING: there is none."""
    if is_dataclass(kind):
        return {each.name: each.default for each in fields(kind)}
    defaults = kind._field_defaults  # type: ignore[attr-defined] # it is a named tuple
    return {name: defaults.get(name, MISSING) for name in kind._fields}  # type: ignore[attr-defined]
