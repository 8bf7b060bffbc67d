"""JSON as its standard has it: without NaN and the infinities, which Python's reader takes, too."""

from __future__ import annotations

import json
import math
from typing import Final


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is out of range")
    return number


# One for all: to make another for each text takes longer than to read a short one.
_DECODER: Final = json.JSONDecoder(parse_constant=_constant, parse_float=_finite)


def loads(text: str) -> object:
    """The value of JSON text.

    Raises:
        ValueError: it is no JSON, or has a number that is out of range.
        RecursionError: it is nested too deeply.
        TypeError: it is no text.
    """
    return _DECODER.decode(text)
