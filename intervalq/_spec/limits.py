"""Limits as text: turns `500/min` or `30_000 tokens/min` into what the rules take, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from intervalq._spec import parse
from intervalq._spec.record import BLOCKS, MAX_LIMITS, STARTS
from intervalq._spec.record import Limit as Rule
from intervalq.errors import InvalidInterval, InvalidOption, short

_MAX_WINDOW: Final = BLOCKS * 86_400 * parse.SECOND
"""The maximum length of a window: 64 blocks of a day."""

_MAX_UNITS: Final = 1_000_000_000_000

_FORMS: Final = (
    "give text such as '500/min', '30_000 tokens/min' or '5000/day from utc' (days begin at midnight UTC), "
    "or a Limit"
)

_TEXT: Final = re.compile(
    r"(\d{1,3}(?:,\d{3}){1,4}|\d[\d_]{0,15})(?![eE]\d)\s*([A-Za-z][A-Za-z0-9._-]{0,31})?\s*(?:/|\bper\b)\s*(\d{1,9})?\s*([a-z]{1,7})"
    r"(?:\s+from\s+(\S.*))?",
    re.ASCII,
)
_OFFSET: Final = re.compile(r"([+-])([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MINUTE: Final = 60 * parse.SECOND
_DAY: Final = 24 * 60 * _MINUTE
_UNIT: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,31}", re.ASCII)
_PERIODS: Final = {
    "us": 1,
    "ms": 1_000,
    **dict.fromkeys(("s", "sec", "second", "seconds"), parse.SECOND),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * parse.SECOND),
    **dict.fromkeys(("h", "hour", "hours"), 3_600 * parse.SECOND),
    **dict.fromkeys(("d", "day", "days"), 86_400 * parse.SECOND),
}


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` units within any `window`, whatever the interval allows.

    Args:
        most: how many units; a whole number from 1 to 10**12.
        window: seconds, a timedelta, or text such as `1m`: from 64 microseconds to 64 days.
        unit: what is counted: `starts`, the default, or a name that jobs use in `cost={"tokens": 1200}`: 1 to
            32 of the characters `A-Z a-z 0-9 . _ -`, beginning with a letter.
        jitter: by how much longer one call may travel to the server than another. The server then sees at
            most `most` arrivals in any window: starts are counted in windows that are this much longer.
        edge: `"utc"`, or the offset of a zone such as `"+02:00"`: the windows are those of the clock there,
            and counting begins anew in each of them: for days at midnight, for hours at the full hour. Their
            length is whole seconds that divide a minute evenly, or whole minutes that divide a day evenly.
            None: the limit holds in any window, whenever it begins.

    Raises:
        InvalidInterval, InvalidOption: a value is out of range.
    """

    most: int
    window: float | timedelta | str
    unit: str = STARTS
    jitter: float | timedelta | str = 0
    edge: str | None = None

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> Rule:
        """The limit in the form of the rules."""
        most = self.most
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MAX_UNITS:
            raise InvalidOption(f"a limit of {short(most)} must be a whole number from 1 to {_MAX_UNITS}")
        if not isinstance(self.unit, str) or not _UNIT.fullmatch(self.unit):
            raise InvalidOption(
                f"the unit {short(self.unit)} of a limit must be 1 to 32 of the characters A-Z a-z 0-9 . _ "
                "-, beginning with a letter"
            )
        window = parse.duration(self.window, least=BLOCKS, most=_MAX_WINDOW, what="the window of a limit")
        jitter = parse.duration(self.jitter, most=_MAX_WINDOW, what="the jitter of a limit")
        return Rule(most, window, self.unit, jitter, _edge(self.edge, window))


class Limits(Protocol):
    """Several limits, such as a list. A single text isn't one: it contains text, not any object."""

    def __iter__(self) -> Iterator[str | Limit]: ...

    def __contains__(self, limit: object, /) -> bool: ...


