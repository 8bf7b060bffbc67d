"""Windows of the day, such as 22:00-06:00, outside of which nothing occurs, and no job begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from typing import Final, Self

from intervalq._hours.zone import instant_of, local, zone_of
from intervalq.errors import InvalidOption, short

_WINDOW: Final = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)", re.ASCII)
_DAY: Final = 24 * 60
_MINUTE: Final = 60_000_000


def checked_window(text: object) -> str:
    """A window in the form 22:00-06:00, or an empty text for None.

    Raises:
        InvalidOption: it is not a window.
    """
    if text is None:
        return ""
    found = _WINDOW.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is not None:
        opens, closes = _minutes(found[0])
        if opens < _DAY and closes <= _DAY and opens != closes and int(found[2]) < 60 > int(found[4]):
            return f"{int(found[1]):02}:{found[2]}-{int(found[3]):02}:{found[4]}"
    raise InvalidOption(
        f"window={short(text)} is not a window of the day: write 22:00-06:00; its end does not belong to it"
    )


def is_open(window: str, instant: int, zone: tzinfo) -> bool:
    """Whether an instant lies in the window."""
    opens, closes = _minutes(window)
    at = local(instant, zone)
    minute = at.hour * 60 + at.minute
    return opens <= minute < closes if opens < closes else minute >= opens or minute < closes


def next_opening(window: str, instant: int, zone: tzinfo) -> int:
    """When the window opens next, after an instant at which it is closed."""
    opens = time(*divmod(_minutes(window)[0], 60))
    before, later = local(instant, zone), list[int]()
    day = before.date()
    while not later:  # where an hour comes twice, so do its minutes
        wall = [datetime.combine(day, opens.replace(fold=fold), tzinfo=zone) for fold in (0, 1)]
        later = [at for at in map(instant_of, wall) if at > instant]
        day += timedelta(days=1)
    found = min(later)
    if local(found, zone).utcoffset() == before.utcoffset() and is_open(window, found, zone):
        return found
    for minute in range(
        instant - instant % _MINUTE + _MINUTE, found + 1, _MINUTE
    ):  # over a change of the clocks
        if is_open(window, minute, zone):
            return minute
    return next_opening(window, found, zone)


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a queue: a part of the day in a time zone. `of` checks what people write."""

    window: str
    timezone: str

    @classmethod
    def of(cls, window: object, timezone: object) -> Self | None:
        """The hours that these options describe; None: the whole day.

        Raises:
            InvalidOption: an option is wrong.
        """
        zone_of(timezone)
        made = checked_window(window)
        return cls(made, str(timezone)) if made else None

    def opening(self, earliest: int, latest: int) -> int:
        """From when on it is open, at these two instants, which are less than a minute apart, or later."""
        zone = zone_of(self.timezone)
        if not is_open(self.window, earliest, zone):
            return next_opening(self.window, earliest, zone)
        if not is_open(self.window, latest, zone):
            return next_opening(self.window, latest, zone)
        return earliest


def _minutes(window: str) -> tuple[int, int]:
    hour, minute, to_hour, to_minute = map(int, _WINDOW.fullmatch(window).groups())  # type: ignore[union-attr] # checked
    return hour * 60 + minute, to_hour * 60 + to_minute
