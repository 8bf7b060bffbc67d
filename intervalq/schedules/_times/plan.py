"""`Plan`: the instants at which a schedule occurs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import Final, Self

from intervalq._hours.window import checked_window, is_open, next_opening
from intervalq._hours.zone import checked_instant, local, zone_of
from intervalq._spec import parse
from intervalq.errors import InvalidOption
from intervalq.schedules._times.cron import checked_cron, next_fires

_MILLISECOND: Final = 1_000
_MINUTE: Final = 60_000_000
_START: Final = 1_000_000
"""How late an occurrence may start before it counts as missed."""

MAX_TIMES: Final = 100
"""How many of the times that did not fire are listed."""
_LAST: Final = 250_000_000_000_000_000
"""The year 9892: nothing occurs after it, because times end with the year 9999."""

_JUMPS: Final = 10_000
"""In how many openings of its window a plan looks for an occurrence: those of 27 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When a schedule occurs. All of its values are valid; `of` checks those that people write."""

    interval: int = 0
    """Microseconds between two occurrences; 0: `cron` says when."""
    cron: str = ""
    timezone: str = "UTC"
    """The time zone of `cron` and `window`."""
    start: int | None = None
    """The first instant. An interval is counted from it, or else from 1970."""
    end: int | None = None
    """The last instant."""
    window: str = ""
    """The part of the day to which occurrences are limited; empty: all of it."""
    jitter: int = 0
    """By how much an occurrence may start later than it is scheduled, in microseconds."""

    @classmethod
    def of(
        cls,
        *,
        every: object = None,
        cron: object = None,
        timezone: object = "UTC",
        start: object = None,
        end: object = None,
        window: object = None,
        jitter: object = 0,
    ) -> Self:
        """The plan that these options describe; one of `every` and `cron` is given.

        Raises:
            InvalidOption: an option is wrong, or the plan would never occur.
            InvalidInterval: `every` or `jitter` is not a duration.
            MissingExtra: there is no parser for `cron`.
        """
        zone = zone_of(timezone)
        made = cls(
            interval=0 if every is None else parse.duration(every, least=_MILLISECOND, what="the interval"),
            cron="" if cron is None else checked_cron(cron, zone),
            timezone=str(timezone),
            start=checked_instant(start, zone, "start"),
            end=checked_instant(end, zone, "end"),
            window=checked_window(window),
            jitter=parse.duration(jitter, what="jitter"),
        )
        if made.after(0 if made.start is None else made.start - 1) is None:
            raise InvalidOption(f"a schedule {made} would never occur: check its days, window, start and end")
        return made

    def to_text(self) -> str:
        """The plan as it is stored: the same text for the same plan."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def __str__(self) -> str:
        """The plan as people write it."""
        parts = [f"every {parse.text(self.interval)}" if self.interval else f"cron {self.cron}"]
        if self.timezone != "UTC" and (self.cron or self.window):
            parts.append(self.timezone)
        parts += [f"window {self.window}"] if self.window else []
        parts += [f"jitter {parse.text(self.jitter)}"] if self.jitter else []
        for name, at in (("from", self.start), ("to", self.end)):
            parts += [f"{name} {local(at, self.zone).isoformat()}"] if at is not None else []
        return ", ".join(parts)

    @property
    def zone(self) -> tzinfo:
        """Its time zone."""
        return zone_of(self.timezone)

    def time(self, instant: int) -> datetime:
        """An instant in its time zone."""
        return local(instant, self.zone)

    def after(self, instant: int) -> int | None:
        """The first occurrence after an instant; None: there is none."""
        found = self._next(instant)
        if self.window:
            for _ in range(_JUMPS):
                if found is None or is_open(self.window, found, self.zone):
                    break
                found = self._next(next_opening(self.window, found, self.zone) - 1)
            else:
                return None
        return found

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """The last `most` occurrences after one instant and up to another, in order."""
        least = width = most * self.interval or 2 * _MINUTE
        found: list[int] = []
        while True:
            begin = max(after, until - width)
            listed = self._between(begin, until, 4 * most)
            if listed is None:  # many occurrences follow a long time without any
                until, width = self._last(begin, until), least
                continue
            found = listed + found
            if len(found) >= most or begin <= after:
                return found[-most:]
            until, width = begin, 2 * width

    def times(self, after: int, until: int) -> tuple[datetime, ...]:
        """The times after one instant and up to another: at most the last 100."""
        return tuple(self.time(instant) for instant in self.latest(after, until, MAX_TIMES))

    def overdue(self, name: str, after: int, now: int) -> tuple[datetime, ...]:
        """The times of this schedule after an instant that should have fired by now: at most the last 100.

        A start takes its time, so those that became due within the last second aren't among them.
        """
        found = self.latest(after, now - _START, MAX_TIMES)
        return tuple(self.time(instant) for instant in found if self.due(name, instant) <= now - _START)

    def _between(self, after: int, until: int, most: int) -> list[int] | None:
        """The occurrences after one instant and up to another; None: there are more than `most`."""
        found, at = list[int](), self.after(after)
        while at is not None and at <= until:
            if len(found) == most:
                return None
            found.append(at)
            at = self.after(at)
        return found

    def _last(self, after: int, until: int) -> int:
        """The last of the occurrences, of which there are some, after one instant and up to another."""
        while True:
            found = self.after(after)
            assert found is not None
            if found >= until:
                return found
            middle = (found + until) // 2
            following = self.after(middle)
            if following is not None and following <= until:
                after = middle
            else:
                after, until = found - 1, middle

    def due(self, name: str, scheduled: int) -> int:
        """When an occurrence of the schedule of this name may start: the same in every process.

        It starts before the next one is scheduled, however large the jitter.
        """
        if not self.jitter:
            return scheduled
        following = self.after(scheduled)
        most = self.jitter if following is None else min(self.jitter, following - scheduled)
        draw = int.from_bytes(sha256(f"{name}/{scheduled}".encode()).digest()[:8])
        return scheduled + (most * draw >> 64)

    def _next(self, instant: int) -> int | None:
        """The same without the window."""
        if self.start is not None:
            instant = max(instant, self.start - 1)
        if self.interval:
            begin = self.start or 0
            found: int | None = begin + ((instant - begin) // self.interval + 1) * self.interval
        else:
            found = next_fires(self.cron, instant, self.zone) if instant < _LAST else None
        end = _LAST if self.end is None else self.end
        return None if found is None or found > end else found


_KINDS: Final = {"int": (int,), "str": (str,), "int | None": (int, type(None))}


@lru_cache(4_096)
def plan_of(text: str) -> Plan:
    """The plan that `Plan.to_text` wrote.

    Raises:
        ValueError, TypeError: it is not such a text.
        InvalidOption: its time zone is not known here.
        MissingExtra: there is no parser for its cron expression.
    """
    made = Plan(**json.loads(text))
    for field in fields(Plan):
        if type(getattr(made, field.name)) not in _KINDS[str(field.type)]:
            raise TypeError(f"'{field.name}' has another type")
    if not (made.interval >= _MILLISECOND or (made.interval == 0 and made.cron)) or made.jitter < 0:
        raise ValueError("'interval' or 'jitter' is out of range")
    zone = zone_of(made.timezone)
    try:
        if made.cron:
            checked_cron(made.cron, zone)
        if made.window:
            checked_window(made.window)
    except InvalidOption as error:  # nobody writes such a plan
        raise ValueError(str(error)) from error
    return made
