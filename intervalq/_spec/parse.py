"""Parses names, durations and rates as people write them into the values of the rules, with clear errors."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from intervalq.errors import InvalidInterval, InvalidName

MICROSECOND = 1
SECOND = 1_000_000
YEAR = 366 * 86_400 * SECOND

type_of_duration = "a number of seconds, a timedelta, or text such as 200ms, 1.5s, 2m, 1h, 1d"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})\s*(us|ms|s|m|h|d|)", re.ASCII)
_RATE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*/\s*(?:(\d{1,9})\s*)?(us|ms|s|m|h|d)", re.ASCII)
_UNITS = {
    "us": 1,
    "ms": 1_000,
    "": SECOND,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3_600 * SECOND,
    "d": 86_400 * SECOND,
}


def name(value: object, *, what: str = "queue name") -> str:
    """A name, unchanged; `what` says of what, for the error.

    Raises:
        InvalidName: it is not a string, or not in `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`. The alphabet is this
            small so that a name is safe as a key, a path, a subject, a label and log text.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidName(value, what=what)
    return value


def duration(value: object, *, least: int = 0, most: int = YEAR, what: str = "the duration") -> int:
    """A duration in whole microseconds, rounded up so that no rate is ever exceeded by rounding.

    Args:
        value: seconds (int or float), a timedelta, or text with a unit of us, ms, s, m, h or d;
            text without a unit is seconds.
        least, most: the range, in microseconds.
        what: the name of the value in errors.

    Raises:
        InvalidInterval: not a duration (a bool isn't one), NaN, infinite, or out of the range.
    """
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise InvalidInterval(value, f"is not a duration: give {what} as {type_of_duration}")
        micros = _micros(match[1], _UNITS[match[2]])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInterval(value, f"is not a duration: give {what} as {type_of_duration}")
        # repr: 0.1 means a tenth of a second, not the nearest double above it, which would round up
        is_float = isinstance(value, float)
        micros = _micros(float.__repr__(value), SECOND) if is_float else int(value) * SECOND
    else:
        raise InvalidInterval(value, f"is not a duration: give {what} as {type_of_duration}")
    if not least <= micros <= most:
        raise InvalidInterval(value, f"is out of range: {what} must be from {text(least)} to {text(most)}")
    return micros


def interval(value: object) -> int:
    """An interval between starts, in microseconds: from 1 microsecond to a year.

    Raises:
        InvalidInterval: it is not a duration, or out of range.
    """
    if isinstance(value, str) and re.search(r"/|\bper\b", value):
        raise InvalidInterval(value, "is a rate, not an interval: give it as the rate instead")
    return duration(value, least=MICROSECOND, what="interval")


def rate(value: object) -> int:
    """The interval, in microseconds, of a rate such as `5000/h`, `10/s` or `100/15m`; rounded up.

    Raises:
        InvalidInterval: not a rate, or its interval is out of range.
    """
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidInterval(value, "is not a rate: give text such as 10/s, 5000/h or 100/15m")
    starts, per = exact(match[1])
    if starts == 0:
        raise InvalidInterval(value, "is not a rate: it must allow some starts; use pause() to stop a queue")
    micros = -(-int(match[2] or 1) * _UNITS[match[3]] * per // starts)
    if not MICROSECOND <= micros <= YEAR:
        raise InvalidInterval(value, f"is out of range: one start per {text(1)} to {text(YEAR)}")
    return micros


def exact(number: str) -> tuple[int, int]:
    """The numerator and denominator of a decimal number, which may have an exponent."""
    digits, _, exponent = number.partition("e")
    whole, _, part = digits.partition(".")
    places = len(part) - int(exponent or 0)
    return int(whole + part) * 10 ** max(0, -places), 10 ** max(0, places)


def _micros(number: str, unit: int) -> int:
    """A number of units, of `unit` microseconds each, in microseconds; rounded up."""
    many, per = exact(number)
    return -(-many * unit // per)


def text(micros: int) -> str:
    """A duration in the form that people write: `200ms`, `1.5s`, `2h`; `duration(text(x)) == x`."""
    for unit in ("d", "h", "m"):
        if micros and micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    for unit in ("s", "ms"):
        if micros >= _UNITS[unit]:
            whole, rest = divmod(micros, _UNITS[unit])
            digits = len(str(_UNITS[unit])) - 1
            return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") + unit
    return f"{micros}us" if micros else "0s"
