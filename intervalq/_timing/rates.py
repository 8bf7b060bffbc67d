"""Rates as people write them: `10/s`, `100/minute`, `5 per hour`, `30_000/min`, or a number a second."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from intervalq._spec import parse
from intervalq.errors import InvalidInterval

_FORMS: Final = "a number of starts a second, or text such as 10/s, 5000/h, 100/15m, 100/minute or 5 per hour"

_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.\d+)?"
_RATE: Final = re.compile(rf"({_NUMBER})(?:\s*(?:/|per\b)\s*(\d*)\s*([a-z]+))?", re.ASCII)
_UNITS: Final = {
    "us": ("us", "microsecond", "microseconds"),
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hr", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_SHORT: Final = {name: unit for unit, names in _UNITS.items() for name in names}


def rate(value: object) -> int:
    """The interval, in microseconds, of a rate; rounded up.

    Raises:
        InvalidInterval: not a rate, or its interval is out of range.
    """
    text = value.strip() if isinstance(value, str) else ""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
        text = f"{Decimal(repr(value)):f}"
    found = _RATE.fullmatch(text) if len(text) < 100 else None
    if found is None or (unit := _SHORT.get(found[3] or "s")) is None:
        raise InvalidInterval(value, f"is not a rate: give {_FORMS}")
    return parse.rate(f"{re.sub('[_,]', '', found[1])}/{found[2] or ''}{unit}")
