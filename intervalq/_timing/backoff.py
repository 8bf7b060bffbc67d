"""Backoff after a failed job, and the pause that a server requests with Retry-After."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_TOO_MANY, _UNAVAILABLE = 429, 503

_MAX_WAIT: Final = 86_400.0
"""A Retry-After of more than a day counts as a day: nobody wants a queue that stands still for a year."""


def backoff(attempt: int, first: float, most: float = 60.0) -> float:
    """Seconds to wait after the given failed attempt (the first is 1).

    Doubles from `first` seconds up to `most`, with full jitter: a random time between 0 and that, so that
    jobs which failed together don't come back together (Brooker, "Exponential Backoff And Jitter", AWS 2015).
    """
    return random.uniform(0, min(most, first * 2 ** min(attempt - 1, 32)))  # noqa: S311 - no secret


def retry_after(error: BaseException) -> float | None:
    """Seconds that a server asked to wait, read from the exception of an HTTP client; None: it didn't.

    Knows httpx and requests (`error.response`) and aiohttp (`error.status` and `error.headers`), with status
    429 or 503 and a Retry-After of seconds or a date (RFC 9110, section 10.2.3).
    """
    source = getattr(error, "response", None)
    source = error if source is None else source
    status = getattr(source, "status_code", getattr(source, "status", None))
    headers = getattr(source, "headers", None)
    if status not in (_TOO_MANY, _UNAVAILABLE) or headers is None:
        return None
    value = headers.get("Retry-After") or headers.get("retry-after")
    if isinstance(value, int | float):  # from a client that parses headers itself
        return _wait(value)
    return _parsed(value.strip()) if isinstance(value, str) else None


def _parsed(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        seconds = (date - datetime.now(UTC)).total_seconds()
    return _wait(seconds)


def _wait(seconds: float) -> float | None:
    return float(min(seconds, _MAX_WAIT)) if 0 < seconds < math.inf else None
