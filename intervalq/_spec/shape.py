"""Shapes: types and ranges of tuples from a store, checked before the tuples are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import NoneType
from typing import Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from intervalq._spec.record import FOREVER, BadRecord
from intervalq.errors import short

T = TypeVar("T", bound=tuple[Any, ...])
V = TypeVar("V")


class Shape(Generic[T]):
    """The types of a named tuple's fields; whole numbers have the same bounds as times."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._what = what
        hints = get_type_hints(kind)
        self._names: Final = tuple(kind._fields)  # type: ignore[attr-defined]
        self._words = {
            place: frozenset(get_args(hints[name]))
            for place, name in enumerate(self._names)
            if get_origin(hints[name]) is Literal
        }
        types = [_types_of(hints[name]) for name in self._names]
        self._fit = frozenset(product(*types))
        self._numbers = [place for place, allowed in enumerate(types) if int in allowed]

    def check(self, made: T) -> T:
        """The tuple, unchanged.

        Raises:
            BadRecord: it has another shape; the message says which field.
        """
        if tuple(map(type, made)) not in self._fit:
            raise BadRecord(self._why(made))
        for place in self._numbers:
            number = made[place]
            if number is not None and not -FOREVER <= number <= FOREVER:
                raise BadRecord(f"{self._name(made)} has {self._names[place]!r} out of range")
        for place, words in self._words.items():
            if made[place] not in words:
                raise BadRecord(f"{self._name(made)} has {self._names[place]!r} {short(made[place])}")
        return made

    def _name(self, made: Sequence[Any]) -> str:
        return f"{self._what} {short(made[0])}" if made else self._what

    def _why(self, made: Sequence[Any]) -> str:
        if len(made) != len(self._names):
            return f"{self._name(made)} has {len(made)} fields"
        for place, (name, value) in enumerate(zip(self._names, made, strict=True)):
            if type(value) not in {shape[place] for shape in self._fit}:
                return f"{self._name(made)} has {name!r} of type {type(value).__name__}"
        return f"{self._name(made)} is broken"


_SHAPES: Final[dict[type, Shape[Any]]] = {}


def shaped(what: str) -> Callable[[type[T]], type[T]]:
    """Let `sound` check named tuples of the decorated type; in errors, one is `what` and its first field."""

    def add(kind: type[T]) -> type[T]:
        _SHAPES[kind] = Shape(kind, what)
        return kind

    return add


def sound(made: T) -> T:
    """Check a value that a store has read, and return it unchanged.

    Raises:
        BadRecord: a field has a wrong type or is out of range.
    """
    found: T = _SHAPES[type(made)].check(made)
    return found


def typed(kind: type[V], value: object, what: str) -> V:
    """A value from a store that must be of this type, unchanged.

    Raises:
        BadRecord: it isn't.
    """
    if type(value) is not kind:
        raise BadRecord(f"{what} is of type {type(value).__name__}")
    return value


def _types_of(hint: Any) -> tuple[type, ...]:  # noqa: ANN401 - of any field
    if get_origin(hint) is Literal:
        return (str,)
    parts = get_args(hint)
    return tuple(parts) if NoneType in parts else (hint,)
