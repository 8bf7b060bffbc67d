"""A handle's settings: checked once, immutable, and all that is pickled of a handle."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar, get_args

from intervalq._keys.each import each_of, needs_key, pace_of
from intervalq._spec import parse
from intervalq._spec.limits import Limit as PublicLimit
from intervalq._spec.limits import Limits, rules_of, text
from intervalq._spec.mismatch import OnMismatch
from intervalq._spec.record import NO_PACE
from intervalq._timing import rates
from intervalq._timing.retry_after import RetryAfter
from intervalq.errors import InvalidInterval, InvalidOption, short
from intervalq.rules import FOREVER, STARTS, Auto, Limit, Settings, Slot

if TYPE_CHECKING:
    from intervalq._hours.window import Hours

R = TypeVar("R")

Duration = float | timedelta | str
"""Seconds, a timedelta, or text such as `200ms`, `1.5s`, `2m`, `1h`."""

Rate = float | str
"""Starts a second, or text such as `10/s`, `100/minute`, `5 per hour`; or `auto`, see `IntervalQueue`."""

_MAX = 1_000_000
"""The largest count that an option accepts: more is a mistake, not a setting."""

Each = Rate | Iterable[float | str | PublicLimit]
"""The rate of each key, or a list of a rate and limits: see `IntervalQueue`."""

Cost = int | Mapping[str, int]
"""What a job takes: slots, or units of limits."""

Settle: TypeAlias = Callable[[R], Mapping[str, int] | None]
"""Computes from a job's result what it took of limits, by unit; None: the estimate in its cost counts."""

_LATE = 100_000
"""With limits but no interval: how late a job may begin, in microseconds; in shorter windows, a 500th of
the shortest one. It lengthens each window by twice as much."""

MAX_COST = 1_000_000_000
"""The most slots that one job may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See `IntervalQueue`. Durations are in microseconds here, waits in seconds."""

    name: str
    key: str | None
    """In the form that the name of the record has: see `intervalq._keys.names`."""
    store_url: str | None = field(repr=False)  # with its secrets
    interval: int | None
    """With an automatic rate: the longest interval."""
    burst: int
    max_running: int
    lookahead: int | None
    tolerance: int | None
    timeout: float | None
    retries: int
    backoff: float
    retry_after: RetryAfter
    strict: bool
    precision: float | None
    limits: tuple[Limit, ...] = ()
    counted: tuple[str, ...] = ()
    """The units in whose order jobs list what they take: those of the limits, and of earlier ones."""
    on_mismatch: OnMismatch
    new: bool
    start: bool
    auto: Auto | None = None
    each: int | None = None
    """The interval of each key under the common pace: see `intervalq._keys.each`."""
    own: tuple[Limit, ...] = ()
    """The limits of each key under the common pace."""
    weight: int = 1
    """How many slots this key takes in a turn."""
    log: str | None = None
    """The file of the execution log."""
    hours: Hours | None = None
    """When jobs begin; None: all day."""

    @property
    def is_keyed(self) -> bool:
        """Whether this is the queue of a key under a common pace."""
        return self.each is not None and self.key is not None

    @property
    def record(self) -> str:
        """The queue's name in the store."""
        return self.name if self.key is None else f"{self.name}:{self.key}"

    @property
    def settings(self) -> Settings | None:
        """The settings with which to create the record; None: the queue must exist."""
        if self.each is not None and self.key is not None and (common := self.common) is not None:
            return pace_of(common, self.each, self.own)
        return self.common

    @property
    def common(self) -> Settings | None:
        """The settings, without those that only a key under a common pace has."""
        if self.interval is None:
            return None
        return Settings(
            self.interval,
            self.burst,
            self.max_running,
            self.tolerance or 0,
            ephemeral=self.key is not None and self.each is None,
            limits=self.limits,
            auto=self.auto,
        )

    def units(self, cost: Cost) -> tuple[int, tuple[int, ...]]:
        """How many slots a job takes, and what of each limit; for an empty tuple see `rules.Units`.

        Raises:
            InvalidOption: the cost is out of range, more than a limit allows, or of a unit without a limit,
                also of starts if nothing limits these; or jobs need a key.
        """
        self.check_key()
        if not isinstance(cost, Mapping):
            taken = {STARTS: whole("cost", cost, 1, MAX_COST)}
        else:
            taken = {STARTS: 1, **cost}
            known = {limit.unit for limit in self.all_limits}
            for unit, much in taken.items():
                if unit != STARTS and unit not in known:
                    raise InvalidOption(
                        f"cost={short(cost)}: this handle has no limit of {short(unit)}; its limits: "
                        f"{', '.join(map(text, self.all_limits)) or 'none'}"
                    )
                whole(f"cost of {unit}", much, 1 if unit == STARTS else 0, 10**12)
        for place, limit in enumerate(self.all_limits):
            if taken.get(limit.unit, 0) > limit.most:
                whose = " of each key" if self.is_keyed and place < len(self.own) else ""
                raise InvalidOption(
                    f"cost={short(cost)} is more than the limit of {text(limit)}{whose} ever allows: "
                    "split the job, or raise the limit"
                )
        if taken[STARTS] > 1 and not self._counts_starts:
            raise InvalidOption(
                f"cost={short(cost)} counts starts, which this queue doesn't limit: give it in units of its "
                f"limits ({', '.join(map(text, self.all_limits))}), or the queue a rate or a limit of starts"
            )
        check_cost(self.interval, taken[STARTS])
        if not isinstance(cost, Mapping):
            return taken[STARTS], ()
        return taken[STARTS], tuple([taken.get(unit, 0) for unit in self.counted])

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """All the limits that a job counts in."""
        return (*self.own, *self.limits) if self.is_keyed else self.limits

    @property
    def _counts_starts(self) -> bool:
        settings = self.settings
        has_pace = settings is None or settings.has_pace
        return has_pace or any(limit.unit == STARTS for limit in self.all_limits)

    def check_key(self) -> None:
        """Refuse a job without a key if the queue's jobs need keys.

        Raises:
            InvalidOption: they do, and this isn't the queue of a key.
        """
        if self.each is not None and self.key is None:
            raise needs_key(self.name)

    def beyond(self, slot: Slot, took: Mapping[str, int]) -> dict[str, int]:
        """How much more of each unit a job took than its slot; negative: less.

        Raises:
            InvalidOption: a number is out of range, or a unit has no limit or no estimate.
        """
        known = {limit.unit: slot.cost if limit.unit == STARTS else 0 for limit in self.all_limits}
        if slot.units:
            taken = dict(zip(self.counted, slot.units, strict=False))
            known = {limit.unit: taken.get(limit.unit, 0) for limit in self.all_limits}
        for unit, much in took.items():
            whole(f"settled {unit}", much, 1 if unit == STARTS else 0, 10**12)
            if not known.get(unit):
                raise InvalidOption(
                    f"{short(unit)} can't be settled: give an estimate of it with the job's cost="
                    if unit in known
                    else f"{short(unit)} can't be settled: this handle has no limit of it; its limits: "
                    f"{', '.join(map(text, self.all_limits)) or 'none'}"
                )
        return {unit: much - known[unit] for unit, much in took.items()}