def rules_of(limits: object, what: str = "limits=") -> tuple[Rule, ...]:
    """The limits in the form of the rules; errors say `what` they were given by.

    Raises:
        InvalidOption, InvalidInterval: one of them is not a limit, is out of range, or repeats another one.
    """
    if isinstance(limits, str | Limit | Mapping) or not isinstance(limits, Iterable):
        raise InvalidOption(f"{what}{short(limits)} must be a list: {_FORMS}")
    rules = tuple([_rule(each) for each in limits])
    if len(rules) > MAX_LIMITS:
        raise InvalidOption(f"{what} has {len(rules)} limits, a queue can have {MAX_LIMITS}")
    windows = [(rule.unit, rule.window) for rule in rules]
    for rule, window in zip(rules, windows, strict=True):
        if windows.count(window) > 1:
            raise InvalidOption(
                f"{what} has two limits of {rule.unit} for {parse.text(rule.window)}: give one of them"
            )
    return rules


def is_of_units(value: object) -> bool:
    """Whether this is a limit, and can't be a rate: a `Limit`, or text with a unit or an edge."""
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    return isinstance(value, Limit) or (match is not None and (match[2] or match[5]) is not None)


def _rule(value: object) -> Rule:
    if isinstance(value, Limit):
        return value.rule()
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    period = _PERIODS.get(match[4]) if match else None
    if match is None or period is None:
        raise InvalidOption(f"{short(value)} is not a limit: {_FORMS}")
    window = int(match[3] or 1) * period
    if not BLOCKS <= window <= _MAX_WINDOW:
        raise InvalidInterval(
            value,
            f"is out of range: the window of a limit must be from {parse.text(BLOCKS)} to "
            f"{parse.text(_MAX_WINDOW)}",
        )
    seconds, unit = window / parse.SECOND, match[2] or STARTS
    return Limit(int(re.sub("[_,]", "", match[1])), seconds, unit, edge=match[5]).rule()


def _edge(zone: object, window: int) -> int | None:
    """The beginning of the first window after 1970 whose edges are those of a zone."""
    if zone is None:
        return None
    match = _OFFSET.fullmatch(zone) if isinstance(zone, str) else None
    if match is None and not (isinstance(zone, str) and zone.lower() == "utc"):
        raise InvalidOption(
            f"the edge {short(zone)} of a limit must be 'utc' or an offset such as '-08:00': stores don't "
            "know when the clocks of a zone change; give its present offset, and configure() the other one "
            "when they do"
        )
    if window % parse.SECOND or _DAY % window or (window % _MINUTE and _MINUTE % window):
        raise InvalidOption(
            f"a window of {parse.text(window)} can't have an edge: give whole seconds that divide a minute "
            "evenly, or whole minutes that divide a day evenly, such as 10s, 1m, 15m, 1h, 6h or 1d"
        )
    if match is None:
        return 0
    east = (int(match[2]) * 60 + int(match[3])) * _MINUTE
    return (-east if match[1] == "+" else east) % window


def zone(rule: Rule) -> str | None:
    """The zone of a limit's edge, for `Limit`: of all zones with the same edges, the nearest to UTC."""
    if rule.edge is None:
        return None
    east = -rule.edge % rule.window
    if 2 * east > rule.window:
        east -= rule.window
    hours, minutes = divmod(abs(east) // _MINUTE, 60)
    return f"{'-' if east < 0 else '+'}{hours:02}:{minutes:02}" if east else "utc"


def text(rule: Rule) -> str:
    """A limit in the form that people write: `500/m`, `30000 tokens/m`."""
    unit = "" if rule.unit == STARTS else f" {rule.unit}"
    window = parse.text(rule.window)
    window = window[1:] if window[:1] == "1" and window[1:].isalpha() else window
    jitter = f" with a jitter of {parse.text(rule.jitter)}" if rule.jitter else ""
    edge = "" if rule.edge is None else f" from {zone(rule)}"
    return f"{rule.most}{unit}/{window}{edge}{jitter}"


def limit_of(rule: Rule) -> Limit:
    """A limit in the form of `Limit`."""
    window, jitter = rule.window / parse.SECOND, rule.jitter / parse.SECOND
    return Limit(rule.most, window, rule.unit, jitter, zone(rule))
