"""The per-minute limits in the headers of OpenAI-style APIs, and a queue's limits after adopting them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from intervalq._spec.limits import Limit
from intervalq._spec.record import STARTS

_HEADERS: Final = {STARTS: "requests", "tokens": "tokens"}

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART: Final = r"(\d{1,12}(?:\.\d{1,12})?)(ns|us|ms|s|m|h|d|$)"
_TIME: Final = re.compile(f"(?:{_PART})+", re.ASCII)


def named_limits(headers: Mapping[str, str]) -> dict[str, int]:
    """The number of each unit that the headers allow per minute."""
    named = {unit: headers.get(f"x-ratelimit-limit-{name}", "") for unit, name in _HEADERS.items()}
    return {
        unit: int(most)
        for unit, most in named.items()
        if re.fullmatch(r"\d{1,12}", most, re.ASCII) and int(most)
        if _within_a_minute(headers.get(f"x-ratelimit-reset-{_HEADERS[unit]}", "0"))
    }


def _within_a_minute(reset: str) -> bool:
    """Whether a time such as `6m0s`, `120ms` or `59.5` is at most a minute.

    A limit that takes longer to refill isn't a limit per minute.
    """
    if not _TIME.fullmatch(reset.strip()):
        return False
    return sum(float(much) * _SECONDS[unit] for much, unit in re.findall(_PART, reset.strip())) <= 60


def merged(limits: Sequence[Limit], named: Mapping[str, int]) -> list[Limit]:
    """The limits, with the numbers that the headers name for those per minute."""
    return [
        replace(each, most=named[each.unit]) if each.unit in named and each.window == 60 else each
        for each in limits
    ]
