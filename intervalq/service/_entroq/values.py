"""Values of tasks, as the JSON text of a store and as messages of the protocol.

protobuf's own conversions take three times as long, which a call would notice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.struct_pb2 import Value

from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._claim.values import depth, encode

M = TypeVar("M")

DEEPEST: Final = 30
"""The deepest nesting of lists and dicts that messages of this protocol may have: each takes up to three."""
MAX_VALUES: Final = 200_000
"""The maximum number of values in a request, with those in lists and dicts: each takes a microsecond."""
MAX_SHOWN_VALUES: Final = 1_000_000
"""The same for an answer: each takes 120 bytes and two microseconds there."""
_EXACT: Final = 2**53
"""Up to here the protocol's numbers are exact."""


class TooManyValues(Refusal):
    """An answer would have too many values."""

    def __init__(self) -> None:
        super().__init__(
            Code.RESOURCE_EXHAUSTED,
            f"an answer has at most {MAX_SHOWN_VALUES:,} values, with those in lists and dicts: give a lower "
            "limit, or list tasks as a stream",
        )


class Budget:
    """How many values an answer may still have."""

    def __init__(self) -> None:
        self._left = MAX_SHOWN_VALUES

    def take(self, count: int) -> None:
        """Note values.

        Raises:
            TooManyValues: they are too many together.
        """
        self._left -= count
        if self._left < 0:
            raise TooManyValues


def fitting(show: Callable[..., M]) -> M:
    """What `show(value=True)` gives; if there are too many values, `show(value=False)`, without them."""
    try:
        return show(value=True)
    except TooManyValues:
        return show(value=False)


def value_of(text: str, budget: Budget) -> Value:
    """JSON text as a message. Whole numbers above 2**53 lose digits, because the protocol has no others.

    Raises:
        Refusal: it is nested deeper than the protocol allows, or has numbers that are too large for it.
        TooManyValues: there are too many in the answer.
    """
    what = "this task's value can't be shown in EntroQ's protocol"
    if text[:1] in ("[", "{") and depth(text) > DEEPEST:
        raise Refusal(Code.UNIMPLEMENTED, f"{what}: it is nested deeper than {DEEPEST}")
    value = Value()
    try:
        _set(value, json.loads(text), budget)
    except (ValueError, OverflowError) as error:
        raise Refusal(Code.UNIMPLEMENTED, f"{what}: {error}") from error
    return value


def _set(value: Value, read: Any, budget: Budget) -> None:  # noqa: ANN401 - any JSON
    if read is None:
        value.null_value = 0  # type: ignore[assignment] # an enum's number
    elif isinstance(read, bool):
        value.bool_value = read
    elif isinstance(read, str):
        value.string_value = read
    elif isinstance(read, int | float):
        if not math.isfinite(read):
            raise ValueError(f"{read} is not a number of JSON")
        value.number_value = read
    elif isinstance(read, list):
        budget.take(len(read))
        value.list_value.Clear()  # so that it is set, if it is empty
        add = value.list_value.values.add
        for one in read:
            _set(add(), one, budget)
    else:
        budget.take(len(read))
        value.struct_value.Clear()
        fields = value.struct_value.fields
        for name, one in read.items():
            _set(fields[name], one, budget)


class Values:
    """Reads the values of one request, which has at most `MAX_VALUES`."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def json_of(self, value: Value) -> str:
        """A message as JSON text, for a task. A value that isn't set is null.

        Raises:
            Refusal: the request has too many.
            InvalidTask: it is too long, or has a number that JSON doesn't have.
        """
        return encode(self._plain(value))

    def _plain(self, value: Value) -> Any:  # noqa: ANN401 - any JSON
        kind = value.WhichOneof("kind")
        if kind == "number_value":
            return whole_number(value.number_value)
        if kind == "string_value":
            return value.string_value
        if kind == "struct_value":
            fields = value.struct_value.fields
            self._take(len(fields))
            return {name: self._plain(one) for name, one in fields.items()}
        if kind == "list_value":
            values = value.list_value.values
            self._take(len(values))
            return [self._plain(one) for one in values]
        return value.bool_value if kind == "bool_value" else None

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Refusal(
                Code.INVALID_ARGUMENT, f"a request has at most {MAX_VALUES:,} values: send fewer at once"
            )


def whole_number(number: float) -> float:
    """A number of the protocol, all of which have a fraction: whole ones become int."""
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number
