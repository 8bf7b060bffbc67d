"""How long a server asks its clients to wait, read from an error or a response of an HTTP client."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from intervalq._spec import parse

RetryAfter: TypeAlias = bool | Callable[[Any], float | timedelta | str | None]
"""See `IntervalQueue`: whether to heed what errors carry, or a function of an error or a result."""

_REFUSALS: Final = (429, 503)

_MAX_WAIT: Final = 86_400.0
"""A longer wait counts as a day, so that a mistaken header can't stop a queue for a year."""

_EPOCH: Final = 1_000_000_000
"""A reset time from here on is an instant, in seconds since 1970; a smaller one is a number of seconds."""

_EPOCH_MS: Final = 100_000_000_000
"""A reset time from here on is an instant in milliseconds: in seconds, it would lie in the year 5138."""

_MAX_CAUSES: Final = 100
"""How many causes of an error are examined."""

_RESETS: Final = (
    "RateLimit-Reset",
    "X-RateLimit-Reset-After",
    "X-RateLimit-Reset",
    "X-Rate-Limit-Reset",
)
"""Headers with the time until a limit allows calls again, or with that instant."""


def wait_after_error(rule: RetryAfter, error: BaseException, *, bare: bool = False) -> float | None:
    """Seconds to cool down after a job raised this error; None: there is nothing to heed.

    With `bare`, 0 is a refusal that requests no wait.
    """
    if isinstance(rule, bool):
        return requested_wait(error, bare=bare) if rule else None
    try:
        return _checked(rule(error), bare=bare)
    except Exception as mistake:
        raise mistake from error


def wait_after_result(rule: RetryAfter, result: object, *, bare: bool = False) -> float | None:
    """Seconds to cool down after a job returned this, if `rule` is a function. For `bare`, see above."""
    return None if isinstance(rule, bool) else _checked(rule(result), bare=bare)


def requested_wait(error: BaseException, *, bare: bool = False) -> float | None:
    """The longest wait that a server requested by this error, or by one behind it; None: none was requested.

    Knows httpx and requests (`error.response`) and aiohttp (`error.status` and `error.headers`). The errors
    behind an error are its causes, the errors during whose handling it was raised, and the members of a
    group: many clients wrap errors in their own.
    """
    waits = [wait for each in _with_causes(error) if (wait := _wait_of(each, bare=bare)) is not None]
    return max(waits, default=None)


def wait_in_response(
    status: object,
    headers: Any,  # noqa: ANN401 - any mapping of headers
    *,
    bare: bool = False,
) -> float | None:
    """The seconds that a response requests to wait: with status 429 or 503, by one of its headers.

    These are `retry-after-ms`, Retry-After (seconds or a date, RFC 9110, section 10.2.3), RateLimit
    (draft-ietf-httpapi-ratelimit-headers), and the usual older reset headers. With `bare`, a refusal without
    any of them requests 0 seconds.
    """
    if status not in _REFUSALS:
        return None
    wait = _wait_in(headers) if hasattr(headers, "get") else None
    return 0.0 if wait is None and bare else wait


def _wait_in(headers: Any) -> float | None:  # noqa: ANN401 - any mapping of headers
    if (wait := _number(_header(headers, "Retry-After-Ms"))) is not None:
        return _wait(wait / 1_000)
    value = _header(headers, "Retry-After")
    if (wait := _number(value)) is not None:
        return _wait(wait)
    if isinstance(value, str) and (wait := _until_date(value.strip())) is not None:
        return wait
    return _until_reset(headers)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left and len(seen) < _MAX_CAUSES:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left.append(each.__cause__ if each.__suppress_context__ else each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions


def _wait_of(error: BaseException, *, bare: bool) -> float | None:
    source = getattr(error, "response", None)
    source = error if source is None else source
    status = getattr(source, "status_code", getattr(source, "status", None))
    return wait_in_response(status, getattr(source, "headers", None), bare=bare)


def _header(headers: Any, name: str) -> Any:  # noqa: ANN401 - as the client has parsed it
    found = headers.get(name)
    return headers.get(name.lower()) if found is None else found


def _number(value: object) -> float | None:
    """A number, or text of one; some clients parse headers themselves."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _until_date(value: str) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed, and large

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return _wait((date - datetime.now(UTC)).total_seconds())


def _until_reset(headers: Any) -> float | None:  # noqa: ANN401 - any mapping of headers
    limits = _header(headers, "RateLimit")
    if isinstance(limits, str):
        spent = [part for part in limits.split(",") if re.search(r";\s*r=0\s*(?:;|$)", part)]
        waits = [int(found[1]) for part in spent if (found := re.search(r";\s*t=(\d{1,9})\b", part))]
        if waits:
            return _wait(max(waits))
    for name in _RESETS:
        if (value := _number(_header(headers, name))) is not None:
            value = value / 1_000 if value >= _EPOCH_MS else value
            return _wait(value - time.time() if value >= _EPOCH else value)
    return None


def _checked(wait: float | timedelta | str | None, *, bare: bool) -> float | None:
    """What a user's function returned, in seconds."""
    if isinstance(wait, timedelta):
        wait = wait.total_seconds()
    if wait is None:
        return None
    if isinstance(wait, int | float) and wait <= 0:
        return 0.0 if bare else None
    if isinstance(wait, int | float) and wait > _MAX_WAIT:
        return _MAX_WAIT
    asked = _wait(parse.duration(wait, what="retry_after") / 1e6)
    return 0.0 if asked is None and bare else asked


def _wait(seconds: float) -> float | None:
    return float(min(seconds, _MAX_WAIT)) if 0 < seconds < math.inf else None
