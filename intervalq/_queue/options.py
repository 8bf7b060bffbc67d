"""A handle's settings: checked once, immutable, and all that is pickled of a handle."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import timedelta

from intervalq._spec import parse
from intervalq.errors import InvalidInterval, InvalidOption, short
from intervalq.rules import FOREVER, Settings

Duration = float | timedelta | str
"""Seconds, a timedelta, or text such as `200ms`, `1.5s`, `2m`, `1h`."""

_MAX = 1_000_000
"""The largest count that an option accepts: more is a mistake, not a setting."""

MAX_COST = 1_000_000_000
"""The most slots that one job may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See `IntervalQueue`. Durations are in microseconds here, waits in seconds."""

    name: str
    key: str | None
    store_url: str | None = field(repr=False)  # with its secrets
    interval: int | None
    burst: int
    max_running: int
    lookahead: int | None
    tolerance: int | None
    timeout: float | None
    retries: int
    backoff: float
    retry_after: bool
    strict: bool
    precision: float | None

    @property
    def record(self) -> str:
        """The queue's name in the store."""
        return self.name if self.key is None else f"{self.name}:{self.key}"

    @property
    def settings(self) -> Settings | None:
        """The settings with which to create the record; None: the queue must exist."""
        if self.interval is None:
            return None
        return Settings(
            self.interval, self.burst, self.max_running, self.tolerance or 0, ephemeral=self.key is not None
        )


def options(
    name: str,
    *,
    interval: Duration | None,
    rate: str | None,
    store_url: str | None,
    burst: int,
    lookahead: int | None,
    tolerance: Duration | None,
    max_running: int | None,
    timeout: Duration | None,
    retries: int,
    backoff: Duration,
    retry_after: bool,
    strict: bool = False,
    precision: float | None = None,
) -> Options:
    """The settings, checked.

    Raises:
        InvalidName, InvalidInterval: see these classes.
        InvalidOption: an option is out of range, or two of them contradict each other.
    """
    burst = whole("burst", burst, 1)
    if interval is not None and rate is not None:
        raise InvalidOption(
            f"give interval={short(interval)} or rate={short(rate)}, not both: one follows from the other"
        )
    micros = None
    if interval is not None:
        micros = parse.interval(interval)
    elif rate is not None:
        micros = parse.rate(rate)
    elif burst != 1 or max_running is not None or tolerance is not None:
        raise InvalidOption(
            "burst, max_running and tolerance need interval or rate: without these, the queue's own are used"
        )
    check_burst(micros, burst)
    tolerated = 0 if tolerance is None else parse.duration(tolerance, least=1, what="tolerance")
    if micros is not None and tolerated >= micros:
        raise InvalidInterval(
            tolerance, f"is too much tolerance: it must be less than the interval of {parse.text(micros)}"
        )
    return Options(
        name=parse.name(name),
        key=None,
        store_url=store_url,
        interval=micros,
        burst=burst,
        max_running=0 if max_running is None else whole("max_running", max_running, 1),
        lookahead=None if lookahead is None else whole("lookahead", lookahead, 1),
        tolerance=tolerated,
        timeout=wait_of(timeout),
        retries=whole("retries", retries, 0),
        backoff=parse.duration(backoff, what="backoff") / 1e6,
        retry_after=retry_after,
        strict=strict,
        precision=_share(precision),
    )


def _share(value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidOption(f"precision={short(value)} must be a share of a processor, from 0 to 1")
    return float(value)


def check_cost(interval: int | None, cost: object) -> None:
    """Refuse a cost that takes longer than any store can represent.

    Raises:
        InvalidOption: `cost` intervals from now on end beyond 2**53 microseconds since 1970.
    """
    if interval is None or not isinstance(cost, int) or cost > MAX_COST:  # these are checked elsewhere
        return
    if interval * cost > FOREVER - time.time_ns() // 1_000:
        raise InvalidOption(
            f"cost={cost} intervals of {parse.text(interval)} are more than 200 years: use a smaller cost"
        )


def check_burst(interval: int | None, burst: int) -> None:
    """Refuse a burst credit that is too large for a store.

    Raises:
        InvalidOption: `burst` intervals are longer than a year.
    """
    if interval is not None and interval * burst > parse.YEAR:
        raise InvalidOption(
            f"burst={burst} intervals of {parse.text(interval)} are more than a year: use a smaller burst"
        )


def whole(what: str, value: object, least: int, most: int = _MAX) -> int:
    """A whole number in a range, unchanged.

    Raises:
        InvalidOption: `value` is not a whole number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOption(f"{what}={short(value)} must be a whole number from {least} to {most}")
    return value


def wait_of(value: Duration | None) -> float | None:
    """A time to wait, in seconds; None and infinity mean no limit."""
    if value is None or (isinstance(value, float) and math.isinf(value) and value > 0):
        return None
    return parse.duration(value, what="timeout") / 1e6
