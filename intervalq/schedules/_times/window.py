"""Windows of the day, such as 22:00-06:00, outside of which nothing occurs."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from typing import Final

from intervalq.errors import InvalidOption, short
from intervalq.schedules._times.zone import instant_of, local

_WINDOW: Final = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)", re.ASCII)
_DAY: Final = 24 * 60


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
    opens, _ = _minutes(window)
    day = local(instant, zone).date()
    while True:
        opening = instant_of(datetime.combine(day, time(*divmod(opens, 60)), tzinfo=zone))
        if opening > instant:
            return opening
        day += timedelta(days=1)


def _minutes(window: str) -> tuple[int, int]:
    hour, minute, to_hour, to_minute = map(int, _WINDOW.fullmatch(window).groups())  # type: ignore[union-attr] # checked
    return hour * 60 + minute, to_hour * 60 + to_minute