def options(
    name: str,
    *,
    interval: Duration | None,
    rate: Rate | None,
    floor: Rate | None = None,
    ceiling: Rate | None = None,
    store_url: str | None,
    burst: int,
    lookahead: int | None,
    tolerance: Duration | None,
    max_running: int | None,
    timeout: Duration | None,
    retries: int,
    backoff: Duration,
    retry_after: RetryAfter,
    strict: bool = False,
    precision: float | None = None,
    limits: Limits | None = None,
    on_mismatch: OnMismatch = "raise",
    new: bool = False,
    start: bool = True,
    each: Each | None = None,
    log: str | os.PathLike[str] | None = None,
    window: str | None = None,
    timezone: str = "UTC",
) -> Options:
    """The settings, checked.

    Raises:
        InvalidName, InvalidInterval: see these classes.
        InvalidOption: an option is out of range, or two of them contradict each other.
    """
    burst = whole("burst", burst, 1)
    ruled = () if limits is None else rules_of(limits)
    micros = _interval_of(interval, rate, auto := rates.bounds(rate, floor, ceiling))
    if micros is None:
        _check_without_pace(burst, tolerance, None if ruled else max_running)
    _check_first_use(on_mismatch, new=new, creates=micros is not None or bool(ruled))
    check_burst(micros, burst)
    tolerated = 0 if tolerance is None else parse.duration(tolerance, least=1, what="tolerance")
    own = each_of(each, micros, is_plain=(burst, max_running, auto) == (1, None, None))
    if micros is None and ruled:
        micros, burst = NO_PACE, (tolerated := _late(ruled))  # in any of these slots, a job may begin late
    elif micros is not None:
        _check_tolerance(tolerance, tolerated, micros if auto is None else auto.fastest)
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
        retry_after=_rule(retry_after) or auto is not None,
        strict=strict,
        precision=_share(precision),
        limits=ruled,
        counted=tuple(dict.fromkeys([rule.unit for rule in (*own.limits, *ruled)])),
        on_mismatch=on_mismatch, new=new, start=start, log=None if log is None else os.fspath(log),
        each=own.interval, own=own.limits, auto=auto, hours=_hours(window, timezone),
    )  # fmt: skip


def _hours(window: str | None, timezone: str) -> Hours | None:
    if window is None:
        return None
    from intervalq._hours.window import Hours  # noqa: PLC0415 - few queues have hours

    return Hours.of(window, timezone)


def _check_without_pace(burst: int, tolerance: Duration | None, max_running: int | None) -> None:
    if burst != 1 or tolerance is not None or max_running is not None:
        raise InvalidOption(
            "burst, max_running and tolerance need interval or rate: without these, the queue's own are used"
        )


def _check_tolerance(given: Duration | None, tolerated: int, shortest: int) -> None:
    if tolerated >= shortest:
        raise InvalidInterval(
            given, f"is too much tolerance: it must be less than the interval of {parse.text(shortest)}"
        )


def _interval_of(interval: Duration | None, rate: Rate | None, auto: Auto | None) -> int | None:
    if interval is not None and rate is not None:
        raise InvalidOption(
            f"give interval={short(interval)} or rate={short(rate)}, not both: one follows from the other"
        )
    if auto is not None:
        return auto.slowest
    if rate is not None:
        return rates.rate(rate)
    return None if interval is None else parse.interval(interval)


def _rule(value: RetryAfter) -> RetryAfter:
    if not isinstance(value, bool) and not callable(value):
        raise InvalidOption(
            f"retry_after={short(value)} must be True, False, or a function that takes an error or a result "
            "and returns a time to wait, or None"
        )
    return value


def _check_first_use(on_mismatch: object, *, new: bool, creates: bool) -> None:
    """Refuse options for the first use of a queue that are unknown or can't take effect."""
    if on_mismatch not in get_args(OnMismatch):
        raise InvalidOption(f"on_mismatch={short(on_mismatch)} must be one of raise, adopt and update")
    if new and not creates:
        raise InvalidOption("new=True needs interval, rate or limits, with which to create the queue")


def _late(limits: tuple[Limit, ...]) -> int:
    """How late a job may begin where there are limits but no interval."""
    return min(_LATE, max(1, min(limit.window for limit in limits) // 500))


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
