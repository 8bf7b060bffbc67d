"""One table of a spec: fields are read by name and type, and unknown fields are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from intervalq.errors import IntervalqError, InvalidOption, MissingExtra, short

T = TypeVar("T")

_KINDS: Final = {str: "text", int: "a whole number", dict: "a table", list: "a list"}


class Table:
    """A table of a TOML file. Every error names the file, the table, the field, and the remedy."""

    def __init__(self, file: str, name: str, content: object, fields: Iterable[str]) -> None:
        """`fields`: all known fields.

        Raises:
            InvalidOption: `content` is not a table, or has an unknown field.
        """
        self._file, self._name = file, name
        known = list(fields)
        if not isinstance(content, dict):
            raise InvalidOption(f"{file}: [{name}] must be a table: write its fields under a line [{name}]")
        self._content: dict[str, Any] = content
        for field in content:
            if field not in known:
                raise self.wrong(field, f"is not known; the fields of [{name}] are {', '.join(known)}")

    def __contains__(self, field: str) -> bool:
        return field in self._content

    def wrong(self, field: str, why: str) -> InvalidOption:
        """An error about a field."""
        return InvalidOption(f"{self._file}: [{self._name}] {field} {why}")

    def text(self, field: str, remedy: str) -> str:
        """A required text.

        Raises:
            InvalidOption: it is missing, or something else.
        """
        value = self._get(field, str)
        if value is None or not value.strip():
            raise self.wrong(field, f"is missing: {remedy}")
        return value

    def maybe(self, field: str) -> str | None:
        """An optional text, or None.

        Raises:
            InvalidOption: it is something else, or empty.
        """
        return self.text(field, "give some text, or leave the field out") if field in self else None

    def whole(self, field: str) -> int | None:
        """An optional whole number, or None.

        Raises:
            InvalidOption: it is something else.
        """
        return self._get(field, int)

    def flag(self, field: str) -> bool:
        """An optional `true` or `false`; without it, false.

        Raises:
            InvalidOption: it is something else.
        """
        value = self._content.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(field, f"= {short(value)} must be true or false")
        return value

    def one_of(self, field: str, choices: tuple[str, ...]) -> str | None:
        """An optional choice of some words, or None.

        Raises:
            InvalidOption: it is something else.
        """
        value = self._get(field, str)
        if value is not None and value not in choices:
            raise self.wrong(field, f"= {short(value)} must be one of {', '.join(choices)}")
        return value

    def texts(self, field: str) -> dict[str, str]:
        """An optional table of texts by name; empty without it.

        Raises:
            InvalidOption: it is something else.
        """
        table = self._get(field, dict) or {}
        for name, value in table.items():
            if not isinstance(value, str) or not value.strip():
                raise InvalidOption(
                    f"{self._file}: [{self._name}.{field}] {name} = {short(value)} must be text"
                )
        return table

    def names(self, field: str) -> tuple[str, ...] | None:
        """An optional list of texts, or None.

        Raises:
            InvalidOption: it is something else, or empty.
        """
        value = self._get(field, list)
        if value is None:
            return None
        if not value or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.wrong(field, f"= {short(value)} must be a list of texts")
        return tuple(value)

    def any(self, field: str) -> Any:  # noqa: ANN401 - a duration is a number or text, which others check
        """A field as it is, or None."""
        return self._content.get(field)

    def checked(self, field: str, make: Callable[[], T]) -> T:
        """The result of a function of a field; its error is raised as one of the field.

        Raises:
            InvalidOption: the function refuses the field.
            MissingExtra: a part isn't installed.
        """
        try:
            return make()
        except MissingExtra:
            raise
        except (IntervalqError, ValueError, TypeError) as error:
            raise self.wrong(field, f"is refused: {error}") from None

    def _get(self, field: str, kind: type[T]) -> T | None:
        value = self._content.get(field)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(field, f"= {short(value)} must be {_KINDS[kind]}")
        return value
