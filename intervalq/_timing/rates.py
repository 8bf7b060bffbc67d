"""Rates as people write them: `10/s`, `100/minute`, `5 per hour`, `30_000/min`, or a number a second."""

from __future__ import annotations

import re
from typing import Final

from intervalq._spec import parse
from intervalq._spec.auto import MAX_INTERVAL, Auto
from intervalq.errors import InvalidInterval, InvalidOption, short

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


AUTO: Final = "auto"
"""The rate that finds the server's limit on its own."""


def bounds(given: object, floor: object, ceiling: object) -> Auto | None:
    """The bounds of an automatic interval; None: it isn't automatic.

    Raises:
        InvalidOption: one of the bounds is missing or out of range, or they contradict each other, or there
            are bounds for a rate that isn't automatic.
    """
    named = ", ".join(
        f"{name}={short(value)}"
        for name, value in (("floor", floor), ("ceiling", ceiling))
        if value is not None
    )
    if given != AUTO:
        if named:
            raise InvalidOption(f"{named} is for rate='auto' only: a fixed rate has no bounds")
        return None
    if floor is None or ceiling is None:
        raise InvalidOption(
            "rate='auto' needs floor= and ceiling=, for example floor='1/s', ceiling='500/s': the rate at "
            "which to go on if the server refuses everything, and the highest if it refuses nothing"
        )
    slowest, fastest = rate(floor), rate(ceiling)
    if slowest > MAX_INTERVAL:
        raise InvalidOption(f"floor={short(floor)} is too low for rate='auto': give at least 1/d")
    if fastest > slowest:
        raise InvalidOption(f"{named}: the floor must not be above the ceiling")
    return Auto(slowest, fastest)


def rate(value: object) -> int:
    """The interval, in microseconds, of a rate; rounded up.

    Raises:
        InvalidInterval: not a rate, or its interval is out of range.
    """
    text = value.strip() if isinstance(value, str) else ""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
        # Subclasses, such as those of NumPy, have other texts.
        many, per = parse.exact(float.__repr__(value) if isinstance(value, float) else str(int(value)))
        places = len(str(per)) - 1
        text = f"{many // per}.{many % per:0{places}d}" if places else str(many)
    found = _RATE.fullmatch(text) if len(text) < 100 else None
    if found is None or (unit := _SHORT.get(found[3] or "s")) is None:
        raise InvalidInterval(value, f"is not a rate: give {_FORMS}")
    return parse.rate(f"{re.sub('[_,]', '', found[1])}/{found[2] or ''}{unit}")
